//! The doctor for S3: whether a bucket can be read, how fast, and what limits it; and where it is asked, whether it can be
//! written.
//!
//! Each check says what it saw, and where something is wrong what mends it. Checks that need one that failed are left
//! out. What is read is one object: the one that is named, or the largest on the first page of names.

mod writing;

use std::{
    ffi::OsStr,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use http::{HeaderMap, Method, header::RANGE};
use straightway_core::{
    Choice, Error, Extent, Kind, Move, Rate, Receipt, Result,
    receipt::{Bound, Sockets},
};
use straightway_io::{
    Executor, Handle, Objects, Region, Settings, Store,
    store::{Named, Page},
};
use straightway_net::suited;

use crate::{
    bucket::Ask,
    refusal::{Skew, clock, header},
    store::S3,
};

/// Requests of one byte whose median is the latency.
const LATENCY_REQUESTS: usize = 7;

/// The most that each measurement reads.
const SAMPLE_BYTES_MAX: u64 = 64 << 20;

/// Services refuse requests whose time is off by 15 minutes. Half of that is trouble soon.
const SKEW_MAX: Duration = Duration::from_mins(7);

/// Many connections are worth while if they are faster than one by this factor.
const GAIN_MIN: f64 = 1.3;

/// Where the object is looked for that is read.
const FIRST_PAGE: Page = Page {
    after: None,
    names_max: 1000,
};

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// As it should be.
    Fine,
    /// Good to know.
    Note,
    /// It stands in the way.
    Wrong,
}

impl State {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Note => "note",
            Self::Wrong => "fail",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// How it came out.
    pub state: State,
    /// What was seen.
    pub seen: String,
    /// What mends it.
    pub mend: Option<String>,
}

/// Looks at a bucket and at what is below a name in it, worst things last to be reached. With `writes` it puts objects
/// there and removes them again.
pub fn examine(store: &S3, name: &OsStr, writes: bool) -> Vec<Check> {
    let mut doctor = Doctor {
        store,
        name,
        writes,
        checks: Vec::new(),
    };
    doctor.look();
    doctor.checks
}

struct Doctor<'a> {
    store: &'a S3,
    name: &'a OsStr,
    /// Whether writing is tried.
    writes: bool,
    checks: Vec<Check>,
}

