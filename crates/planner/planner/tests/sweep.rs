//! The cluster planner's answers over grids of values.

use straightway_planner::scenario::{Scenario, ScenarioAnswer, Topic};
use straightway_scenario::{
    check::Refusals,
    sweep::{GridPoint, POINTS_MAX, ParameterSweep, run},
};

fn planned(sweeps: &[ParameterSweep]) -> Result<Vec<GridPoint<ScenarioAnswer>>, Refusals> {
    let scenario = Scenario::default_of(Topic::Checkpoint);
    run(sweeps, POINTS_MAX, |settings| {
        Ok(scenario.set(settings).and_then(|changed| changed.answer()))
    })
}

#[test]
fn a_grid_is_answered_in_order_on_any_number_of_threads() {
    let sweeps = [
        ParameterSweep::parse("cluster.gpus=128..2048:5:log").unwrap(),
        ParameterSweep::parse("trials.seed=1,2,3").unwrap(),
    ];
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| planned(&sweeps).unwrap())
    };
    let (one, four) = (on(1), on(4));
    assert_eq!(one, four);
    assert_eq!(one.len(), 15);
    assert_eq!(
        (one[4].settings[0].value.as_str(), one[4].settings[1].value.as_str()),
        ("256", "2")
    );
    let bytes = |points: &[GridPoint<ScenarioAnswer>]| {
        let answers = points
            .iter()
            .map(|point| point.answer.as_ref().unwrap().to_json().to_string());
        answers.collect::<String>()
    };
    assert_eq!(bytes(&one), bytes(&four));
}

#[test]
fn an_invalid_point_is_refused_on_its_own() {
    let sweep = [ParameterSweep::parse("cluster.gpus=0,128").unwrap()];
    let points = planned(&sweep).unwrap();
    assert!(points[0].answer.is_err() && points[1].answer.is_ok());
}
