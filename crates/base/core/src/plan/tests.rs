//! Tests of plans, most of them property tests over generated requests.

use std::{collections::BTreeSet, ops::Range};

use proptest::prelude::*;

use super::*;
use crate::object::Object;

const MIB: u64 = 1 << 20;
const ALIGNMENT: Alignment = Alignment {
    object_bytes: 512,
    memory_bytes: 512,
};

fn move_of(object: u32, offset: u64, bytes: u64, at: u64) -> Move {
    Move {
        object,
        extent: Extent::new(offset, bytes),
        at,
    }
}

fn plan_one(moves: Vec<Move>, survey: Survey, policy: &Policy) -> Plan {
    let transfer = Transfer::new(Direction::In, vec![Object::new("o", 1 << 40)], moves, 1 << 40).unwrap();
    Plan::new(&transfer, &[survey], &[], policy).unwrap()
}

#[test]
fn a_ragged_extent_becomes_two_staged_edges_and_a_direct_interior() {
    let policy = Policy::new(Choice::Auto, MIB);
    // The region starts at offset 1000 of a page, so that the interior's address is aligned.
    let policy = Policy {
        region_address: 1000,
        ..policy
    };
    let plan = plan_one(vec![move_of(0, 1000, 4 * MIB, 0)], Survey::direct(ALIGNMENT), &policy);
    let routes: Vec<_> = plan.chunks().iter().map(|c| (c.route, c.reason)).collect();
    assert_eq!(routes.first(), Some(&(Route::Staged, Reason::RaggedEdge)));
    assert_eq!(routes.last(), Some(&(Route::Staged, Reason::RaggedEdge)));
    assert!(
        routes[1..routes.len() - 1]
            .iter()
            .all(|r| *r == (Route::Direct, Reason::Aligned))
    );
}

#[test]
fn neighbours_in_one_block_share_one_read() {
    let policy = Policy::new(Choice::Auto, MIB);
    let moves = (0..100).map(|i| move_of(0, i * 40, 30, i * 30)).collect();
    let plan = plan_one(moves, Survey::direct(ALIGNMENT), &policy);
    assert_eq!(plan.chunks().len(), 1);
    assert_eq!(plan.chunks()[0].extent, Extent::new(0, 4096));
    assert_eq!(plan.pieces(&plan.chunks()[0]).len(), 100);
}

#[test]
fn extents_of_a_copy_that_share_a_page_are_one_chunk() {
    // Two 1 KiB blocks of a page, with a hole before, between and behind.
    let moves = vec![move_of(0, 1024, 1024, 1024), move_of(0, 3072, 1024, 3072)];
    let objects = vec![Object::new("o", 8192)];
    let transfer = Transfer::new(Direction::Across, objects, moves, 0).unwrap();
    let survey = [Survey::direct(ALIGNMENT)];
    let policy = Policy::new(Choice::Auto, MIB);
    let plan = Plan::new(&transfer, &survey, &survey, &policy).unwrap();
    let [chunk] = plan.chunks() else {
        panic!("{:?}", plan.chunks())
    };
    assert_eq!(chunk.extent, Extent::new(0, 4096));
    assert_eq!(plan.pieces(chunk).len(), 2);
}

#[test]
fn the_edges_of_a_write_to_long_blocks_go_through_the_page_cache() {
    let alignment = Alignment {
        object_bytes: 16_384,
        ..ALIGNMENT
    };
    // After a header of one page.
    let moves = vec![move_of(0, 4096, MIB, 0)];
    let objects = vec![Object::new("o", 2 * MIB)];
    let transfer = Transfer::new(Direction::Out, objects, moves, MIB).unwrap();
    let policy = Policy::new(Choice::Only(Route::Direct), MIB);
    let plan = Plan::new(&transfer, &[Survey::direct(alignment)], &[], &policy).unwrap();
    let sums = plan.bytes_by_route();
    assert_eq!(sums[&(Route::Buffered, Reason::RaggedEdge)], 16_384);
    assert_eq!(sums[&(Route::Direct, Reason::Aligned)], MIB - 16_384);
    assert_eq!(plan.drive()[0].extent.offset, 16_384);
}

#[test]
fn adjacent_small_writes_to_long_blocks_share_a_chunk_and_one_after_a_gap_does_not() {
    let alignment = Alignment {
        object_bytes: 16_384,
        ..ALIGNMENT
    };
    // From offset 5000 on, ten extents without a gap that fill four blocks, in reverse order in memory. Then a gap of
    // one byte, and an extent that fills no block.
    let mut moves: Vec<_> = (0..10)
        .map(|i| move_of(0, 5000 + i * 8000, 8000, (9 - i) * 8000))
        .collect();
    moves.push(move_of(0, 85_001, 8000, 80_000));
    let objects = vec![Object::new("o", MIB)];
    let transfer = Transfer::new(Direction::Out, objects, moves, MIB).unwrap();
    let policy = Policy::new(Choice::Auto, MIB);
    let plan = Plan::new(&transfer, &[Survey::direct(alignment)], &[], &policy).unwrap();
    let [chunk] = plan.drive() else {
        panic!("{:?}", plan.drive())
    };
    assert_eq!((chunk.route, chunk.reason), (Route::Staged, Reason::Small));
    assert_eq!(chunk.extent, Extent::between(16_384, 81_920));
    let sums = plan.bytes_by_route();
    assert_eq!(sums[&(Route::Staged, Reason::Small)], 4 * 16_384);
    let edges = (16_384 - 5000) + (85_000 - 81_920) + 8000;
    assert_eq!(sums[&(Route::Buffered, Reason::RaggedEdge)], edges);
}

