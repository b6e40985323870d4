//! The claims of two articles about PCIe, compared with what follows from their own numbers.
//!
//! The scenarios named after the articles reproduce their cases; these are the claims around them.
//! Every figure in `model_says` is computed here from [`super::link`] or from the article's own
//! inputs, so a change of the model shows.

use straightway_core::{Bytes, Rate, Seconds};

use super::{
    link::{Generation, Width},
    scenario::Article,
};
use straightway_scenario::provenance::Correction;

const GEN3_X16: Width = Width {
    generation: Generation::Gen3,
    lanes: 16,
};
const GEN5_X16: Width = Width {
    generation: Generation::Gen5,
    lanes: 16,
};
const GEN5_X4: Width = Width {
    generation: Generation::Gen5,
    lanes: 4,
};
const GEN6_X16: Width = Width {
    generation: Generation::Gen6,
    lanes: 16,
};

/// A transfer long enough that its last TLP does not matter.
const LONG_BYTES: u64 = 1 << 20;

/// The article's load: 16 GB over 8 drives, in chunks of 16 KB.
const DRIVES: u64 = 8;
const DRIVE: Bytes = Bytes::gib(2);
const CHUNK: Bytes = Bytes::kib(16);
const BATCH: Bytes = Bytes::kib(64);

/// The claims of an article, each with the computed figure.
pub fn corrections(article: Article) -> Vec<Correction> {
    match article {
        Article::Contention => {
            let mut all = rates();
            all.extend(arbitration());
            all.extend(fences());
            all
        }
        Article::Flit => flit(),
    }
}

fn correction(claim: &str, article: &str, model: String, holds: bool, why: &str) -> Correction {
    Correction {
        claim: claim.to_owned(),
        article_says: article.to_owned(),
        model_says: model,
        holds,
        fitted: false,
        why: why.to_owned(),
    }
}

/// Whether a computed figure is the published one, within a share of it.
fn near(computed: f64, published: f64, share: f64) -> bool {
    (computed / published - 1.0).abs() <= share
}

/// Figures of an article are rounded to two digits.
const ROUNDED: f64 = 0.05;

fn rates() -> Vec<Correction> {
    let gen5 = GEN5_X16.raw_bytes_per_s();
    let uplink = GEN5_X16.write_bytes_per_s(LONG_BYTES, 256);
    let share = 100.0 * 8.0 * 6.3e9 / uplink;
    let drive = GEN5_X4.write_bytes_per_s(LONG_BYTES, 512);
    vec![
        correction(
            "eight GPUs get 6.3 GB/s each where one gets 14.2",
            "45 %, by arbitration and context switches",
            format!(
                "8 × 6.3 = 50.4 GB/s is {share:.0} % of one Gen5 x16 uplink at MPS 256 ({:.2} GB/s); \
                 14.2 is one Gen5 x4 drive ({:.2} GB/s at MPS 512)",
                uplink / 1e9,
                drive / 1e9
            ),
            near(8.0 * 6.3e9, uplink, ROUNDED) && near(14.2e9, drive, ROUNDED),
            "the figures hold; plain sharing of one uplink explains them, no overhead is needed",
        ),
        correction(
            "a Gen5 x16 slot carries 128 GB/s",
            "128 GB/s",
            format!("{} each way, {} of payload at MPS 256", Rate(gen5), Rate(uplink)),
            near(gen5, 128e9, ROUNDED),
            "128 counts both directions, before encoding and headers",
        ),
        correction(
            "a full x16 link is 16 GB/s",
            "16 GB/s at 16 GT/s",
            format!(
                "{} is Gen3; Gen5 x16 is {}",
                Rate(GEN3_X16.raw_bytes_per_s()),
                Rate(gen5)
            ),
            near(gen5, 16e9, ROUNDED),
            "the article names Gen5 links and uses a Gen3 rate",
        ),
        correction(
            "the crossbar takes 50 to 100 ns to switch between 128 B TLPs",
            "50 to 100 ns each",
            format!("{} to {} on any link", switched(100e-9), switched(50e-9)),
            switched(50e-9).0 >= 6.3e9,
            "paid per TLP it would cap every link far below what the article measured; a crossbar is \
             pipelined, so its latency does not limit it",
        ),
    ]
}

/// The rate of a link if every 128-byte TLP waited for `pause_s` first.
fn switched(pause_s: f64) -> Rate {
    let bytes = 128.0;
    Rate(bytes / (pause_s + bytes / GEN5_X16.raw_bytes_per_s()))
}

fn arbitration() -> Vec<Correction> {
    vec![
        correction(
            "drives, HCAs and GPUs use traffic classes 1, 2 and 3 with their priorities",
            "TC1 highest, TC2, TC3",
            "all traffic is TC0 on VC0 unless software maps it otherwise".to_owned(),
            false,
            "no driver does; `article-classes` shows it as a what-if, `[channels]` sets it",
        ),
        correction(
            "switches weight their ports by bus, device and function number",
            "WFQ weighted by BDF",
            "round robin between ports is the default; weights are set by a table, if at all".to_owned(),
            false,
            "an ID is not a weight; `arbiter = \"weighted_fair\"` and `weight` show it as a what-if",
        ),
        correction(
            "a read may be reordered ahead of a write to another address",
            "reads pass writes, a configuration write fences",
            "a read never passes a posted write on its way; a flush is a read".to_owned(),
            false,
            "PCIe's ordering rules forbid it in a path; a fence costs as much as a read behind \
             a write: 613 ns against 506 for a read alone (pcie-bench)",
        ),
    ]
}

