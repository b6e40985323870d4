//! The same by threads that wait: for machines where io_uring is forbidden, as in most containers.

use std::{io, sync::Arc};

use straightway_core::{Error, Kind, Result};
use straightway_io::{
    engine::pool::{Pool, Run},
    request::{Done, Io, Op},
};
use straightway_sys::Tries;

use crate::remote::Remote;

/// An engine of `depth` threads. Each runs one request at a time, and copies what it receives.
pub fn threads(depth: u32) -> Result<Pool> {
    let run: Arc<Run> = Arc::new(run);
    Pool::running("http by threads", depth, &run)
}

fn run(mut io: Io) -> Done {
    match read(&mut io) {
        Ok((moved, retries)) => Done {
            tries: Tries {
                retries,
                ..Tries::default()
            },
            ..Done::new(io, Ok(moved))
        },
        Err(error) => Done::new(io, Err(io::Error::other(error))),
    }
}

fn read(io: &mut Io) -> Result<(usize, u32)> {
    let remote = Remote::of(&io.object).filter(|_| io.op == Op::Read);
    let Some(remote) = remote else {
        let why = "only objects of a web server are read, and none is written";
        let name = io.object.object().name;
        return Err(Error::new(Kind::Unsupported, "transfer", name, why));
    };
    let range = remote.range(io.offset, io.bytes);
    if range.is_empty() {
        return Ok((0, 0));
    }
    let mut moved = 0;
    let retries = remote.stream(&range, |at, bytes| {
        io.fill_from(at, bytes);
        moved = at + bytes.len();
    })?;
    Ok((moved, retries))
}
