//! The engine with blocking threads: for machines where io_uring is forbidden, as in most containers.

use std::{io, sync::Arc};

use straightway_core::{Error, ErrorKind, Result};
use straightway_io::{
    engine::pool::{Pool, Run},
    request::{Done, Io, Op},
};
use straightway_sys::Tries;

use crate::{
    remote::Remote,
    upload::{Admitted, Upload},
};

/// An engine of `depth` threads. Each runs one request at a time and copies the bytes it receives.
pub fn threads(depth: u32) -> Result<Pool> {
    let run: Arc<Run> = Arc::new(run);
    Pool::running("http by threads", depth, &run)
}

fn run(mut io: Io) -> Done {
    let moved = match io.op {
        Op::Read => read(&mut io),
        Op::Write => write(&io),
    };
    match moved {
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
    let Some(remote) = Remote::of(&io.object) else {
        return Err(foreign(io, "it is not an object of a web server"));
    };
    let range = remote.range(io.offset, io.bytes);
    if range.is_empty() {
        return Ok((0, 0));
    }
    if let Some(bytes) = remote.kept(&range)? {
        io.fill(bytes);
        return Ok((bytes.len(), 0));
    }
    let mut moved = 0;
    let retries = remote.stream(&range, |at, bytes| {
        io.fill_from(at, bytes);
        moved = at + bytes.len();
    })?;
    Ok((moved, retries))
}

fn write(io: &Io) -> Result<(usize, u32)> {
    let Some(upload) = Upload::of(&io.object) else {
        return Err(foreign(io, "it is not an upload to a web server"));
    };
    let (number, body) = match upload.admit(io)? {
        Admitted::Buffered => return Ok((io.bytes, 0)),
        Admitted::Completes(number, body) => (number, body),
        Admitted::Whole(number) => {
            let mut body = vec![0; upload.part_length(number)];
            io.spill(&mut body);
            (number, body)
        }
    };
    let retries = upload.send(number, &body)?;
    Ok((io.bytes, retries))
}

fn foreign(io: &Io, why: &str) -> Error {
    let name = io.object.object().name;
    Error::new(ErrorKind::Unsupported, "transfer", name, why)
}
