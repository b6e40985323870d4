//! The proxy as a program, for benchmarks: `fault-proxy LISTEN UPSTREAM SEED [FAULT=SHARE]…`, a share being parts of
//! 10,000, such as `stall:3s=100`. It ends with its standard input, and then writes what went through as JSON.

use std::io::Read;

use straightway_lab::{Faults, Proxy};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, upstream, seed, shares @ ..] = arguments.as_slice() else {
        return Err("usage: fault-proxy LISTEN UPSTREAM SEED [FAULT=SHARE]…".into());
    };
    let share = |text: &String| {
        let (fault, share) = text
            .split_once('=')
            .ok_or("a fault is written FAULT=SHARE")?;
        let share = share.parse::<u32>().map_err(|error| error.to_string())?;
        Ok::<_, String>((fault.parse()?, share))
    };
    let faults = Faults {
        seed: seed.parse()?,
        shares: shares.iter().map(share).collect::<Result<_, _>>()?,
        ..Faults::default()
    };
    let proxy = Proxy::start_at(listen, upstream, faults)?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let counts = proxy.counts();
    #[expect(clippy::print_stdout, reason = "it is what the program is for")]
    {
        println!(
            "{{\"requests\": {}, \"faults\": {}}}",
            counts.requests, counts.faults
        );
    }
    Ok(())
}
