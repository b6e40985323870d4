//! Hosts with client processors, on which the model is too fast.
//!
//! The model was compared with server hosts. The root complex of a Xeon E3 accepts fewer posted writes at once, and the
//! model leaves that out.

use super::PcieScenario;

/// How far the model is above the measured rate of writes on a Xeon E3 (pcie-bench/data, NFP6000 on E3-1226 v3), as a
/// share.
pub const WRITES_ABOVE_MEASURED: f64 = 0.94;

/// The hosts that the model is for, and its error on others: part of every outcome, because a scenario need not name its
/// processor.
pub const VALID_FOR: &str = "server hosts; on a Xeon E3, and probably on other client processors (Core, Ryzen), writes \
                             are up to 94 % above what is measured";

/// The parts of names of client processors.
const CLIENTS: [&str; 10] = [
    "e3-", "xeon e-", "xeon w-1", "core", "i3-", "i5-", "i7-", "i9-", "ryzen", "pentium",
];

/// Whether `cpu` is the name of a client processor.
fn is_client(cpu: &str) -> bool {
    let cpu = cpu.to_lowercase();
    CLIENTS.iter().any(|part| cpu.contains(part))
}

impl PcieScenario {
    /// Known reasons why the rates may be wrong.
    pub fn warnings(&self) -> Vec<String> {
        let Some(cpu) = self.cpu.as_ref().filter(|cpu| is_client(cpu)) else {
            return Vec::new();
        };
        let above = WRITES_ABOVE_MEASURED * 100.0;
        vec![format!(
            "{cpu} is a client processor, and the model is for servers: on a Xeon E3 it is {above:.0} % above the \
             measured rate of writes."
        )]
    }
}

#[cfg(test)]
mod tests {
    use super::is_client;

    #[test]
    fn the_range_of_validity_has_the_error_that_the_warning_has() {
        let share = format!("{:.0} %", super::WRITES_ABOVE_MEASURED * 100.0);
        assert!(super::VALID_FOR.contains(&share), "{share}");
    }

    #[test]
    fn clients_and_servers_are_told_apart() {
        for client in [
            "Xeon E3-1226 v3",
            "Intel Core i7-12700",
            "AMD Ryzen 9 7950X",
            "Xeon E-2288G",
        ] {
            assert!(is_client(client), "{client}");
        }
        for server in [
            "Xeon E5-2637 v3",
            "Xeon Platinum 8480C",
            "AMD EPYC 9354",
            "Xeon Gold 6530",
        ] {
            assert!(!is_client(server), "{server}");
        }
    }
}