fn fences() -> Vec<Correction> {
    let per_drive = DRIVE.0 / CHUNK.0;
    let all = DRIVES * per_drive;
    let range = |count: u64, low_ns: u32, high_ns: u32| {
        let total = |ns: u32| Seconds(count as f64 * f64::from(ns) * 1e-9);
        format!("{} to {}", total(low_ns), total(high_ns))
    };
    let load_s = DRIVE.0 as f64 / 6.3e9;
    let share = |ns: f64| 100.0 * per_drive as f64 * ns * 1e-9 / load_s;
    vec![
        correction(
            "16 GB from 8 drives are 131,072 chunks of 16 KB",
            "131,072",
            format!("{all}; {per_drive} is one drive's {DRIVE}"),
            all == 131_072,
            "16 GiB / 16 KiB",
        ),
        correction(
            "fences of 500 to 1500 ns cost 65 to 196 ms in all",
            "65 to 196 ms",
            format!(
                "{} per drive, {} summed over the drives",
                range(per_drive, 500, 1500),
                range(all, 500, 1500)
            ),
            near(all as f64 * 500e-9, 65e-3, ROUNDED),
            "that is one drive's share; the drives wait in parallel",
        ),
        correction(
            "fences add 5 to 15 % to the load",
            "5 to 15 %",
            format!(
                "{:.0} to {:.0} % of the {} a drive takes at 6.3 GB/s",
                share(500.0),
                share(1500.0),
                Seconds(load_s)
            ),
            near(share(500.0), 5.0, ROUNDED) && near(share(1500.0), 15.0, ROUNDED),
            "65 to 196 ms against a third of a second",
        ),
        correction(
            "one fence per 64 KB at 200 to 500 ns costs 5 to 12 ms",
            "5 to 12 ms",
            format!("{} per drive", range(DRIVE.0 / BATCH.0, 200, 500)),
            near((DRIVE.0 / BATCH.0) as f64 * 200e-9, 5e-3, ROUNDED),
            "32,768 batches per drive; a flush is a read, which takes at least 506 ns",
        ),
    ]
}

fn flit() -> Vec<Correction> {
    let usable = GEN6_X16.usable_bytes_per_s(256);
    let gen6 = GEN6_X16.write_bytes_per_s(LONG_BYTES, 256);
    let gen5 = GEN5_X16.write_bytes_per_s(LONG_BYTES, 256);
    vec![
        correction(
            "Gen6 doubles the bandwidth of Gen5",
            "doubling",
            format!(
                "x16 at MPS 256: {:.1} GB/s after {:.1}, {:.2} times; {:.1} GB/s are space for TLPs",
                gen6 / 1e9,
                gen5 / 1e9,
                gen6 / gen5,
                usable / 1e9
            ),
            gen6 >= 2.0 * gen5,
            "a little more than double: a flit's 20 bytes in 256 cost less than framing, Acks and \
             flow control did",
        ),
        correction(
            "bursts trigger FEC retransmissions, which add jitter",
            "FEC retransmits",
            "FEC corrects in place at a fixed delay; only a CRC failure after it replays a flit".to_owned(),
            false,
            "errors come from the wire, not from bursts; a replay is rare (about one flit in \
             200,000 at the specified error rate)",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(article: Article, claim: &str) -> String {
        let all = corrections(article);
        let found = all.iter().find(|c| c.claim.contains(claim));
        found.expect("the claim is listed").model_says.clone()
    }

    #[test]
    fn plain_sharing_explains_the_eight_gpu_figure() {
        let text = says(Article::Contention, "eight GPUs");
        for figure in ["97 %", "51.98", "14.05"] {
            assert!(text.contains(figure), "{text}");
        }
    }

    #[test]
    fn a_context_switch_per_tlp_would_cap_a_link_at_1_25_to_2_46_gb_a_second() {
        assert_eq!(
            says(Article::Contention, "crossbar"),
            "1.25 GB/s to 2.46 GB/s on any link"
        );
    }

    #[test]
    fn a_gen5_x16_link_is_63_gb_a_second_each_way_and_16_is_gen3() {
        assert!(says(Article::Contention, "128 GB/s").starts_with("63 GB/s each way"));
        assert!(says(Article::Contention, "full x16").starts_with("15.8 GB/s is Gen3"));
    }

    #[test]
    fn the_fence_arithmetic_is_the_corrected_one() {
        assert!(says(Article::Contention, "chunks").starts_with("1048576; 131072"));
        let text = says(Article::Contention, "65 to 196");
        assert!(text.contains("65.5 ms to 197 ms per drive"), "{text}");
        assert!(text.contains("524 ms to 1.57 s summed"), "{text}");
        let text = says(Article::Contention, "64 KB");
        assert_eq!(text, "6.55 ms to 16.4 ms per drive");
    }

    #[test]
    fn gen6_flits_give_118_and_111_gb_a_second() {
        let text = says(Article::Flit, "doubles");
        assert!(text.contains("111.1 GB/s") && text.contains("118.0 GB/s"), "{text}");
    }
}
