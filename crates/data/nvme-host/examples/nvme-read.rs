//! Random reads through [`NvmeEngine`], for benchmarks: `nvme-read PORTAL NQN NSID BYTES DEPTH SECONDS [LANES]`.
//!
//! Each lane is a thread with its own engine and connection. The output line has the format of `bench/tcpbench.c`. The
//! CPU time is that of the whole machine, both ends included.

use std::{
    error::Error,
    ffi::OsStr,
    fs,
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use straightway_core::random::{Rng, Seed};
use straightway_io::{
    Handle,
    engine::Engine as _,
    request::{Io, Op},
    store::open_one,
};
use straightway_nvme_host::{HostSettings, NvmeEngine, NvmeTcp, Portal};
use straightway_sys::{Buf, IoPath, Slot};

type Failure = Box<dyn Error + Send + Sync>;

/// Random block offsets of reads.
struct Places {
    rng: Rng,
    blocks: u64,
    bytes: u64,
}

impl Places {
    fn next(&mut self) -> u64 {
        self.rng.below(self.blocks) * self.bytes
    }
}

/// The busy CPU time of the machine, in clock ticks.
fn busy_ticks() -> Result<u64, Failure> {
    let stat = fs::read_to_string("/proc/stat")?;
    let fields = stat.lines().next().unwrap_or_default().split_whitespace();
    let fields: Vec<u64> = fields.skip(1).map(str::parse).collect::<Result<_, _>>()?;
    // User, nice, system, interrupts and stolen time; neither idle nor waiting.
    Ok([0, 1, 2, 5, 6, 7].iter().filter_map(|at| fields.get(*at)).sum())
}

/// The first read makes the connection.
fn connect(engine: &mut NvmeEngine, io: Io) -> Result<Io, Failure> {
    engine.submit(io).map_err(|_| "the engine is full")?;
    let mut done = Vec::new();
    while done.is_empty() {
        engine.poll(&mut done, Duration::from_millis(100))?;
    }
    let one = done.remove(0);
    one.result?;
    Ok(one.io)
}

/// Connects, waits for the other lanes, and reads until the time is over. Returns the number of reads.
fn read(
    object: &Arc<dyn Handle>,
    mut places: Places,
    depth: u32,
    (ready_all, seconds): (&Barrier, Duration),
) -> Result<u64, Failure> {
    let mut engine = NvmeEngine::new(depth)?;
    let bytes = usize::try_from(places.bytes)?;
    let slots = Slot::ring(depth as usize, bytes)?;
    let mut ready: Vec<Io> = (0..)
        .zip(slots)
        .map(|(tag, slot)| Io {
            op: Op::Read,
            object: Arc::clone(object),
            by: IoPath::Direct,
            offset: 0,
            buf: Buf::Slot(slot),
            start: 0,
            bytes,
            tag,
        })
        .collect();
    let mut done = Vec::with_capacity(depth as usize);
    let first = connect(&mut engine, ready.remove(0));
    // The other lanes wait for this one, even if it failed.
    ready_all.wait();
    ready.push(first?);
    let end = Instant::now() + seconds;
    let mut count = 0;
    let mut open = 0;
    loop {
        if Instant::now() < end {
            open += ready.len();
            for mut io in ready.drain(..) {
                io.offset = places.next();
                engine.submit(io).map_err(|_| "the engine is full")?;
            }
        }
        if open == 0 {
            return Ok(count);
        }
        engine.poll(&mut done, Duration::from_millis(100))?;
        for one in done.drain(..) {
            if one.result? != bytes {
                return Err("a read was short".into());
            }
            count += 1;
            open -= 1;
            ready.push(one.io);
        }
    }
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [portal, nqn, nsid, bytes, depth, seconds, more @ ..] = arguments.as_slice() else {
        return Err("usage: nvme-read PORTAL NQN NSID BYTES DEPTH SECONDS [LANES]".into());
    };
    let (bytes, depth): (u64, u32) = (bytes.parse()?, depth.parse()?);
    let seconds = Duration::from_secs_f64(seconds.parse()?);
    let lanes: u64 = more.first().map_or(Ok(1), |lanes| lanes.parse())?;
    let settings = HostSettings {
        keep_alive: Duration::from_secs(30),
        ..HostSettings::default()
    };
    let store = NvmeTcp::new(Portal::parse(portal)?, settings);
    let object = open_one(&store, OsStr::new(&format!("{nqn}/{nsid}")))?;
    let blocks = object.object().bytes / bytes;
    let ready_all = Arc::new(Barrier::new(usize::try_from(lanes)? + 1));
    let lane = |lane: u64| {
        let object = Arc::clone(&object);
        let places = Places {
            rng: Seed::default().part(lane).rng(),
            blocks,
            bytes,
        };
        let ready_all = Arc::clone(&ready_all);
        thread::spawn(move || read(&object, places, depth, (&ready_all, seconds)))
    };
    let lanes: Vec<_> = (0..lanes).map(lane).collect();
    ready_all.wait();
    let (start, before) = (Instant::now(), busy_ticks()?);
    let mut count = 0;
    for lane in lanes {
        count += lane.join().map_err(|_| "a lane panicked")??;
    }
    let took_s = start.elapsed().as_secs_f64();
    let busy_s = (busy_ticks()? - before) as f64 / rustix::param::clock_ticks_per_second() as f64;
    let (rate, gib) = (count as f64 / took_s, (count * bytes) as f64 / (1_u64 << 30) as f64);
    #[expect(clippy::print_stdout, reason = "it is what the program is for")]
    {
        println!(
            "straightway  {bytes:7} B depth {depth:3}: {rate:8.0} IOPS {:8.1} MiB/s, {:.2} CPU-s/s, \
             {:.1} us CPU an I/O, {:.2} CPU-s/GiB",
            gib * 1024.0 / took_s,
            busy_s / took_s,
            busy_s / count as f64 * 1e6,
            busy_s / gib,
        );
    }
    Ok(())
}