#[test]
fn writes_do_not_share_a_chunk_over_a_gap() {
    let moves = vec![move_of(0, 0, 4096, 0), move_of(0, 8192, 4096, 4096)];
    let objects = vec![Object::new("o", 12_288)];
    for (direction, chunks) in [(Direction::In, 1), (Direction::Out, 2)] {
        let transfer = Transfer::new(direction, objects.clone(), moves.clone(), 8192).unwrap();
        let policy = Policy::new(Choice::Auto, MIB);
        let plan = Plan::new(&transfer, &[Survey::direct(ALIGNMENT)], &[], &policy).unwrap();
        assert_eq!(plan.chunks().len(), chunks, "{direction:?}");
    }
}

#[test]
fn neighbours_farther_apart_than_the_gap_do_not_share_a_read() {
    let policy = Policy::new(Choice::Auto, MIB);
    let moves = vec![move_of(0, 10, 10, 0), move_of(0, 100_000, 10, 10)];
    assert_eq!(plan_one(moves, Survey::direct(ALIGNMENT), &policy).chunks().len(), 2);
}

#[test]
fn resident_bytes_are_grouped_by_their_offset_in_the_region() {
    let policy = Policy::new(Choice::Auto, MIB);
    let resident = vec![Extent::new(0, 1 << 30)];
    let survey = Survey {
        resident,
        ..Survey::direct(ALIGNMENT)
    };
    // Scattered in the object, side by side in the region.
    let moves = (0..64)
        .map(|i| move_of(0, (63 - i) * 100_000, 4096, i * 4096))
        .collect();
    let plan = plan_one(moves, survey, &policy);
    assert!(plan.drive().is_empty());
    assert_eq!(plan.cached().len(), 1);
    assert_eq!(plan.cached()[0].reason, Reason::Resident);
}

#[test]
fn objects_that_may_use_the_page_cache_are_never_planned_as_direct() {
    let transfer = Transfer::whole(Direction::In, vec![Object::new("o", 1 << 20)]).unwrap();
    for doubt in [Reason::FileSystemBuffers, Reason::DirectUnproven] {
        let survey = Survey {
            doubt: Some(doubt),
            ..Survey::direct(ALIGNMENT)
        };
        let plan = |choice, survey: &Survey| {
            let policy = Policy::new(choice, MIB);
            Plan::new(&transfer, std::slice::from_ref(survey), &[], &policy)
        };
        let auto = plan(Choice::Auto, &survey).unwrap();
        let routes: Vec<_> = auto.bytes_by_route().into_keys().collect();
        assert_eq!(routes, [(Route::Buffered, doubt)]);
        for route in [Route::Direct, Route::Staged] {
            let error = plan(Choice::Only(route), &survey).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("page cache"), "{error}");
        }
        // cuFile's counters prove more than the file system says.
        let proven = Survey {
            device_direct: true,
            ..survey
        };
        let auto = plan(Choice::Auto, &proven).unwrap();
        assert!(auto.chunks().iter().all(|c| c.route == Route::Direct));
    }
}

#[test]
fn a_demanded_route_that_is_not_supported_is_an_error() {
    let transfer = Transfer::whole(Direction::In, vec![Object::new("o", 9000)]).unwrap();
    let plan = |route, survey: Survey| Plan::new(&transfer, &[survey], &[], &Policy::new(Choice::Only(route), MIB));
    for route in [Route::Direct, Route::Staged] {
        assert_eq!(
            plan(route, Survey::default()).unwrap_err().kind(),
            ErrorKind::Unsupported
        );
        // An unaligned end is not refused: 9000 is not a multiple of a block.
        assert!(plan(route, Survey::direct(ALIGNMENT)).is_ok());
    }
    assert!(plan(Route::Buffered, Survey::default()).is_ok());
}

