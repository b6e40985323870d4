//! Memory registration: its cost before the first byte moves, and the number of I/Os that amortise it.
//!
//! Registering a buffer with the adapter pins its pages and loads their translations:
//! `Treg = Tf + ⌈S/page⌉·Tp`. Paid for every I/O, it takes time from the transfer; paid once, it vanishes. The
//! comparison is about *when* memory is registered, not about whose memory it is: RDMA that registers once equals GDS,
//! apart from the bounce copy. Untouched memory is faulted in and zeroed during registration, by as many threads as
//! touch it. GPU memory is pinned through the driver's peer-memory calls: a fixed cost of milliseconds per call, and little
//! per byte, because the driver maps it in pages of 2 MiB. Many tensors are many calls, one range is one. The
//! adapter's translation cache is the second effect: a working set larger than the cache pays for misses.

mod basis;
mod translation;

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

pub use self::translation::{CachePoint, Translation, TranslationOutcome, translated_per_s};
use straightway_scenario::check::Refusals;
use straightway_scenario::{
    check::{BYTES_ANY, Checkable, Checker, RATE_ANY, TIME_ANY, TIME_POSITIVE},
    provenance::{Basis, Citation, Formula},
};

use crate::question::Question;

/// The input of the topic `registration`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RegistrationQuestion {
    /// The buffer size, which is also the size of one I/O.
    pub buffer: Bytes,
    /// I/Os made with the buffer.
    pub ios: u64,
    /// The rate of the link.
    pub link: Rate,
    /// The page size of host memory.
    pub page: Bytes,
    /// The huge page size to compare with.
    pub huge_page: Bytes,
    /// The fixed cost of a registration: the system call.
    pub fixed: Seconds,
    /// The time to pin and translate one page.
    pub per_page: Seconds,
    /// The time to fault in one untouched page.
    pub fault: Seconds,
    /// The rate at which one thread zeroes memory.
    pub zero_rate: Rate,
    /// Threads that register host memory, each its part: they touch, pin and translate.
    pub threads: u64,
    /// The calls that register the buffer: one for a range, or one for each tensor.
    pub calls: u64,
    /// The rate of the bounce copy that GDS saves; absent if no copy is counted.
    pub copy_rate: Option<Rate>,
    /// The costs of registering GPU memory.
    pub gds: GdsCosts,
    /// The adapter's translation cache.
    pub translation: Translation,
    /// The share of time spent on transfer from which a registration counts as amortised.
    pub efficient: f64,
    /// A claimed crossover, in I/Os. The answer gives the set-up cost that would produce it.
    pub crossover_claimed: u64,
}

/// The costs of registering GPU memory once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GdsCosts {
    /// The claimed one-off cost, independent of the size.
    pub setup: Seconds,
    /// The page size in which the driver maps GPU memory.
    pub page: Bytes,
    /// The fixed cost of registering GPU memory: the driver's peer-memory call.
    pub fixed: Seconds,
    /// The time to pin and map one GPU page.
    pub per_page: Seconds,
}

