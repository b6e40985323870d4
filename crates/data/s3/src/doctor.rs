//! The doctor for S3: whether a bucket can be read, how fast, and what limits it; on request also whether it can be
//! written.
//!
//! Each check reports its finding, and a remedy if something is wrong. Checks that depend on a failed one are left out.
//! One object is read: the named one, or the largest of those that a few listings below the name find.

mod writing;

use std::{
    collections::VecDeque,
    ffi::OsStr,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use http::{HeaderMap, Method, header::RANGE};
use straightway_core::{
    Choice, Error, ErrorKind, Extent, Rate, Receipt, Result,
    receipt::{Bound, Sockets},
};
use straightway_io::{
    Executor, Handle, Objects, Region, Settings, Store,
    store::{ListPage, Missing, Named},
};
use straightway_net::{HttpResponse, suited};

use crate::{bucket::BucketRequest, refusal::Skew, s3::S3};

/// The requests of one byte whose median is the latency.
const LATENCY_REQUESTS: usize = 7;

/// The most bytes that each measurement reads.
const SAMPLE_BYTES_MAX: u64 = 64 << 20;

/// The longest acceptable clock skew: half of the 15 minutes at which services refuse requests.
const SKEW_MAX: Duration = Duration::from_mins(7);

/// Many connections count as faster than one from this factor.
const GAIN_MIN: f64 = 1.3;

/// The most listings in a search for an object to read. Most buckets have only prefixes on their first levels.
const LISTINGS_MAX: usize = 32;

/// The page in which the object to read is searched.
const FIRST_PAGE: ListPage = ListPage {
    after: None,
    names_max: 1000,
};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckState {
    /// No problem.
    Fine,
    /// Worth knowing, but not a failure.
    Note,
    /// A failure.
    Wrong,
}

impl CheckState {
    /// Its name in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Note => "note",
            Self::Wrong => "fail",
        }
    }
}

/// One check of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreCheck {
    /// Its name.
    pub name: &'static str,
    /// Its result.
    pub state: CheckState,
    /// The finding.
    pub seen: String,
    /// The remedy.
    pub mend: Option<String>,
}

/// Checks a bucket and the objects below a name in it. With `writes` it puts objects there and removes them again.
pub fn examine(store: &S3, name: &OsStr, writes: bool) -> Vec<StoreCheck> {
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
    /// Whether writes are tested.
    writes: bool,
    checks: Vec<StoreCheck>,
}