#[test]
fn an_object_on_a_socket_is_cut_only_by_the_chunk_size() {
    let transfer = Transfer::whole(Direction::In, vec![Object::new("o", 3 * MIB + 5)]).unwrap();
    let surveys = [Survey::socket(Reason::Tcp)];
    let chunks = |policy: &Policy| {
        let plan = Plan::new(&transfer, &surveys, &[], policy).unwrap();
        let chunk = |c: &Chunk| (c.route, c.extent.bytes);
        plan.chunks().iter().map(chunk).collect::<Vec<_>>()
    };
    let direct = [(Route::Direct, MIB); 3];
    let host = Policy {
        region_address: 3,
        ..Policy::new(Choice::Auto, MIB)
    };
    assert_eq!(chunks(&host), [&direct[..], &[(Route::Direct, 5)]].concat());
    let gpu = Policy {
        place: Place::Gpu(0),
        ..host
    };
    let staged = [(Route::Staged, MIB); 3];
    assert_eq!(chunks(&gpu), [&staged[..], &[(Route::Staged, 5)]].concat());
}

#[test]
fn a_long_transfer_from_a_socket_has_long_requests_and_a_short_one_enough_of_them() {
    let lengths = |bytes: u64, chunk_bytes: u64| {
        let transfer = Transfer::whole(Direction::In, vec![Object::new("o", bytes)]).unwrap();
        let policy = Policy::new(Choice::Auto, chunk_bytes);
        let plan = Plan::new(&transfer, &[Survey::socket(Reason::Tcp)], &[], &policy).unwrap();
        let all = plan.chunks().iter().map(|c| c.extent.bytes);
        (all.clone().count(), all.max().unwrap())
    };
    assert_eq!(lengths(4 << 30, MIB), (128, 32 * MIB));
    assert_eq!(lengths(1 << 30, MIB), (64, 16 * MIB));
    assert_eq!(lengths(512 * MIB, MIB), (64, 8 * MIB));
    assert_eq!(lengths(64 * MIB, MIB), (32, 2 * MIB));
    assert_eq!(lengths(4 * MIB, MIB), (4, MIB));
    assert_eq!(lengths(1 << 30, 32 * MIB), (32, 32 * MIB));
}

#[test]
fn requests_start_on_part_boundaries_and_keep_to_the_maximum_length() {
    let bytes = 512 * MIB;
    let moves = vec![move_of(0, 88, bytes - 88, 0)];
    let objects = vec![Object::new("o", bytes)];
    let transfer = Transfer::new(Direction::In, objects, moves, bytes).unwrap();
    let policy = Policy {
        request_bytes_max: MIB,
        ..Policy::new(Choice::Auto, MIB)
    };
    let plan = Plan::new(&transfer, &[Survey::socket(Reason::Tcp)], &[], &policy).unwrap();
    let extents: Vec<_> = plan.chunks().iter().map(|c| c.extent).collect();
    assert_eq!(extents.len(), 64);
    assert_eq!(extents[0], Extent::between(88, 8 * MIB));
    assert!(extents[1..].iter().all(|e| e.offset.is_multiple_of(8 * MIB)));
}

#[test]
fn neighbours_on_a_socket_share_a_request_over_short_gaps() {
    let moves = vec![
        move_of(0, 100, 1000, 0),
        move_of(0, 900_000, 1000, 1000),
        move_of(0, 6_000_000, 1000, 2000),
    ];
    let objects = vec![Object::new("o", 7_000_000)];
    let transfer = Transfer::new(Direction::In, objects, moves, 3000).unwrap();
    let policy = Policy::new(Choice::Auto, 8 * MIB);
    let extents = |survey: Survey| {
        let plan = Plan::new(&transfer, &[survey], &[], &policy).unwrap();
        plan.chunks().iter().map(|c| c.extent).collect::<Vec<_>>()
    };
    let shared = Extent::between(100, 901_000);
    let alone = Extent::new(6_000_000, 1000);
    assert_eq!(extents(Survey::socket(Reason::Tcp)), [shared, alone]);
    assert_eq!(extents(Survey::direct(ALIGNMENT)).len(), 3);
}

#[test]
fn a_socket_is_refused_as_direct_or_buffered_and_copies_report_it_as_socket() {
    let objects = || vec![Object::new("o", 2 * MIB)];
    let transfer = Transfer::whole(Direction::In, objects()).unwrap();
    let surveys = [Survey::socket(Reason::Tcp)];
    for route in [Route::Direct, Route::Buffered] {
        let policy = Policy::new(Choice::Only(route), MIB);
        let error = Plan::new(&transfer, &surveys, &[], &policy).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("socket"), "{error}");
    }
    let across = Transfer::whole(Direction::Across, objects()).unwrap();
    let policy = Policy::new(Choice::Auto, MIB);
    let twins = [Survey::direct(ALIGNMENT)];
    let plan = Plan::new(&across, &surveys, &twins, &policy).unwrap();
    let both = |c: &Chunk| (c.route.reported(c.reason), c.onward);
    let written = Some((Route::Direct, Reason::Aligned));
    assert!(
        plan.chunks()
            .iter()
            .map(both)
            .all(|legs| legs == (Route::Socket, written))
    );
}