/// The answer of the topic `registration`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RegistrationAnswer {
    /// The transfer time of one I/O.
    pub transfer_s: f64,
    /// The time of the bounce copy of one I/O.
    pub copy_s: f64,
    /// The cost of registering the buffer in pages of `page` bytes.
    pub register: Cost,
    /// The cost in huge pages.
    pub register_huge: Cost,
    /// The cost of registering untouched memory: page faults and zeroing are added.
    pub register_untouched: Cost,
    /// The cost of registering the same amount of GPU memory through the peer-memory calls.
    pub register_gpu_pages: Cost,
    /// Registration time divided by transfer time.
    pub register_over_transfer: f64,
    /// Registration time divided by the claimed one-off set-up time.
    pub setup_gain_claimed: f64,
    /// Registration time divided by the time of registering GPU pages.
    pub setup_gain_counted: f64,
    /// The share of time spent on transfer after `ios` I/Os.
    pub efficiency: Efficiency,
    /// The first I/O at which GDS, including the registration of its GPU pages, has taken no more time in total than
    /// RDMA that registers for each I/O.
    pub crossover: Option<u64>,
    /// The lowest set-up cost at which the claimed crossover would hold.
    pub setup_for_claim_from_s: f64,
    /// The highest set-up cost at which the claimed crossover would hold.
    pub setup_for_claim_to_s: f64,
    /// The time of RDMA that registers once divided by the time of GDS, after `ios` I/Os, without the bounce copy.
    pub gain_if_rdma_registers_once: f64,
    /// The same ratio after a million I/Os: its limit.
    pub gain_if_rdma_registers_once_at_last: f64,
    /// The performance of the translation cache.
    pub cache: TranslationOutcome,
    /// The crossover by buffer size and link rate.
    pub frontier: Vec<Frontier>,
    /// The share of time spent on transfer from which a registration counts as amortised.
    pub efficient: f64,
    /// The efficiency of registering for each I/O and once, by buffer size, number of I/Os and link rate.
    pub surface: Vec<EfficiencyPoint>,
    /// The formulas and constants behind the answer.
    pub basis: Basis,
}

/// The cost of a registration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Pages to pin.
    pub pages: u64,
    /// The time.
    pub seconds: f64,
}

/// The share of time spent on transfer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Efficiency {
    /// RDMA that registers for each I/O.
    pub per_io: f64,
    /// RDMA that registers for each I/O, in huge pages.
    pub per_io_huge: f64,
    /// RDMA that registers once.
    pub persistent: f64,
    /// GDS, set up once at the claimed cost.
    pub gds: f64,
    /// The share of time lost to registration if each I/O registers.
    pub per_io_lost: f64,
}

/// The crossover at one buffer size and link rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Frontier {
    /// The buffer size.
    pub buffer_bytes: u64,
    /// The link rate.
    pub link_bytes_per_s: f64,
    /// The first I/O at which GDS wins, including the registration of its GPU pages; `None` if it never does.
    pub crossover: Option<u64>,
    /// I/Os after which RDMA that registers once spends the share `efficient` of its time on transfer.
    pub ios_persistent: f64,
    /// The same count for GDS.
    pub ios_gds: f64,
}

/// The efficiencies at one buffer size, number of I/Os and link rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EfficiencyPoint {
    /// The buffer size.
    pub buffer_bytes: u64,
    /// The number of I/Os.
    pub ios: u64,
    /// The link rate.
    pub link_bytes_per_s: f64,
    /// RDMA that registers for each I/O.
    pub per_io: f64,
    /// RDMA that registers once.
    pub persistent: f64,
    /// GDS, which registers its GPU pages once.
    pub gds: f64,
}

const ARTICLE: Citation = Citation::read(
    "GPUDirect Storage: Engineering the Peer-to-Peer Data Path",
    "registration overhead",
);
const PCIE_BENCH: Citation = Citation::read(
    "pcie-bench data, Broadwell",
    "64 B random reads over the IOTLB; fits within 8.4 %",
);

const FORMULAS: [Formula; 5] = [
    Formula {
        gives: "registration time",
        text: "Treg = (calls·Tf + ⌈S/page⌉·Tp)/threads; untouched: + (⌈S/page⌉·Tfault + S/zeroing)/threads; GPU memory: calls·Tf + ⌈S/page⌉·Tp with its own Tf, Tp and page",
        source: ARTICLE,
    },
    Formula {
        gives: "registration efficiency",
        text: "Reff(n) = n·Tx / (k·Treg + n·Tx), k = 1 registered once, n for each I/O",
        source: ARTICLE,
    },
    Formula {
        gives: "crossover",
        text: "n* = ⌈G0 / (Treg + Tcopy)⌉, G0 = max(claimed set-up, Treg in GPU pages)",
        source: Citation::computed("n·(Treg + Tcopy + Tx) ≥ G0 + n·Tx", ""),
    },
    Formula {
        gives: "I/Os until registering once is efficient",
        text: "n = ⌈e/(1−e) · Treg/Tx⌉, e the share of time that is to be transfer; G0 in place of Treg for GDS",
        source: Citation::computed("n·Tx/(Treg + n·Tx) ≥ e", ""),
    },
    Formula {
        gives: "translation cache",
        text: "rate = min(1/T0, 1/((1−h)·Tmiss)), h = min(1, entries·page/W)",
        source: PCIE_BENCH,
    },
];

