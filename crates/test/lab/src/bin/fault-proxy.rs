//! The proxy as a program, for benchmarks: `fault-proxy LISTEN UPSTREAM SEED [FAULT=SHARE]…`. A share is in parts of
//! 10,000, for example `stall:3s=100`. The program ends with its standard input and then prints its counters as JSON.

use std::io::Read;

use straightway_lab::{FaultProxy, ProxyFaults};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, upstream, seed, shares @ ..] = arguments.as_slice() else {
        return Err("usage: fault-proxy LISTEN UPSTREAM SEED [FAULT=SHARE]…".into());
    };
    let share = |text: &String| {
        let (fault, share) = text.split_once('=').ok_or("a fault is written FAULT=SHARE")?;
        let share = share.parse::<u32>().map_err(|error| error.to_string())?;
        Ok::<_, String>((fault.parse()?, share))
    };
    let faults = ProxyFaults {
        seed: seed.parse()?,
        shares: shares.iter().map(share).collect::<Result<_, _>>()?,
        ..ProxyFaults::default()
    };
    let proxy = FaultProxy::start_at(listen, upstream, faults)?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let counts = proxy.counts();
    #[expect(clippy::print_stdout, reason = "the counters are the program's result")]
    {
        println!("{{\"requests\": {}, \"faults\": {}}}", counts.requests, counts.faults);
    }
    Ok(())
}