#[test]
fn direct_to_a_gpu_is_refused_where_it_is_not_proven() {
    let transfer = Transfer::whole(Direction::In, vec![Object::new("o", 8192)]).unwrap();
    let policy = Policy {
        place: Place::Gpu(0),
        ..Policy::new(Choice::Only(Route::Direct), MIB)
    };
    let error = Plan::new(&transfer, &[Survey::direct(ALIGNMENT)], &[], &policy).unwrap_err();
    assert!(error.to_string().contains("not proven"), "{error}");
}

#[test]
fn chunks_that_are_not_whole_pages_are_refused() {
    let transfer = Transfer::whole(Direction::In, vec![Object::new("o", 8192)]).unwrap();
    for chunk_bytes in [0, 1, 4095, 5000, 2 << 30] {
        let policy = Policy::new(Choice::Auto, chunk_bytes);
        assert!(Plan::new(&transfer, &[Survey::default()], &[], &policy).is_err());
    }
}

/// A request: extents in up to three objects, disjoint on the written side.
#[derive(Debug, Clone)]
struct Request {
    direction: Direction,
    moves: Vec<Move>,
    objects: Vec<Object>,
    region_bytes: u64,
    surveys: Vec<Survey>,
    policy: Policy,
}

fn survey() -> impl Strategy<Value = Survey> {
    let run = (0_u64..40, 1_u64..20);
    (any::<bool>(), any::<bool>(), proptest::collection::vec(run, 0..5)).prop_map(|(direct, device_direct, runs)| {
        let mut at = 0;
        let resident = runs.into_iter().map(|(skip, pages)| {
            let extent = Extent::new((at + skip + 1) * 4096, pages * 4096);
            at = extent.end() / 4096;
            extent
        });
        Survey {
            resident: resident.collect(),
            direct: direct.then_some(ALIGNMENT),
            device_direct,
            ..Survey::default()
        }
    })
}

fn request() -> impl Strategy<Value = Request> {
    let gaps_and_sizes = proptest::collection::vec((0_u64..9000, 0_u64..70_000, 0_u32..3), 0..60);
    let choice = prop_oneof![
        Just(Choice::Auto),
        Just(Choice::Only(Route::Staged)),
        Just(Choice::Only(Route::Buffered)),
    ];
    (
        gaps_and_sizes,
        proptest::collection::vec(survey_of_any_block(), 3),
        (
            any::<bool>(),
            any::<bool>(),
            choice,
            1_u64..64,
            0_u64..8192,
            any::<usize>(),
        ),
    )
        .prop_map(|(list, surveys, (out, gpu, choice, pages, address, shuffle))| {
            let direction = if out { Direction::Out } else { Direction::In };
            let mut ends = [0_u64; 3];
            let mut at = 0;
            let mut moves = Vec::new();
            for (gap, bytes, object) in list {
                let offset = ends[object as usize] + gap;
                moves.push(move_of(object, offset, bytes, at + gap % 7));
                ends[object as usize] = offset + bytes;
                at += bytes + gap % 7;
            }
            let half = if moves.is_empty() { 0 } else { shuffle % moves.len() };
            moves.rotate_left(half);
            let objects = ends.iter().map(|end| Object::new("o", *end)).collect();
            let place = if gpu { Place::Gpu(0) } else { Place::Host };
            let chunk_bytes = pages * 4096;
            let policy = Policy {
                place,
                region_address: address,
                direct_bytes_min: 16 << 10,
                ..Policy::new(choice, chunk_bytes)
            };
            // Staging by demand needs O_DIRECT everywhere.
            let surveys = surveys
                .into_iter()
                .map(|s| match choice {
                    Choice::Only(Route::Staged) => Survey {
                        direct: Some(ALIGNMENT),
                        ..s
                    },
                    _ => s,
                })
                .collect();
            Request {
                direction,
                moves,
                objects,
                region_bytes: at + 7,
                surveys,
                policy,
            }
        })
}

/// Two chunks that write the same block of an object, if there are any. `surveys` are of the written objects.
///
/// A chunk that goes to the drive writes its whole extent. One through the page cache writes its pieces, and
/// the kernel reads and writes the pages around them.
fn first_shared_block(plan: &Plan, surveys: &[Survey]) -> Option<(Chunk, Chunk)> {
    let blocks = |chunk: &Chunk| match chunk.onward.map_or(chunk.route, |(route, _)| route) {
        Route::Direct | Route::Staged | Route::Socket | Route::Mapped | Route::Service => {
            let block_bytes = surveys[chunk.object as usize].direct.unwrap().block_bytes();
            vec![chunk.extent.superset(block_bytes)]
        }
        Route::Buffered => plan.pieces(chunk).iter().map(|p| p.extent).collect(),
    };
    let written: Vec<_> = plan.chunks().iter().map(|c| (c, blocks(c))).collect();
    let clash = |a: &[Extent], b: &[Extent]| {
        let meets = |x: &Extent| b.iter().any(|y| !x.intersection(*y).is_empty());
        a.iter().any(meets)
    };
    for (i, (a, a_blocks)) in written.iter().enumerate() {
        for (b, b_blocks) in &written[i + 1..] {
            if a.object == b.object && clash(a_blocks, b_blocks) {
                return Some((**a, **b));
            }
        }
    }
    None
}