impl Default for RegistrationQuestion {
    fn default() -> Self {
        Self {
            buffer: Bytes::mib(1),
            ios: 4,
            link: Rate::gbit(100.0),
            page: Bytes::kib(4),
            huge_page: Bytes::mib(2),
            fixed: Seconds(10e-6),
            per_page: Seconds(0.5e-6),
            fault: Seconds(3e-6),
            zero_rate: Rate(10e9),
            threads: 1,
            calls: 1,
            copy_rate: None,
            gds: GdsCosts::default(),
            translation: Translation::default(),
            efficient: 0.9,
            crossover_claimed: 3,
        }
    }
}

impl Default for GdsCosts {
    fn default() -> Self {
        Self {
            setup: Seconds(50e-6),
            page: Bytes::mib(2),
            fixed: Seconds(1.5e-3),
            per_page: Seconds(0.5e-6),
        }
    }
}

impl Checkable for RegistrationQuestion {
    fn check(&self, c: &mut Checker) {
        let pages = Bytes(512)..=Bytes::gib(16);
        c.bytes("buffer", self.buffer, BYTES_ANY);
        c.count("ios", self.ios, 1..=1_000_000_000_000);
        c.rate("link", self.link, RATE_ANY);
        c.bytes("page", self.page, pages.clone());
        c.bytes("huge_page", self.huge_page, pages.clone());
        c.seconds("fixed", self.fixed, TIME_ANY);
        c.seconds("per_page", self.per_page, TIME_POSITIVE);
        c.seconds("fault", self.fault, TIME_ANY);
        c.rate("zero_rate", self.zero_rate, RATE_ANY);
        c.count("threads", self.threads, 1..=4096);
        c.count("calls", self.calls, 1..=1_000_000_000);
        if let Some(rate) = self.copy_rate {
            c.rate("copy_rate", rate, RATE_ANY);
        }
        c.within("gds", |c| {
            c.seconds("setup", self.gds.setup, TIME_POSITIVE);
            c.bytes("page", self.gds.page, pages);
            c.seconds("fixed", self.gds.fixed, TIME_ANY);
            c.seconds("per_page", self.gds.per_page, TIME_POSITIVE);
        });
        c.nested("translation", &self.translation);
        c.range("efficient", self.efficient, 0.01..=0.999_999, "");
        c.count("crossover_claimed", self.crossover_claimed, 1..=1_000_000);
    }
}

/// The cost `Treg` of registering a buffer.
pub fn register(buffer: Bytes, page: Bytes, fixed: Seconds, per_page: Seconds) -> Cost {
    let pages = buffer.0.div_ceil(page.0);
    Cost {
        pages,
        seconds: fixed.0 + pages as f64 * per_page.0,
    }
}

/// `Reff(n)`: the share of time spent on transfer with `registrations` registrations for `ios` I/Os.
pub fn efficiency(ios: u64, registrations: u64, register_s: f64, transfer_s: f64) -> f64 {
    let moving = ios as f64 * transfer_s;
    moving / (registrations as f64 * register_s + moving)
}