impl Doctor<'_> {
    fn add(&mut self, name: &'static str, state: State, seen: String, mend: Option<&str>) {
        let mend = mend.map(str::to_owned);
        self.checks.push(Check {
            name,
            state,
            seen,
            mend,
        });
    }

    fn fail(&mut self, name: &'static str, error: &Error) {
        self.add(name, State::Wrong, error.to_string(), error.hint());
    }

    fn look(&mut self) {
        let bucket = Arc::clone(self.store.bucket());
        let (service, region) = (&bucket.endpoint.service, &bucket.region);
        let place = &bucket.endpoint.origin;
        self.add(
            "endpoint",
            State::Fine,
            format!("{service} in region {region}, asked at {place}"),
            None,
        );
        match bucket.credentials.get() {
            Ok(known) => self.add(
                "credentials",
                State::Fine,
                format!("from {}", known.source),
                None,
            ),
            Err(error) => return self.fail("credentials", &error),
        }
        let object = match self.find() {
            Ok(object) => object,
            // Nothing need be there for something to be put there.
            Err(error) if self.writes && error.kind() == Kind::NotFound && self.is_listed() => None,
            Err(error) => return self.fail("access", &error),
        };
        let is_object = object.is_some() && self.store.open(&[Named::new(self.name)]).is_ok();
        self.look_at(object.as_ref());
        if self.writes {
            self.try_writing(is_object);
        }
    }

    /// Whether the place can be listed.
    fn is_listed(&self) -> bool {
        let inside = self.store.inside(self.name);
        inside.is_ok_and(|inside| inside.list(&FIRST_PAGE).is_ok())
    }

    /// Reads an object.
    fn look_at(&mut self, object: Option<&Arc<dyn Handle>>) {
        let Some(object) = object else {
            let mend = "name an object, or a prefix below which there is one";
            return self.add(
                "access",
                State::Note,
                "it can be listed, and is empty".to_owned(),
                Some(mend),
            );
        };
        let seen = format!("{} can be opened", object.object().name);
        self.add("access", State::Fine, seen, None);
        if let Err(error) = self.ask(object) {
            return self.fail("latency", &error);
        }
        if let Err(error) = self.measure(object) {
            self.fail("throughput", &error);
        }
    }

    /// The object that is read: the one that is named, or the largest on the first page below it.
    fn find(&self) -> Result<Option<Arc<dyn Handle>>> {
        let mut refused = None;
        if !self.name.is_empty() {
            match self.store.open(&[Named::new(self.name)]) {
                Ok(mut opened) => return Ok(opened.pop()),
                Err(error) => refused = Some(error),
            }
        }
        let inside = self.store.inside(self.name)?;
        let page = inside.list(&FIRST_PAGE);
        let page = match (page, refused) {
            (Ok(page), Some(error)) if page.objects.is_empty() => return Err(error),
            (Ok(page), _) => page,
            (Err(error), _) => return Err(error),
        };
        let largest = page.objects.into_iter().max_by_key(|object| object.bytes);
        let Some(named) = largest else {
            return Ok(None);
        };
        Ok(inside.open(&[named])?.pop())
    }

    /// Asks for one byte some times: the latency, the server's clock, and whether it has checksums.
    fn ask(&mut self, object: &Arc<dyn Handle>) -> Result<()> {
        let bucket = Arc::clone(self.store.bucket());
        let name = object.object().name;
        let key = name.strip_prefix(&bucket.describe("")).unwrap_or_default();
        let key = key.split("?versionId=").next().unwrap_or_default();
        let request = |method, unsigned| Ask {
            method,
            operation: "read",
            name: &name,
            key,
            query: &[],
            unsigned,
            expected: &[200, 206, 416],
            body_bytes_max: 1 << 20,
        };
        let mut times = Vec::new();
        let mut date = None;
        let one_byte = [(RANGE, "bytes=0-0")];
        // The first one makes the connection.
        for number in 0..=LATENCY_REQUESTS {
            let start = Instant::now();
            let answer = bucket.ask(&request(Method::GET, &one_byte))?;
            if number > 0 {
                times.push(start.elapsed());
            }
            date = header(answer.headers(), "date").and_then(clock);
        }
        times.sort_unstable();
        let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let seen = format!(
            "first byte after {:.1} ms, at worst {:.1} ms",
            ms(median),
            ms(worst)
        );
        self.add("latency", State::Fine, seen, None);
        self.compare_clocks(date);
        let answer = bucket.ask(&request(Method::HEAD, &[]))?;
        self.look_for_checksum(answer.headers());
        Ok(())
    }

    /// Compares this machine's clock with the server's.
    fn compare_clocks(&mut self, date: Option<SystemTime>) {
        match date.map(|there| Skew::between(SystemTime::now(), there)) {
            Some(skew) if skew.by > SKEW_MAX => {
                let seen = format!("this machine's clock is {skew} the server's");
                self.add(
                    "clock",
                    State::Wrong,
                    seen,
                    Some("set the clock, for example with `chronyc makestep`"),
                );
            }
            Some(skew) => self.add("clock", State::Fine, format!("{skew} the server's"), None),
            None => self.add(
                "clock",
                State::Note,
                "the server does not tell its time".to_owned(),
                None,
            ),
        }
    }

    /// Looks for the checksum of the object.
    fn look_for_checksum(&mut self, headers: &HeaderMap) {
        let mut sums = headers.iter().filter(|(name, _)| {
            let name = name.as_str();
            name.starts_with("x-amz-checksum-") && name != "x-amz-checksum-type"
        });
        if let Some((name, _)) = sums.next() {
            let kind = name.as_str().trim_start_matches("x-amz-checksum-");
            let seen = format!("the service keeps a {kind} of the object");
            self.add("checksum", State::Fine, seen, None);
        } else {
            let seen = "the service keeps no checksum of the object";
            let mend =
                "upload with a checksum, for example `aws s3 cp --checksum-algorithm CRC64NVME`";
            self.add("checksum", State::Note, seen.to_owned(), Some(mend));
        }
    }

    /// Reads a sample by one connection and by many.
    fn measure(&mut self, object: &Arc<dyn Handle>) -> Result<()> {
        let bytes = object.object().bytes.min(SAMPLE_BYTES_MAX);
        if bytes < 2 << 20 {
            let seen = "the object is too small to measure with".to_owned();
            self.add(
                "throughput",
                State::Note,
                seen,
                Some("name an object of 64 MiB or more"),
            );
            return Ok(());
        }
        let usual = suited(Settings::default());
        let one = read(self.store, object, bytes, 1, &usual)?;
        let many = read(self.store, object, bytes, usual.depth, &usual)?;
        let rate = |receipt: &Receipt| Rate(receipt.rate_bytes_per_s);
        let gain = many.rate_bytes_per_s / one.rate_bytes_per_s;
        let seen = format!("{} by one connection, {} by many", rate(&one), rate(&many));
        self.add("throughput", State::Fine, seen, None);
        let cpu = (many.cpu_user_s + many.cpu_system_s) / many.seconds.max(1e-9);
        let seen = match many.bound_by {
            Bound::Network if cpu > 0.8 => format!("receiving: {cpu:.1} cores are busy with it"),
            Bound::Network if gain > GAIN_MIN => {
                "the service's rate for each connection: more connections are faster".to_owned()
            }
            Bound::Network => {
                "the network or the service: more connections are no faster".to_owned()
            }
            other => format!("{other}"),
        };
        self.add("bottleneck", State::Fine, seen, None);
        if let Some(sockets) = &many.sockets {
            self.checks.push(connections(sockets));
        }
        Ok(())
    }
}