/// A copy of extents that lie closely together, as in a sparse file with blocks smaller than a page.
#[derive(Debug, Clone)]
struct Copy {
    moves: Vec<Move>,
    objects: Vec<Object>,
    surveys: Vec<Survey>,
    twins: Vec<Survey>,
    policy: Policy,
}

/// A survey of an object whose O_DIRECT, if supported, requires blocks of various sizes.
fn survey_of_any_block() -> impl Strategy<Value = Survey> {
    let block = proptest::sample::select(vec![512_u64, 4096, 8192, 65_536]);
    (survey(), block).prop_map(|(survey, object_bytes)| Survey {
        direct: survey.direct.map(|alignment| Alignment {
            object_bytes,
            ..alignment
        }),
        ..survey
    })
}

fn copy() -> impl Strategy<Value = Copy> {
    // A file system's blocks, or any bytes.
    let unit = proptest::sample::select(vec![1_u64, 512, 1024, 4096]);
    let runs = proptest::collection::vec((0_u64..6, 1_u64..20, 0_u32..2), 0..80);
    let surveys = proptest::collection::vec(survey_of_any_block(), 4);
    let choice = prop_oneof![
        Just(Choice::Auto),
        Just(Choice::Only(Route::Buffered)),
        Just(Choice::Only(Route::Staged)),
        Just(Choice::Only(Route::Direct)),
    ];
    (unit, runs, surveys, choice, 1_u64..20).prop_map(|(unit, runs, mut surveys, choice, pages)| {
        let mut ends = [0_u64; 2];
        let mut moves = Vec::new();
        for (gap, length, object) in runs {
            let offset = ends[object as usize] + gap * unit;
            moves.push(move_of(object, offset, length * unit, offset));
            ends[object as usize] = offset + length * unit;
        }
        let objects = ends.iter().map(|end| Object::new("o", *end)).collect();
        if matches!(choice, Choice::Only(Route::Direct | Route::Staged)) {
            let direct = Some(ALIGNMENT);
            surveys = surveys.into_iter().map(|s| Survey { direct, ..s }).collect();
        }
        Copy {
            moves,
            objects,
            twins: surveys.split_off(2),
            surveys,
            policy: Policy::new(choice, pages * 4096),
        }
    })
}

/// Two writes to one object. Each page has bytes of at most one of them. Many of their moves are adjacent.
#[derive(Debug, Clone)]
struct TwoWrites {
    moves: [Vec<Move>; 2],
    bytes: u64,
    survey: Survey,
    policy: Policy,
}

fn two_writes() -> impl Strategy<Value = TwoWrites> {
    // Their pages, the bytes that are left out of the last one, the number of moves, and the number of the write;
    // number 2 is a gap.
    let left_out = prop_oneof![Just(0_u64), 0_u64..4096];
    let runs = proptest::collection::vec((1_u64..40, left_out, 1_u64..6, 0_usize..3), 1..20);
    let block = proptest::sample::select(vec![512_u64, 4096, 8192, 16_384, 65_536]);
    let choice = prop_oneof![
        Just(Choice::Auto),
        Just(Choice::Only(Route::Staged)),
        Just(Choice::Only(Route::Direct)),
    ];
    (runs, block, choice, 16_u64..64, any::<bool>()).prop_map(|(runs, object_bytes, choice, chunk_pages, gpu)| {
        let mut moves = [Vec::new(), Vec::new()];
        let mut end = 0;
        for (pages, left_out, parts, number) in runs {
            let bytes = pages * 4096 - left_out;
            let cut = |part: u64| end + bytes * part / parts;
            if let Some(own) = moves.get_mut(number) {
                own.extend((0..parts).map(|part| {
                    let extent = Extent::between(cut(part), cut(part + 1));
                    // Adjacent in the object, and not in memory.
                    let at = extent.offset + (part << 30);
                    move_of(0, extent.offset, extent.bytes, at)
                }));
            }
            end += pages * 4096;
        }
        let alignment = Alignment {
            object_bytes,
            ..ALIGNMENT
        };
        let place = if gpu { Place::Gpu(0) } else { Place::Host };
        TwoWrites {
            moves,
            bytes: end,
            survey: Survey {
                device_direct: true,
                ..Survey::direct(alignment)
            },
            policy: Policy {
                place,
                ..Policy::new(choice, chunk_pages * 4096)
            },
        }
    })
}

/// The longest extents that the moves cover. The moves are sorted and disjoint.
fn covered(moves: &[Move]) -> Vec<Extent> {
    let mut all: Vec<Extent> = Vec::new();
    for extent in moves.iter().map(|m| m.extent) {
        match all.last_mut() {
            Some(last) if last.end() == extent.offset => last.bytes += extent.bytes,
            _ => all.push(extent),
        }
    }
    all
}

