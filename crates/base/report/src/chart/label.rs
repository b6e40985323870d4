//! The placement of labels on a chart, without hiding curves or other labels.

/// A rectangle in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Area {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Area {
    fn holds(&self, (x, y): (f64, f64)) -> bool {
        (self.left..=self.left + self.width).contains(&x) && (self.top..=self.top + self.height).contains(&y)
    }

    fn meets(&self, other: &Self) -> bool {
        self.left < other.left + other.width
            && other.left < self.left + self.width
            && self.top < other.top + other.height
            && other.top < self.top + self.height
    }

    fn inside(&self, other: &Self) -> bool {
        self.left >= other.left
            && self.top >= other.top
            && self.left + self.width <= other.left + other.width
            && self.top + self.height <= other.top + other.height
    }
}

/// Heights close to those wanted, at least `gap` apart, and between `top` and `bottom` if they fit.
pub(super) fn spread(wanted: &[f64], gap: f64, top: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|&a, &b| wanted[a].total_cmp(&wanted[b]));
    let mut heights = wanted.to_vec();
    let mut floor = top;
    for &index in &order {
        heights[index] = heights[index].max(floor);
        floor = heights[index] + gap;
    }
    let mut ceiling = bottom;
    for &index in order.iter().rev() {
        heights[index] = heights[index].min(ceiling);
        ceiling = heights[index] - gap;
    }
    heights
}

/// The best position for a label of `width` by `height` near `anchor`: inside `plot`, not overlapping `taken` areas,
/// and covering as few points of `curve` as possible.
pub(super) fn place_label(
    anchor: (f64, f64),
    (width, height): (f64, f64),
    plot: &Area,
    taken: &[Area],
    curve: &[(f64, f64)],
) -> Area {
    const OFF: f64 = 9.0;
    /// The labels that are stacked at one place at most.
    const LEVELS: u8 = 6;
    let (x, y) = anchor;
    let (left, centre, right) = (x - OFF - width, x - width / 2.0, x + OFF);
    let (above, middle, below) = (y - OFF - height, y - height / 2.0, y + OFF);
    // In order of preference.
    let corners = [
        (left, above),
        (right, below),
        (centre, above),
        (centre, below),
        (right, above),
        (left, below),
        (right, middle),
        (left, middle),
    ];
    // Several labels at one place are stacked above or below it.
    let stacked = (1..=LEVELS).flat_map(|level| {
        let away = f64::from(level) * height;
        [
            (left, above - away),
            (right, below + away),
            (right, above - away),
            (left, below + away),
        ]
    });
    let spots = corners.into_iter().chain(stacked).map(|(left, top)| Area {
        left,
        top,
        width,
        height,
    });
    let cost = |spot: &Area| {
        let outside = usize::from(!spot.inside(plot)) * 10_000;
        let clashes = taken.iter().filter(|other| spot.meets(other)).count() * 1000;
        outside + clashes + curve.iter().filter(|&&point| spot.holds(point)).count()
    };
    spots.min_by_key(cost).expect("there are corners")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn labels_that_fit_are_apart_and_inside(
            wanted in prop::collection::vec(0.0f64..100.0, 0..10),
        ) {
            let mut heights = spread(&wanted, 10.0, 0.0, 100.0);
            heights.sort_by(f64::total_cmp);
            prop_assert!(heights.iter().all(|h| (-1e-9..=100.0 + 1e-9).contains(h)));
            prop_assert!(heights.windows(2).all(|pair| pair[1] - pair[0] >= 10.0 - 1e-9));
        }
    }

    #[test]
    fn a_label_does_not_cover_the_curve_or_other_labels() {
        let plot = Area {
            left: 0.0,
            top: 0.0,
            width: 200.0,
            height: 200.0,
        };
        let curve: Vec<_> = (0..100).map(|i| (f64::from(i), 200.0 - f64::from(i))).collect();
        let first = place_label((100.0, 100.0), (40.0, 12.0), &plot, &[], &curve);
        assert!(first.inside(&plot) && !curve.iter().any(|&point| first.holds(point)));
        let second = place_label((100.0, 100.0), (40.0, 12.0), &plot, &[first], &curve);
        assert!(!first.meets(&second));
    }

    #[test]
    fn eight_labels_at_the_left_edge_do_not_overlap() {
        let plot = Area {
            left: 0.0,
            top: 0.0,
            width: 400.0,
            height: 200.0,
        };
        let mut taken: Vec<Area> = Vec::new();
        for number in 0..8 {
            let label = place_label((2.0, 90.0 + f64::from(number)), (30.0, 14.0), &plot, &taken, &[]);
            assert!(label.inside(&plot), "{label:?}");
            assert!(!taken.iter().any(|other| label.meets(other)), "{label:?} of {taken:?}");
            taken.push(label);
        }
    }
}
