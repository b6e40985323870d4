//! A bare target for benchmarks: `nvme-serve PATH ADDRESS NQN [BLOCK-SHIFT]` serves a file or a block device,
//! read-only, until it is killed. `straightway target` is the full command.

use straightway_nvme::Nqn;
use straightway_nvme_target::{Config, NamespaceSource, Target};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, address, nqn, more @ ..] = arguments.as_slice() else {
        return Err("usage: nvme-serve PATH ADDRESS NQN [BLOCK-SHIFT]".into());
    };
    let sources = vec![NamespaceSource::Path(path.into())];
    let mut config = Config::new(Nqn::new(nqn)?, address.parse()?, sources);
    if let Some(shift) = more.first() {
        config.block_shift = shift.parse()?;
    }
    let target = Target::start(&config)?;
    #[expect(clippy::print_stderr, reason = "scripts wait for it")]
    {
        eprintln!("serving {path} on {}", target.addresses()[0]);
    }
    loop {
        std::thread::park();
    }
}