/// The numbers of the pages that an extent touches.
fn pages(extent: Extent) -> Range<u64> {
    extent.offset / 4096..extent.end().div_ceil(4096)
}

/// The moves in a canonical form that does not depend on the cuts: sorted, with adjacent runs merged.
/// A byte missing, doubled or misplaced changes it.
fn wanted(moves: &[Move]) -> Vec<Move> {
    let mut sorted = moves.to_vec();
    sorted.sort_unstable_by_key(|m| (m.at, m.object, m.extent.offset));
    let mut runs: Vec<Move> = Vec::new();
    for m in sorted {
        match runs.last_mut() {
            Some(run)
                if run.object == m.object
                    && run.extent.end() == m.extent.offset
                    && run.at + run.extent.bytes == m.at =>
            {
                run.extent.bytes += m.extent.bytes;
            }
            _ => runs.push(m),
        }
    }
    runs
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_byte_is_moved_once_in_bounds_and_aligned_as_planned(r in request()) {
        let transfer =
            Transfer::new(r.direction, r.objects.clone(), r.moves.clone(), r.region_bytes).unwrap();
        let plan = Plan::new(&transfer, &r.surveys, &[], &r.policy).unwrap();

        let mut planned = Vec::new();
        for chunk in plan.chunks() {
            for piece in plan.pieces(chunk) {
                planned.push(Move { object: chunk.object, extent: piece.extent, at: piece.at });
                prop_assert!(!piece.extent.is_empty());
                prop_assert_eq!(piece.extent.intersection(chunk.extent), piece.extent);
            }
        }
        prop_assert_eq!(wanted(&planned), wanted(transfer.moves()));

        for chunk in plan.drive() {
            let alignment = r.surveys[chunk.object as usize].direct.unwrap();
            prop_assert!(chunk.extent.is_aligned(alignment.block_bytes()));
            prop_assert!(chunk.extent.bytes <= r.policy.chunk_bytes);
            if chunk.route == Route::Direct {
                let [piece] = plan.pieces(chunk) else { panic!("a direct chunk has one piece") };
                prop_assert_eq!(piece.extent, chunk.extent);
                prop_assert!((r.policy.region_address + piece.at).is_multiple_of(512));
            }
        }
        for chunk in plan.cached() {
            prop_assert_eq!(chunk.route, Route::Buffered);
            let pieces = plan.pieces(chunk);
            prop_assert!(pieces.iter().map(|p| p.extent.bytes).sum::<u64>() <= r.policy.chunk_bytes);
            prop_assert!(pieces.windows(2).all(|p| p[0].at + p[0].extent.bytes == p[1].at));
        }
    }

    #[test]
    fn bytes_from_a_socket_are_requested_once_and_without_padding(r in request()) {
        let choice = match r.policy.choice {
            Choice::Only(Route::Staged) => Choice::Only(Route::Staged),
            _ => Choice::Auto,
        };
        let policy = Policy { choice, ..r.policy };
        let surveys = vec![Survey::socket(Reason::Tls); 3];
        let transfer = Transfer::new(Direction::In, r.objects, r.moves, r.region_bytes).unwrap();
        let plan = Plan::new(&transfer, &surveys, &[], &policy).unwrap();
        let mut planned = Vec::new();
        for chunk in plan.chunks() {
            let pieces = plan.pieces(chunk);
            planned.extend(pieces.iter().map(|p| Move { object: chunk.object, extent: p.extent, at: p.at }));
            // No byte before the first or after the last wanted byte.
            let first = pieces.iter().map(|p| p.extent.offset).min();
            let last = pieces.iter().map(|p| p.extent.end()).max();
            prop_assert_eq!((first, last), (Some(chunk.extent.offset), Some(chunk.extent.end())));
            if chunk.route == Route::Staged {
                prop_assert!(chunk.extent.bytes <= policy.chunk_bytes);
            }
            prop_assert_eq!(chunk.reason, Reason::Tls);
        }
        prop_assert_eq!(wanted(&planned), wanted(transfer.moves()));
        prop_assert!(plan.cached().is_empty());
        prop_assert!(plan.bytes_by_route().keys().all(|key| *key == (Route::Socket, Reason::Tls)));
    }

    #[test]
    fn no_block_is_written_by_two_chunks(r in request()) {
        let transfer =
            Transfer::new(Direction::Out, r.objects.clone(), r.moves, r.region_bytes).unwrap();
        let plan = Plan::new(&transfer, &r.surveys, &[], &r.policy).unwrap();
        prop_assert_eq!(first_shared_block(&plan, &r.surveys), None);
    }

    #[test]
    fn a_write_that_keeps_its_edges_writes_its_own_bytes_only_and_no_page_in_two_ways(
        r in two_writes(),
        skip in 0_u64..4096,
    ) {
        for moves in r.moves {
            // The bytes of memory stay aligned to those of the object.
            let moved = |m: &Move| move_of(0, m.extent.offset + skip, m.extent.bytes, m.at + skip);
            let moves: Vec<_> = moves.iter().map(moved).collect();
            let runs = covered(&moves);
            let objects = vec![Object::new("o", r.bytes + skip)];
            let transfer = Transfer::new(Direction::Out, objects, moves, 1 << 40).unwrap();
            let policy = Policy { keeps_edges: true, ..r.policy };
            let plan = Plan::new(&transfer, std::slice::from_ref(&r.survey), &[], &policy).unwrap();
            let pieces = plan.chunks().iter().flat_map(|chunk| plan.pieces(chunk));
            let planned: Vec<_> = pieces
                .map(|p| Move { object: 0, extent: p.extent, at: p.at })
                .collect();
            prop_assert_eq!(wanted(&planned), wanted(transfer.moves()));
            let mut around = BTreeSet::new();
            for chunk in plan.drive() {
                let is_inside = |run: &Extent| run.intersection(chunk.extent) == chunk.extent;
                prop_assert!(runs.iter().any(is_inside), "{chunk:?}");
                around.extend(pages(chunk.extent));
            }
            for piece in plan.cached().iter().flat_map(|chunk| plan.pieces(chunk)) {
                prop_assert!(pages(piece.extent).all(|page| !around.contains(&page)), "{piece:?}");
            }
        }
    }

    #[test]
    fn a_write_leaves_the_pages_of_another_write_alone(r in two_writes()) {
        for moves in r.moves {
            let own: BTreeSet<u64> = moves.iter().flat_map(|m| pages(m.extent)).collect();
            let runs = covered(&moves);
            let objects = vec![Object::new("o", r.bytes)];
            let transfer = Transfer::new(Direction::Out, objects, moves, 1 << 40).unwrap();
            let survey = std::slice::from_ref(&r.survey);
            let plan = Plan::new(&transfer, survey, &[], &r.policy).unwrap();
            prop_assert_eq!(first_shared_block(&plan, survey), None);
            let pieces = plan.chunks().iter().flat_map(|chunk| plan.pieces(chunk));
            let planned: Vec<_> = pieces
                .map(|p| Move { object: 0, extent: p.extent, at: p.at })
                .collect();
            prop_assert_eq!(wanted(&planned), wanted(transfer.moves()));
            let block_bytes = r.survey.direct.unwrap().block_bytes();
            for chunk in plan.drive() {
                let is_inside = |run: &Extent| run.intersection(chunk.extent) == chunk.extent;
                // Blocks longer than a page have bytes of this write only.
                prop_assert!(block_bytes <= 4096 || runs.iter().any(is_inside), "{chunk:?}");
            }
            for piece in plan.cached().iter().flat_map(|chunk| plan.pieces(chunk)) {
                // Whole blocks are written together, however many moves they have.
                let whole = |run: &Extent| run.interior(block_bytes).intersection(piece.extent);
                prop_assert!(runs.iter().all(|run| whole(run).is_empty()), "{piece:?}");
            }
            for chunk in plan.chunks() {
                let written: Vec<Extent> = match chunk.route {
                    Route::Buffered => plan.pieces(chunk).iter().map(|p| p.extent).collect(),
                    _ => vec![chunk.extent],
                };
                for page in written.into_iter().flat_map(pages) {
                    prop_assert!(own.contains(&page), "{chunk:?} writes page {page}");
                }
            }
        }
    }

    #[test]
    fn a_copy_of_extents_that_share_blocks_writes_each_block_once_and_each_byte_once(r in copy()) {
        let transfer = Transfer::new(Direction::Across, r.objects, r.moves, 0).unwrap();
        let plan = Plan::new(&transfer, &r.surveys, &r.twins, &r.policy).unwrap();
        prop_assert_eq!(first_shared_block(&plan, &r.twins), None);

        let mut planned = Vec::new();
        for chunk in plan.chunks() {
            let object = chunk.object as usize;
            let (own, twin) = (&r.surveys[object], &r.twins[object]);
            let blocks = [own, twin].into_iter().filter_map(|s| s.direct).map(|a| a.object_bytes);
            for block in blocks.chain([4096]).filter(|block| *block <= r.policy.chunk_bytes) {
                prop_assert!(chunk.extent.is_aligned(block), "{chunk:?} and {block}");
            }
            prop_assert!(chunk.extent.bytes <= r.policy.chunk_bytes);
            let pieces = plan.pieces(chunk);
            for piece in pieces {
                planned.push(Move { object: chunk.object, extent: piece.extent, at: piece.at });
                prop_assert_eq!(piece.extent.intersection(chunk.extent), piece.extent);
            }
            let (written, _) = chunk.onward.unwrap();
            let whole = pieces.len() == 1 && pieces[0].extent == chunk.extent;
            prop_assert!(whole || (chunk.route != Route::Direct && written != Route::Direct));
            prop_assert!(written == Route::Buffered || twin.direct.is_some());
            prop_assert!(chunk.route == Route::Buffered || own.direct.is_some());
        }
        for object in 0..2 {
            let of = |moves: &[Move]| {
                wanted(&moves.iter().copied().filter(|m| m.object == object).collect::<Vec<_>>())
            };
            prop_assert_eq!(of(&planned), of(transfer.moves()));
        }
    }

    #[test]
    fn a_copy_across_reads_and_writes_each_byte_once(
        (bytes, pages, twin) in (0_u64..900_000, 1_u64..32, survey()), own in survey(),
    ) {
        let transfer = Transfer::whole(Direction::Across, vec![Object::new("o", bytes)]).unwrap();
        let policy = Policy::new(Choice::Auto, pages * 4096);
        let plan = Plan::new(&transfer, &[own], &[twin], &policy).unwrap();
        let mut at = 0;
        for chunk in plan.chunks() {
            let [piece] = plan.pieces(chunk) else { panic!("one piece") };
            prop_assert_eq!((piece.extent.offset, piece.at), (at, at));
            prop_assert!(chunk.extent.is_aligned(4096) && chunk.extent.bytes <= policy.chunk_bytes);
            prop_assert!(chunk.onward.is_some());
            at = piece.extent.end();
        }
        prop_assert_eq!(at, bytes);
    }
}

