//! A pairwise cover: few rows that contain every pair of values of any two dimensions.

use std::collections::HashSet;

use straightway_core::random::{Rng, Seed};

/// Candidates per row. More make a cover slightly smaller and take longer.
const CANDIDATES: usize = 40;

/// Rows with one value index per dimension of `sizes`, which contain every pair of values.
pub(crate) fn pairwise(sizes: &[usize], rng: &mut Rng) -> Vec<Vec<usize>> {
    let mut open = HashSet::new();
    for a in 0..sizes.len() {
        for b in a + 1..sizes.len() {
            let pairs = (0..sizes[a]).flat_map(|x| (0..sizes[b]).map(move |y| (x, y)));
            open.extend(pairs.map(|(x, y)| (a, x, b, y)));
        }
    }
    let mut rows = Vec::new();
    while !open.is_empty() {
        let mut ordered: Vec<_> = open.iter().copied().collect();
        ordered.sort_unstable();
        let candidates = (0..CANDIDATES).map(|_| {
            let mut row: Vec<_> = sizes.iter().map(|n| rng.index(*n)).collect();
            let (a, x, b, y) = *rng.pick(&ordered);
            (row[a], row[b]) = (x, y);
            row
        });
        let best = candidates.max_by_key(|row| pairs_of(row).filter(|p| open.contains(p)).count());
        let best = best.expect("there are candidates");
        pairs_of(&best).for_each(|pair| {
            open.remove(&pair);
        });
        rows.push(best);
    }
    rows
}

fn pairs_of(row: &[usize]) -> impl Iterator<Item = (usize, usize, usize, usize)> {
    let all = (0..row.len()).flat_map(move |a| (a + 1..row.len()).map(move |b| (a, b)));
    all.map(|(a, b)| (a, row[a], b, row[b]))
}

#[test]
fn a_cover_contains_every_pair_and_depends_only_on_its_seed() {
    let sizes = [2, 7, 3, 5, 4];
    let rows = pairwise(&sizes, &mut Seed(3).rng());
    let met: HashSet<_> = rows.iter().flat_map(|row| pairs_of(row)).collect();
    let pairs = |a: usize| (a + 1..sizes.len()).map(move |b| sizes[a] * sizes[b]);
    assert_eq!(met.len(), (0..sizes.len()).flat_map(pairs).sum::<usize>());
    assert!(rows.len() < 70, "{} rows", rows.len());
    assert_eq!(rows, pairwise(&sizes, &mut Seed(3).rng()));
}