/// The first I/O at which a one-off set-up is amortised by saving `saved_s` per I/O.
pub fn crossover(setup_s: f64, saved_s: f64) -> Option<u64> {
    if saved_s <= 0.0 {
        return None;
    }
    let ios = (setup_s / saved_s).ceil().max(1.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded above")]
    (ios < 1e18).then_some(ios as u64)
}

impl RegistrationQuestion {
    /// Computes the answer.
    fn compute(&self) -> RegistrationAnswer {
        let transfer_s = self.buffer.0 as f64 / self.link.0;
        let copy_s = self.copy_s(self.buffer);
        let cost = |page| self.host_cost(self.buffer, page);
        let register = cost(self.page);
        let (register_huge, register_gpu_pages) = (cost(self.huge_page), self.gpu_cost(self.buffer));
        let register_untouched = self.untouched(&register);
        let (once, setup_s) = (register.seconds, self.gds.setup.0);
        let saved_s = once + copy_s;
        let claimed = self.crossover_claimed as f64;
        let both_once = |ios: f64| (once + ios * transfer_s) / (setup_s + ios * transfer_s);
        RegistrationAnswer {
            transfer_s,
            copy_s,
            register_over_transfer: once / transfer_s,
            setup_gain_claimed: once / setup_s,
            setup_gain_counted: once / register_gpu_pages.seconds,
            efficiency: Efficiency {
                per_io: efficiency(self.ios, self.ios, once, transfer_s),
                per_io_huge: efficiency(self.ios, self.ios, register_huge.seconds, transfer_s),
                persistent: efficiency(self.ios, 1, once, transfer_s),
                gds: efficiency(self.ios, 1, setup_s, transfer_s),
                per_io_lost: once / (once + transfer_s),
            },
            crossover: crossover(self.gds_setup_s(self.buffer), saved_s),
            setup_for_claim_from_s: (claimed - 1.0) * saved_s,
            setup_for_claim_to_s: claimed * saved_s,
            gain_if_rdma_registers_once: both_once(self.ios as f64),
            gain_if_rdma_registers_once_at_last: both_once(1e6),
            cache: self.cache(),
            frontier: self.frontier(),
            efficient: self.efficient,
            surface: self.surface(),
            basis: self.basis(),
            register,
            register_huge,
            register_untouched,
            register_gpu_pages,
        }
    }

    /// The cost of registering untouched memory: every page is faulted in and zeroed first.
    fn untouched(&self, touched: &Cost) -> Cost {
        let faults_s = touched.pages as f64 * self.fault.0;
        let zeroing_s = self.buffer.0 as f64 / self.zero_rate.0;
        Cost {
            pages: touched.pages,
            seconds: touched.seconds + (faults_s + zeroing_s) / self.threads as f64,
        }
    }

    /// The cost of registering touched host memory: the threads share calls and pages.
    fn host_cost(&self, buffer: Bytes, page: Bytes) -> Cost {
        let calls = Seconds(self.calls as f64 * self.fixed.0);
        let cost = register(buffer, page, calls, self.per_page);
        // A call is not divided: no more threads work than there are calls, or pages of one call.
        let shares = self.threads.min(self.calls.max(cost.pages)).max(1);
        Cost {
            seconds: cost.seconds / shares as f64,
            ..cost
        }
    }

    /// The cost of registering GPU memory through the peer-memory calls. The driver takes one call at a time.
    fn gpu_cost(&self, buffer: Bytes) -> Cost {
        let calls = Seconds(self.calls as f64 * self.gds.fixed.0);
        register(buffer, self.gds.page, calls, self.gds.per_page)
    }

    fn copy_s(&self, buffer: Bytes) -> f64 {
        self.copy_rate.map_or(0.0, |rate| buffer.0 as f64 / rate.0)
    }

    fn cache(&self) -> TranslationOutcome {
        let cache = &self.translation;
        let at = |working_set| translated_per_s(cache, self.page, working_set);
        let operations_per_s = at(cache.working_set);
        TranslationOutcome {
            hits: cache.hits(self.page, cache.working_set),
            operations_per_s,
            share_of_best: operations_per_s * cache.hit.0,
            reach_bytes: cache.entries as f64 * self.page.0 as f64,
            reload_s_min: cache.workers as f64 * cache.reload_min.0,
            reload_s_max: cache.workers as f64 * cache.reload_max.0,
            curve: (16..=30)
                .map(|power| CachePoint {
                    working_set_bytes: 1 << power,
                    operations_per_s: at(Bytes(1 << power)),
                })
                .collect(),
        }
    }

    /// The axes of the frontier and the surface: buffers from 64 KiB to 1 GiB, links from 25 to 800 Gb/s.
    fn axes() -> (impl Iterator<Item = Bytes>, [f64; 6]) {
        let buffers = (16..=30).step_by(2).map(|power| Bytes(1 << power));
        (buffers, [25.0, 50.0, 100.0, 200.0, 400.0, 800.0])
    }

    fn frontier(&self) -> Vec<Frontier> {
        let (buffers, links) = Self::axes();
        buffers
            .flat_map(|buffer| links.map(|link| (buffer, Rate::gbit(link))))
            .map(|(buffer, link)| {
                let once = self.host_cost(buffer, self.page).seconds;
                // The one-off cost grows with the number of GPU pages. GDS uses the same link.
                let setup = self.gds_setup_s(buffer);
                Frontier {
                    buffer_bytes: buffer.0,
                    link_bytes_per_s: link.0,
                    crossover: crossover(setup, once + self.copy_s(buffer)),
                    ios_persistent: self.ios_until_efficient(once, buffer, link),
                    ios_gds: self.ios_until_efficient(setup, buffer, link),
                }
            })
            .collect()
    }

    /// The smallest `n` with `n·Tx/(Treg + n·Tx) ≥ e`, which is `⌈e/(1−e)·Treg/Tx⌉`.
    fn ios_until_efficient(&self, once_s: f64, buffer: Bytes, link: Rate) -> f64 {
        let transfer_s = buffer.0 as f64 / link.0;
        (self.efficient / (1.0 - self.efficient) * once_s / transfer_s)
            .ceil()
            .max(1.0)
    }

    fn surface(&self) -> Vec<EfficiencyPoint> {
        let (buffers, links) = Self::axes();
        let counts = [1u64, 2, 4, 8, 16, 64, 256, 1024];
        let mut cells = Vec::with_capacity(8 * counts.len() * links.len());
        for buffer in buffers {
            let once = self.host_cost(buffer, self.page).seconds;
            let setup = self.gds_setup_s(buffer);
            for ios in counts {
                for link in links.map(Rate::gbit) {
                    let transfer = buffer.0 as f64 / link.0;
                    cells.push(EfficiencyPoint {
                        buffer_bytes: buffer.0,
                        ios,
                        link_bytes_per_s: link.0,
                        per_io: efficiency(ios, ios, once, transfer),
                        persistent: efficiency(ios, 1, once, transfer),
                        gds: efficiency(ios, 1, setup, transfer),
                    });
                }
            }
        }
        cells
    }

    /// The set-up time including the GPU's pages; at least the claimed fixed cost.
    fn gds_setup_s(&self, buffer: Bytes) -> f64 {
        let counted = self.gpu_cost(buffer).seconds;
        self.gds.setup.0.max(counted)
    }
}

impl Question for RegistrationQuestion {
    const NAME: &'static str = "registration";
    type Answer = RegistrationAnswer;

    fn answer(&self) -> Result<RegistrationAnswer, Refusals> {
        Ok(self.compute())
    }

    fn drop_lists(answer: &mut RegistrationAnswer) {
        answer.frontier.clear();
        answer.surface.clear();
        answer.cache.curve.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use straightway_scenario::near::near;

    fn article() -> RegistrationQuestion {
        RegistrationQuestion {
            per_page: Seconds(1e-6),
            gds: GdsCosts {
                page: Bytes::kib(64),
                fixed: Seconds(10e-6),
                per_page: Seconds(1e-6),
                ..GdsCosts::default()
            },
            ..RegistrationQuestion::default()
        }
    }

    #[test]
    fn the_article_mixes_mb_and_mib_and_gets_23_and_86_percent() {
        // 80 µs is 1 MB at 100 Gb/s; 256 pages are 1 MiB.
        let register = register(Bytes::mib(1), Bytes::kib(4), Seconds(10e-6), Seconds(1e-6));
        assert_eq!(register.pages, 256);
        near(register.seconds, 266e-6, 1e-9);
        near(efficiency(1, 1, register.seconds, 80e-6), 0.23, 0.01);
        near(efficiency(4, 1, 50e-6, 80e-6), 0.86, 0.01);
    }

    #[test]
    fn strict_mib_gives_24_and_87_percent() {
        let answer = article().compute();
        near(answer.transfer_s, 83.9e-6, 0.001);
        near(answer.efficiency.per_io, 0.240, 0.002);
        near(answer.efficiency.gds, 0.870, 0.002);
    }

    #[test]
    fn gds_wins_at_the_first_io_and_the_third_needs_ten_times_the_setup() {
        let answer = article().compute();
        assert_eq!(answer.crossover, Some(1));
        near(answer.setup_for_claim_from_s, 532e-6, 1e-9);
        near(answer.setup_for_claim_to_s, 798e-6, 1e-9);
    }

    #[test]
    fn the_headline_and_the_frontier_have_the_same_crossover() {
        for (buffer, page) in [(Bytes::gib(1), Bytes::mib(2)), (Bytes::mib(1), Bytes::kib(4))] {
            let answer = RegistrationQuestion {
                buffer,
                page,
                ..RegistrationQuestion::default()
            }
            .compute();
            let at = |at: &&Frontier| at.buffer_bytes == buffer.0;
            let frontier = answer.frontier.iter().find(at).unwrap();
            assert_eq!(answer.crossover, frontier.crossover);
        }
        let large = RegistrationQuestion {
            buffer: Bytes::gib(1),
            page: Bytes::mib(2),
            ..RegistrationQuestion::default()
        };
        // 512 GPU pages of 0.5 µs and 1.5 ms, against 512 huge pages of 0.5 µs and 10 µs.
        assert_eq!(large.compute().crossover, Some(7));
    }

    #[test]
    fn published_registrations_lie_within_the_band() {
        // Mooncake#1468: 50 GB of untouched host memory in about a minute; cirrus-kv#102: 10 GB in 33 s.
        let untouched = |gb: u64, fault: f64, per_page: f64| {
            let asked = RegistrationQuestion {
                buffer: Bytes(gb * 1_000_000_000),
                fault: Seconds(fault),
                per_page: Seconds(per_page),
                ..RegistrationQuestion::default()
            };
            asked.compute().register_untouched.seconds
        };
        near(untouched(50, 3e-6, 0.5e-6), 60.0, 0.25);
        assert!(untouched(50, 0.25e-6, 0.1e-6) < 60.0 && untouched(50, 12e-6, 13e-6) > 60.0);
        assert!(untouched(10, 0.25e-6, 0.1e-6) < 33.0 && untouched(10, 12e-6, 13e-6) > 33.0);
    }

    #[test]
    fn a_range_of_gpu_memory_registers_in_one_call_and_tensors_in_many() {
        // One range of 51 GB: 17 ms; 1,265 tensors of it: 2.4 s. Neither was an input: a call takes 0.32 to 6 ms
        // (ModelExpress#267, gpunet#1, TransferQueue#79), a page as long as a page of the host.
        let registered = |calls, fixed: f64, per_page: f64| {
            let asked = RegistrationQuestion {
                buffer: Bytes(51_000_000_000),
                calls,
                gds: GdsCosts {
                    fixed: Seconds(fixed),
                    per_page: Seconds(per_page),
                    ..GdsCosts::default()
                },
                ..RegistrationQuestion::default()
            };
            asked.compute().register_gpu_pages.seconds
        };
        near(registered(1, 1.5e-3, 0.5e-6), 13.7e-3, 0.01);
        assert!(registered(1, 0.32e-3, 0.28e-6) < 17e-3 && registered(1, 6e-3, 0.71e-6) > 17e-3);
        near(registered(1265, 1.5e-3, 0.5e-6), 1.91, 0.01);
        assert!(registered(1265, 0.32e-3, 0.28e-6) < 2.4 && registered(1265, 6e-3, 0.71e-6) > 2.4);
    }

    #[test]
    fn threads_share_all_of_host_memory() {
        let one = RegistrationQuestion {
            buffer: Bytes::gib(1),
            ..RegistrationQuestion::default()
        };
        let eight = RegistrationQuestion {
            threads: 8,
            ..one.clone()
        };
        let (one, eight) = (one.compute(), eight.compute());
        near(
            one.register_untouched.seconds,
            8.0 * eight.register_untouched.seconds,
            1e-9,
        );
        near(one.register.seconds, 8.0 * eight.register.seconds, 1e-9);
        // The driver registers GPU memory one call after the other.
        near(one.register_gpu_pages.seconds, eight.register_gpu_pages.seconds, 1e-9);
    }

    #[test]
    fn registering_once_leaves_gds_no_lasting_advantage() {
        let answer = article().compute();
        assert!(answer.gain_if_rdma_registers_once_at_last < 1.00001);
        assert_eq!(crossover(50e-6, 0.0), None);
    }

    #[test]
    fn a_gigabyte_registers_in_262_ms_and_in_gpu_pages_in_8_to_16() {
        let asked = |per_page| RegistrationQuestion {
            buffer: Bytes::gib(1),
            per_page: Seconds(per_page),
            gds: GdsCosts {
                page: Bytes::kib(64),
                fixed: Seconds(10e-6),
                per_page: Seconds(per_page),
                ..GdsCosts::default()
            },
            ..article()
        };
        let answer = asked(1e-6).compute();
        near(answer.register.seconds, 0.262, 0.001);
        // 1e9 bytes at 100 Gb/s are 80 ms: 3.3 times less.
        near(answer.register.seconds / 0.080, 3.3, 0.01);
        assert_eq!(answer.register_gpu_pages.pages, 16_384);
        near(answer.register_gpu_pages.seconds, 16.4e-3, 0.005);
        near(asked(0.5e-6).compute().register_gpu_pages.seconds, 8.2e-3, 0.005);
    }

    #[test]
    fn sixty_four_workers_reload_in_128_to_320_microseconds() {
        let cache = article().compute().cache;
        near(cache.reload_s_min, 128e-6, 1e-9);
        near(cache.reload_s_max, 320e-6, 1e-9);
    }

    #[test]
    fn the_translation_cache_fits_the_measured_curve() {
        // pcie-bench, Broadwell, 64 B random reads, M/s; within 8.4 %.
        let cache = Translation::default();
        for (kib, measured) in [
            (256, 53.9),
            (512, 39.4),
            (1024, 28.0),
            (2048, 22.9),
            (4096, 20.8),
            (65_536, 19.2),
        ] {
            let rate = translated_per_s(&cache, Bytes::kib(4), Bytes::kib(kib)) / 1e6;
            near(rate, measured, 0.0845);
        }
    }

    #[test]
    fn the_frontier_is_the_first_io_at_the_required_efficiency() {
        let asked = RegistrationQuestion::default();
        for at in asked.compute().frontier {
            let once = register(Bytes(at.buffer_bytes), asked.page, asked.fixed, asked.per_page);
            let transfer_s = at.buffer_bytes as f64 / at.link_bytes_per_s;
            let reached = |ios: f64| ios * transfer_s / (once.seconds + ios * transfer_s);
            assert!(reached(at.ios_persistent) >= 0.9);
            assert!(at.ios_persistent <= 1.0 || reached(at.ios_persistent - 1.0) < 0.9);
        }
    }

    #[test]
    fn huge_pages_make_registration_cheap() {
        let answer = RegistrationQuestion {
            buffer: Bytes::gib(1),
            ..RegistrationQuestion::default()
        }
        .compute();
        assert_eq!(answer.register_huge.pages, 512);
        assert!(answer.efficiency.per_io_huge > 0.99 && answer.efficiency.per_io < 0.5);
    }

    #[test]
    fn measured_costs_of_a_page_explain_libfabric_4738() {
        // 256 GB took more than 20 s at 0.30 to 0.32 µs a page.
        let cost = register(Bytes(256_000_000_000), Bytes::kib(4), Seconds(0.0), Seconds(0.32e-6));
        near(cost.seconds, 20.0, 0.01);
    }
}
