//! Invalid machines and loads are refused with the field, the value, the allowed values, and the line.

#![expect(clippy::unwrap_used, reason = "a test")]

use straightway_pcie::{self as pcie, PcieScenario};
use straightway_scenario::check;

/// The first refusal of the article's case with `old` replaced by `new`.
fn refused(old: &str, new: &str) -> String {
    let text = pcie::case("article-8gpu").unwrap().text;
    assert!(text.contains(old), "the case has {old}");
    let refusals = check::read::<PcieScenario>(&text.replace(old, new)).unwrap_err();
    refusals.0[0].to_string()
}

/// The line of the first occurrence of `old` in the article's case.
fn line(old: &str) -> usize {
    let text = pcie::case("article-8gpu").unwrap().text;
    1 + text[..text.find(old).unwrap()].matches('\n').count()
}

#[test]
fn a_loop_is_refused() {
    let text = refused("parent = \"host\"", "parent = \"switch\"");
    let at = line("parent = \"host\"");
    assert!(
        text.starts_with(&format!("line {at}: node[1].parent = switch: ")),
        "{text}"
    );
    assert!(text.contains("leads back to itself"), "{text}");
}

#[test]
fn an_unknown_parent_is_refused() {
    let at = line("parent = \"storage\"");
    assert_eq!(
        refused("parent = \"storage\"", "parent = \"attic\""),
        format!("line {at}: node[4].parent = attic: allowed is the id of another node")
    );
}

#[test]
fn two_parents_are_refused_as_a_list_and_as_a_duplicate() {
    let list = refused("parent = \"storage\"", "parent = [\"storage\", \"host\"]");
    assert!(list.contains("node[4].parent") && list.contains("a string"), "{list}");
    let twin = "[[node]]\nid = \"gpu3\"\nkind = \"gpu\"\nparent = \"host\"\ngen = 5\nlanes = 16\n\n[[stream]]";
    let twin = refused("[[stream]]", twin);
    assert!(
        twin.contains("node[5].id = gpu3") && twin.contains("one parent"),
        "{twin}"
    );
}

#[test]
fn a_link_without_bandwidth_is_refused() {
    for (new, want) in [
        ("lanes = 0", "node[4].lanes = 0: allowed is 1, 2, 4, 8 or 16"),
        (
            "lanes = 4\nmedia_rate = 0",
            "node[4].media_rate = 0 B/s: allowed is from 1 MB/s to 10 TB/s",
        ),
        ("", "node[4].gen = gen 5, no lanes, no rate"),
    ] {
        let text = refused("lanes = 4", new);
        assert!(text.contains(want), "{text}");
    }
}

#[test]
fn nan_and_other_invalid_numbers_are_refused() {
    for value in ["nan", "inf", "-1", "\"much\"", "1e30", "0"] {
        let text = refused("size = \"32MiB\"", &format!("size = {value}"));
        let at = line("size = \"32MiB\"");
        assert!(text.starts_with(&format!("line {at}: stream[0].size = ")), "{text}");
    }
}

#[test]
fn ten_billion_tlps_are_refused() {
    let text = refused("size = \"32MiB\"", "size = \"320GB\"");
    assert!(
        text.contains("stream[0].size") && text.contains("at most 1000000000 TLPs"),
        "{text}"
    );
}

#[test]
fn a_load_beyond_the_simulated_time_is_refused() {
    let text = refused("size = \"32MiB\"", "size = \"8GiB\"\nstart = \"999.9s\"");
    assert!(text.contains("takes 1000.5 s at the least"), "{text}");
}

#[test]
fn a_port_with_too_many_inputs_is_refused() {
    let text = refused("count = 8\nparent = \"storage\"", "count = 64\nparent = \"storage\"");
    assert!(
        text.contains("64 on storage: allowed is at most 63 links below it"),
        "{text}"
    );
}

#[test]
fn an_empty_group_is_the_only_refusal() {
    let text = refused("count = 8\nparent = \"storage\"", "count = 0\nparent = \"storage\"");
    assert!(text.contains("node[4].count = 0"), "{text}");
}

#[test]
fn fields_of_another_kind_of_node_are_refused() {
    for (old, new, want) in [
        (
            "kind = \"gpu\"",
            "kind = \"gpu\"\nmedia_rate = \"5GB/s\"",
            "only on a drive or an HCA",
        ),
        (
            "kind = \"switch\"",
            "kind = \"switch\"\nmemory_rate = \"5GB/s\"",
            "only where data ends",
        ),
        (
            "to = \"gpu\"",
            "to = \"host\"\nmode = \"read\"",
            "hosts have no DMA engine",
        ),
        ("to = \"gpu\"", "to = \"storage\"", "data ends there"),
        ("to = \"gpu\"", "to = \"nvme\"", "another node than `from`"),
        (
            "to = \"gpu\"",
            "to = \"gpu\"\nmode = \"read\"\nfence = \"16k\"",
            "only on writes",
        ),
        ("mps = 256", "mps = 300", "128, 256, 512"),
        ("gen = 5", "gen = 9", "a generation from 1 to 6"),
    ] {
        let text = refused(old, new);
        assert!(text.contains(want), "{text}");
    }
}

#[test]
fn a_link_that_takes_a_second_to_cross_is_refused() {
    let text = refused("mps = 256", "mps = 256\nlink_latency = \"1s\"");
    assert!(text.contains("pcie.link_latency"), "{text}");
}
