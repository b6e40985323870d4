//! CPU lists in the kernel's format.

/// CPU numbers are below this; the kernel's limit.
pub const CPUS_MAX: usize = 8192;

/// The sorted CPUs in a list such as `0-51,104-155`; `None` if it is malformed.
pub fn parse_cpus(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for range in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= CPUS_MAX {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_bounded() {
        assert_eq!(parse_cpus("0-2,8, 10-11\n").unwrap(), [0, 1, 2, 8, 10, 11]);
        assert_eq!(parse_cpus("").unwrap(), [0; 0]);
        for wrong in ["2-1", "0-99999999999", "x", "8192", "-1"] {
            assert_eq!(parse_cpus(wrong), None, "{wrong}");
        }
    }
}