#[test]
fn auto_uses_a_faster_ring_and_direct_can_still_be_demanded() {
    let transfer = Transfer::whole(Direction::In, vec![Object::new("o", 4 * MIB)]).unwrap();
    let routes = |choice| {
        let policy = Policy {
            ring_first: true,
            ..Policy::new(choice, MIB)
        };
        let plan = Plan::new(&transfer, &[Survey::direct(ALIGNMENT)], &[], &policy).unwrap();
        plan.chunks().iter().map(|c| (c.route, c.reason)).collect::<Vec<_>>()
    };
    assert_eq!(routes(Choice::Auto), [(Route::Staged, Reason::RingFaster); 4]);
    assert_eq!(
        routes(Choice::Only(Route::Direct)),
        [(Route::Direct, Reason::Aligned); 4]
    );
}

fn provider() -> Place {
    "p2p:0000:04:00.0".parse().unwrap()
}

#[test]
fn holes_are_staged_into_bar_memory_and_counted_separately() {
    let policy = Policy {
        place: provider(),
        ..Policy::new(Choice::Only(Route::Direct), MIB)
    };
    let survey = Survey {
        device_direct: true,
        holes: vec![Extent::new(MIB, 8192), Extent::new(3 * MIB, MIB)],
        ..Survey::direct(ALIGNMENT)
    };
    let plan = plan_one(vec![move_of(0, 0, 4 * MIB, 0)], survey, &policy);
    let sums = plan.bytes_by_route();
    assert_eq!(sums[&(Route::Direct, Reason::Aligned)], 3 * MIB - 8192);
    assert_eq!(sums[&(Route::Staged, Reason::Hole)], MIB + 8192);
    assert_eq!(sums.len(), 2);
}