impl Doctor<'_> {
    fn add(&mut self, name: &'static str, state: CheckState, seen: String, mend: Option<&str>) {
        let mend = mend.map(str::to_owned);
        self.checks.push(StoreCheck {
            name,
            state,
            seen,
            mend,
        });
    }

    fn fail(&mut self, name: &'static str, error: &Error) {
        self.add(name, CheckState::Wrong, error.to_string(), error.hint());
    }

    fn look(&mut self) {
        let bucket = Arc::clone(self.store.bucket());
        let (service, region) = (&bucket.endpoint.service, &bucket.region);
        let place = &bucket.endpoint.origin;
        self.add(
            "endpoint",
            CheckState::Fine,
            format!("{service} in region {region}, at {place}"),
            None,
        );
        match bucket.credentials.get() {
            Ok(known) => self.add("credentials", CheckState::Fine, format!("from {}", known.source), None),
            Err(error) => return self.fail("credentials", &error),
        }
        let object = match self.find() {
            Ok(object) => object,
            // For a test of writes the name need not exist.
            Err(error) if self.writes && error.kind() == ErrorKind::NotFound && self.is_listed() => None,
            Err(error) => return self.fail("access", &error),
        };
        let is_object = object.is_some() && self.store.open(&[Named::new(self.name)]).is_ok();
        self.look_at(object.as_ref());
        if self.writes {
            self.try_writing(is_object);
        }
    }

    /// Whether the name can be listed.
    fn is_listed(&self) -> bool {
        let inside = self.store.inside(self.name);
        inside.is_ok_and(|inside| inside.list(&FIRST_PAGE).is_ok())
    }

    /// Measures reads of an object.
    fn look_at(&mut self, object: Option<&Arc<dyn Handle>>) {
        let Some(object) = object else {
            let mend = "name an object, or a prefix that contains one";
            return self.add(
                "access",
                CheckState::Note,
                "it can be listed but is empty".to_owned(),
                Some(mend),
            );
        };
        let seen = format!("{} can be opened", object.object().name);
        self.add("access", CheckState::Fine, seen, None);
        if let Err(error) = self.measure_latency(object) {
            return self.fail("latency", &error);
        }
        if let Err(error) = self.measure(object) {
            self.fail("throughput", &error);
        }
    }

    /// The object to read: the named one, or the largest that is found below the name. A name that ends with a slash
    /// stands for the objects below it, even if an empty object marks the folder.
    fn find(&self) -> Result<Option<Arc<dyn Handle>>> {
        let mut refused = None;
        if !self.name.is_empty() && !self.name.as_encoded_bytes().ends_with(b"/") {
            match self.store.open(&[Named::new(self.name)]) {
                Ok(mut opened) => return Ok(opened.pop()),
                Err(error) => refused = Some(error),
            }
        }
        match (self.largest_below()?, refused) {
            (Some((inside, named)), _) => Ok(inside.open(&[named])?.pop()),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(None),
        }
    }

    /// The largest object of the first pages below the name, level by level. The search ends at an object that is large
    /// enough to measure with.
    fn largest_below(&self) -> Result<Option<(Arc<dyn Store>, Named)>> {
        let mut folders: VecDeque<Arc<dyn Store>> = VecDeque::from([Arc::new(self.store.inside(self.name)?) as _]);
        let mut largest: Option<(Arc<dyn Store>, Named)> = None;
        for _ in 0..LISTINGS_MAX {
            let Some(folder) = folders.pop_front() else {
                break;
            };
            let page = folder.list(&FIRST_PAGE)?;
            let found = page.objects.into_iter().max_by_key(|object| object.bytes);
            if let Some(found) = found.filter(|found| largest.as_ref().is_none_or(|(_, best)| found.bytes > best.bytes))
            {
                let is_enough = found.bytes >= Some(SAMPLE_BYTES_MAX);
                largest = Some((Arc::clone(&folder), found));
                if is_enough {
                    break;
                }
            }
            let room = LISTINGS_MAX.saturating_sub(folders.len());
            for name in page.folders.iter().take(room) {
                folders.push_back(folder.below(name, Missing::Refuse)?);
            }
        }
        Ok(largest)
    }

    /// Requests one byte several times: measures the latency, and checks the server's clock and its checksums.
    fn measure_latency(&mut self, object: &Arc<dyn Handle>) -> Result<()> {
        let bucket = Arc::clone(self.store.bucket());
        let name = object.object().name;
        let key = name.strip_prefix(&bucket.describe("")).unwrap_or_default();
        let key = key.split("?versionId=").next().unwrap_or_default();
        let request = |method, unsigned| BucketRequest {
            unsigned,
            expected: &[200, 206, 416],
            ..BucketRequest::new(method, "read", &name, key)
        };
        let mut times = Vec::new();
        let mut date = None;
        let one_byte = [(RANGE, "bytes=0-0")];
        // The first request opens the connection.
        for number in 0..=LATENCY_REQUESTS {
            let start = Instant::now();
            let response = bucket.request(&request(Method::GET, &one_byte))?;
            if number > 0 {
                times.push(start.elapsed());
            }
            date = HttpResponse::of(&response).date("date");
        }
        times.sort_unstable();
        let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let seen = format!("first byte after {:.1} ms, at worst {:.1} ms", ms(median), ms(worst));
        self.add("latency", CheckState::Fine, seen, None);
        self.compare_clocks(date);
        let response = bucket.request(&request(Method::HEAD, &[]))?;
        self.look_for_checksum(response.headers());
        Ok(())
    }

    /// Compares this machine's clock with the server's.
    fn compare_clocks(&mut self, date: Option<SystemTime>) {
        match date.map(|there| Skew::between(SystemTime::now(), there)) {
            Some(skew) if skew.by > SKEW_MAX => {
                let seen = format!("this machine's clock is {skew} the server's");
                self.add(
                    "clock",
                    CheckState::Wrong,
                    seen,
                    Some("set the clock, for example with `chronyc makestep`"),
                );
            }
            Some(skew) => self.add("clock", CheckState::Fine, format!("{skew} the server's"), None),
            None => self.add(
                "clock",
                CheckState::Note,
                "the server does not report its time".to_owned(),
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
            self.add("checksum", CheckState::Fine, seen, None);
        } else {
            let seen = "the service keeps no checksum of the object";
            let mend = "upload with a checksum, for example `aws s3 cp --checksum-algorithm CRC64NVME`";
            self.add("checksum", CheckState::Note, seen.to_owned(), Some(mend));
        }
    }

    /// Reads a sample with one connection and with many.
    fn measure(&mut self, object: &Arc<dyn Handle>) -> Result<()> {
        let bytes = object.object().bytes.min(SAMPLE_BYTES_MAX);
        if bytes < 2 << 20 {
            let seen = "the object is too small to measure with".to_owned();
            self.add(
                "throughput",
                CheckState::Note,
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
        self.add("throughput", CheckState::Fine, seen, None);
        let cpu = (many.cpu_user_s + many.cpu_system_s) / many.seconds.max(1e-9);
        let seen = match many.bound_by {
            Bound::Network if cpu > 0.8 => format!("receiving: it keeps {cpu:.1} cores busy"),
            Bound::Network if gain > GAIN_MIN => {
                "the service's rate per connection: more connections are faster".to_owned()
            }
            Bound::Network => "the network or the service: more connections are no faster".to_owned(),
            other => format!("{other}"),
        };
        self.add("bottleneck", CheckState::Fine, seen, None);
        if let Some(sockets) = &many.sockets {
            self.checks.push(connections(sockets));
        }
        Ok(())
    }
}

/// Checks the counters of a transfer's connections and of the network interfaces.
pub fn connections(seen: &Sockets) -> StoreCheck {
    let lost = seen.retransmits + seen.out_of_order;
    let dropped: u64 = seen.interfaces.iter().map(|i| i.dropped + i.errors).sum();
    let (state, mend) = match (lost, dropped) {
        (0, 0) => (CheckState::Fine, None),
        (_, 0) => (
            CheckState::Note,
            Some("packets were lost or delayed: check the counters of the switches"),
        ),
        _ => (
            CheckState::Note,
            Some("an interface of this machine drops packets: check `ethtool -S` and its ring sizes"),
        ),
    };
    let lines = seen.to_string();
    let lines: Vec<_> = lines.lines().map(str::trim).collect();
    StoreCheck {
        name: "connections",
        state,
        seen: lines.join("; "),
        mend: mend.map(str::to_owned),
    }
}

fn read(store: &S3, object: &Arc<dyn Handle>, bytes: u64, depth: u32, usual: &Settings) -> Result<Receipt> {
    let executor = Executor::new(Settings {
        depth,
        drive_lanes: 1,
        // Even a small sample is split into many requests.
        chunk_bytes: (bytes / 16).clamp(1 << 20, 8 << 20) & !0xfff,
        ..*usual
    })?;
    let region = Arc::new(Region::host(bytes)?);
    region.populate();
    let moves = vec![Extent::new(0, bytes).into()];
    let objects = Objects::new(Arc::new(store.clone()), vec![Arc::clone(object)]);
    executor.read(objects, moves, &region, Choice::Auto)?.wait()
}
