//! The number of TLPs per second that one core simulates.

use std::{hint::black_box, ops::ControlFlow};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use straightway_pcie as pcie;
use straightway_scenario::check;

fn simulate(c: &mut Criterion) {
    let mut group = c.benchmark_group("pcie");
    group.sample_size(10);
    for name in ["article-8gpu", "dgx2-same-switch", "nfp6000-writes", "dgx-h100"] {
        let case = pcie::case(name).expect("an embedded scenario");
        let scenario: pcie::PcieScenario = check::read(case.text).expect("a sound scenario");
        let run = || pcie::simulate(&scenario, |_| ControlFlow::Continue(())).expect("it runs");
        group.throughput(Throughput::Elements(run().audit.tlps));
        group.bench_function(name, |b| b.iter(|| black_box(run())));
    }
    group.finish();
}

criterion_group!(benches, simulate);
criterion_main!(benches);
