//! Benchmark of planning up to a million extents: `cargo bench -p straightway-core`.
//!
//! Prints a table and, for `bench/results/`, a line of JSON. The memory is that of the finished plan. The
//! requests are built before the clock starts.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints its result")]

use std::time::Instant;

use straightway_core::{Alignment, Choice, Direction, Extent, Move, Object, Plan, Policy, Survey, Transfer};

const MIB: u64 = 1 << 20;

/// Extents in order or scattered, page-sized or unaligned like tensors.
fn moves(count: u64, scattered: bool, ragged: bool) -> Vec<Move> {
    let mut at = 0;
    let place = |i: u64| {
        // A full-period multiplicative shuffle of 0..count when scattered.
        let slot = if scattered {
            i.wrapping_mul(0x9E37_79B1) % count
        } else {
            i
        };
        let (offset, bytes) = if ragged {
            (slot * 9000 + 17, 5000)
        } else {
            (slot * 8192, 4096)
        };
        let m = Move {
            object: 0,
            extent: Extent::new(offset, bytes),
            at,
        };
        at += bytes;
        m
    };
    (0..count).map(place).collect()
}

/// The median of five runs: seconds to check and plan the transfer, and the plan's memory.
fn seconds(count: u64, scattered: bool, ragged: bool) -> (f64, usize) {
    let alignment = Alignment {
        object_bytes: 512,
        memory_bytes: 512,
    };
    let mut runs: Vec<(f64, usize)> = (0..5)
        .map(|_| {
            let moves = moves(count, scattered, ragged);
            let bytes = moves.iter().map(|m| m.extent.bytes).sum();
            let objects = vec![Object::new("o", u64::MAX / 2)];
            let start = Instant::now();
            let transfer = Transfer::new(Direction::In, objects, moves, bytes).unwrap();
            let policy = Policy::new(Choice::Auto, MIB);
            let survey = Survey::direct(alignment);
            let plan = Plan::new(&transfer, &[survey], &[], &policy).unwrap();
            (start.elapsed().as_secs_f64(), plan.memory_bytes())
        })
        .collect();
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    runs[2]
}

fn main() {
    println!(
        "{:>10} {:<22} {:>10} {:>12}",
        "extents", "request", "seconds", "plan bytes"
    );
    let mut rows = Vec::new();
    for count in [250_000, 500_000, 1_000_000] {
        for (name, scattered, ragged) in [
            ("pages, in order", false, false),
            ("pages, scattered", true, false),
            ("ragged, in order", false, true),
            ("ragged, scattered", true, true),
        ] {
            let (s, bytes) = seconds(count, scattered, ragged);
            println!("{count:>10} {name:<22} {s:>10.4} {bytes:>12}");
            rows.push(format!(
                r#"{{"extents":{count},"request":"{name}","seconds":{s:.5},"plan_bytes":{bytes}}}"#
            ));
        }
    }
    println!("[{}]", rows.join(","));
}