#[test]
fn unproven_bar_memory_is_staged_and_a_demanded_direct_route_is_refused() {
    let survey = Survey::direct(ALIGNMENT);
    let policy = Policy {
        place: provider(),
        ..Policy::new(Choice::Auto, MIB)
    };
    let plan = plan_one(vec![move_of(0, 0, MIB, 0)], survey.clone(), &policy);
    let chunk = plan.chunks()[0];
    assert_eq!((chunk.route, chunk.reason), (Route::Staged, Reason::NotProven));
    let objects = vec![Object::new("o", 1 << 40)];
    let moves = vec![move_of(0, 0, MIB, 0)];
    let transfer = Transfer::new(Direction::In, objects, moves, MIB).unwrap();
    let demanded = Policy {
        choice: Choice::Only(Route::Direct),
        ..policy
    };
    let error = Plan::new(&transfer, &[survey], &[], &demanded).unwrap_err();
    assert!(error.to_string().contains("not proven"), "{error}");
}

#[test]
fn a_ring_in_a_bar_moves_whole_blocks_of_unaligned_extents_by_dma() {
    let policy = Policy {
        place: provider(),
        ..Policy::new(Choice::Only(Route::Direct), MIB)
    };
    let survey = Survey {
        device_direct: true,
        ..Survey::direct(ALIGNMENT)
    };
    let objects = vec![Object::new("o", 10_000)];
    let moves = vec![move_of(0, 100, 9900, 100)];
    let transfer = Transfer::new(Direction::Across, objects, moves, 0).unwrap();
    let surveys = [survey];
    let plan = Plan::new(&transfer, &surveys, &surveys, &policy).unwrap();
    let chunk = plan.chunks()[0];
    let direct = (Route::Direct, Reason::Aligned);
    assert_eq!(((chunk.route, chunk.reason), chunk.onward), (direct, Some(direct)));
    assert_eq!(chunk.extent, Extent::new(0, 12_288));
}
