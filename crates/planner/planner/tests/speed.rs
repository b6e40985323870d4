//! An analytic answer takes less than 10 ms in an optimised build, and less than 200 ms in a debug build.

use std::time::Instant;

use straightway_planner::scenario::{Scenario, Topic};

/// Takes the best of ten runs, so that a busy machine does not fail the test.
#[test]
fn an_analytic_answer_takes_less_than_10_ms() {
    let bound_ms = if cfg!(debug_assertions) { 200.0 } else { 10.0 };
    for &topic in Topic::ALL {
        // Quality of service is simulated, not computed.
        if topic == Topic::Qos {
            continue;
        }
        let scenario = Scenario::default_of(topic);
        let took = |_| {
            let start = Instant::now();
            scenario.answer().unwrap();
            start.elapsed().as_secs_f64() * 1e3
        };
        let best = (0..10).map(took).fold(f64::MAX, f64::min);
        assert!(best < bound_ms, "{topic:?} took {best} ms");
        println!("{:12} {best:.3} ms", topic.name());
    }
}
