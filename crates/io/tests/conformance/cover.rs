//! A pairwise cover: few rows that contain every pair of values of any two dimensions.

use std::collections::HashSet;

/// A seeded random number generator (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The generator of part `number` of a run.
    pub(crate) fn part(seed: u64, number: u64) -> Self {
        Self(mix(seed ^ mix(number)))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// Returns true with a probability of one in `in_how_many`.
    pub(crate) fn chance(&mut self, in_how_many: u64) -> bool {
        self.below(in_how_many) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }

    pub(crate) fn shuffle<T>(&mut self, values: &mut [T]) {
        for i in (1..values.len()).rev() {
            values.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

/// Hashes a number.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Candidates per row. More make a cover slightly smaller and take longer.
const CANDIDATES: usize = 40;

/// Rows with one value index per dimension of `sizes`, which contain every pair of values.
pub(crate) fn pairwise(sizes: &[usize], random: &mut Random) -> Vec<Vec<usize>> {
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
            let mut row: Vec<_> = sizes
                .iter()
                .map(|n| random.below(*n as u64) as usize)
                .collect();
            let (a, x, b, y) = random.pick(&ordered);
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
    let rows = pairwise(&sizes, &mut Random::new(3));
    let met: HashSet<_> = rows.iter().flat_map(|row| pairs_of(row)).collect();
    let pairs = |a: usize| (a + 1..sizes.len()).map(move |b| sizes[a] * sizes[b]);
    assert_eq!(met.len(), (0..sizes.len()).flat_map(pairs).sum::<usize>());
    assert!(rows.len() < 70, "{} rows", rows.len());
    assert_eq!(rows, pairwise(&sizes, &mut Random::new(3)));
}
