//! The same cases with GPU memory, over the stand-in: through pinned rings, and by cuFile.

use straightway_core::{Choice, Place};
use straightway_io::GdsUse;
use straightway_standin::Standin;

use crate::{
    case::{Case, Verb},
    mounts::System,
    run,
    suite::{Request, attempt},
};

/// The number of cases per plan. They are small, because the stand-in's process has two minutes.
const CASES: usize = 20;

#[test]
fn every_byte_of_many_objects_arrives_in_gpu_memory_and_comes_back() {
    for (plan, gds) in [("", GdsUse::Off), ("cufile=p2p", GdsUse::Force)] {
        Standin::run(plan, |standin| {
            let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
            let has_region = |case: &Case| case.verb != Verb::Relay;
            let cases = Request::from_environment().cases().into_iter().filter(has_region);
            let mut failed = 0;
            // The folder is in the checkout, whatever file system the case names.
            for case in cases.take(CASES) {
                let case = Case {
                    system: System::Checkout,
                    place: Place::Gpu(0),
                    gds,
                    objects: case.objects.min(300),
                    depth: case.depth.min(64),
                    lanes: case.lanes.min(3),
                    jobs: case.jobs.min(2),
                    ..case
                };
                if let Err(wrong) = attempt(|| run::run(&case, folder.path())) {
                    failed += 1;
                    eprintln!("FAILED {case}: {wrong}");
                }
            }
            assert_eq!(failed, 0);
            standin.assert_clean_but_for_cufile();
        });
    }
}

#[test]
fn every_byte_comes_over_nvme_into_gpu_memory_through_the_ring() {
    Standin::run("seed=4 delay_us_max=100", |standin| {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let has_region = |case: &Case| case.verb != Verb::Relay && case.verb != Verb::Check;
        let cases = Request::from_environment().cases().into_iter();
        let mut failed = 0;
        for case in cases.filter(has_region).take(CASES / 2) {
            let case = Case {
                system: System::NvmeFaulty,
                place: Place::Gpu(0),
                choice: Choice::Auto,
                objects: case.objects.min(20),
                depth: case.depth.min(64),
                lanes: case.lanes.min(3),
                jobs: 1,
                ..case
            };
            if let Err(wrong) = attempt(|| run::run(&case, folder.path())) {
                failed += 1;
                eprintln!("FAILED {case}: {wrong}");
            }
        }
        assert_eq!(failed, 0);
        standin.assert_clean();
    });
}