/// What the connections of a transfer and the interfaces saw.
pub fn connections(seen: &Sockets) -> Check {
    let lost = seen.retransmits + seen.out_of_order;
    let dropped: u64 = seen.interfaces.iter().map(|i| i.dropped + i.errors).sum();
    let (state, mend) = match (lost, dropped) {
        (0, 0) => (State::Fine, None),
        (_, 0) => (
            State::Note,
            Some("packets were lost or late on the way: look at the counters of the switches"),
        ),
        _ => (
            State::Note,
            Some(
                "an interface of this machine drops packets: look at `ethtool -S` and its ring sizes",
            ),
        ),
    };
    let lines = seen.to_string();
    let lines: Vec<_> = lines.lines().map(str::trim).collect();
    Check {
        name: "connections",
        state,
        seen: lines.join("; "),
        mend: mend.map(str::to_owned),
    }
}

fn read(
    store: &S3,
    object: &Arc<dyn Handle>,
    bytes: u64,
    depth: u32,
    usual: &Settings,
) -> Result<Receipt> {
    let executor = Executor::new(Settings {
        depth,
        drive_lanes: 1,
        // So that a small sample is still many requests.
        chunk_bytes: (bytes / 16).clamp(1 << 20, 8 << 20) & !0xfff,
        ..usual.clone()
    })?;
    let region = Arc::new(Region::host(bytes)?);
    region.populate();
    let moves = vec![Move {
        object: 0,
        extent: Extent::new(0, bytes),
        at: 0,
    }];
    let objects = Objects::new(Arc::new(store.clone()), vec![Arc::clone(object)]);
    executor.read(objects, moves, &region, Choice::Auto)?.wait()
}
