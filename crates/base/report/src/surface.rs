//! Surfaces: z over a grid of x and y, for one case or several.
//!
//! Each [`Sheet`] is drawn as one surface. Several sheets (an efficiency at 100, 200 and 400 Gb/s) are drawn side by
//! side with one scale of heights and colours, so that they can be compared; overlaid, they would hide each other. A
//! page shows a surface in perspective with its lowest corner in front, a terminal as a heat map.

mod svg;
mod text;

use serde::{Deserialize, Serialize};

use crate::{Axis, ValueRange};

/// A value over a grid.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Surface {
    /// The title.
    pub title: String,
    /// The x axis.
    pub x: Axis,
    /// The y axis.
    pub y: Axis,
    /// The z axis.
    pub z: Axis,
    /// The x values of the grid, in increasing order.
    pub xs: Vec<f64>,
    /// The y values of the grid, in increasing order.
    pub ys: Vec<f64>,
    /// The surfaces over the grid.
    pub sheets: Vec<Sheet>,
}

/// One surface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sheet {
    /// The name of the case.
    pub name: String,
    /// The heights, indexed by y and then x; `None` where a height is missing.
    pub zs: Vec<Vec<Option<f64>>>,
}

impl Surface {
    /// A grid without surfaces.
    pub fn new(title: impl Into<String>, (x, xs): (Axis, Vec<f64>), (y, ys): (Axis, Vec<f64>), z: Axis) -> Self {
        Self {
            title: title.into(),
            x,
            y,
            z,
            xs,
            ys,
            sheets: Vec::new(),
        }
    }

    /// Adds a surface by calling `height` for every point of the grid.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, height: impl Fn(f64, f64) -> f64) -> Self {
        let finite = |z: f64| z.is_finite().then_some(z);
        let line = |&y: &f64| self.xs.iter().map(|&x| finite(height(x, y))).collect();
        let zs = self.ys.iter().map(line).collect();
        self.sheets.push(Sheet { name: name.into(), zs });
        self
    }

    /// The range of heights over all sheets; includes zero if the axis is linear and not fitted.
    fn heights(&self) -> Option<ValueRange> {
        let all = || {
            self.sheets
                .iter()
                .flat_map(|sheet| sheet.zs.iter().flatten().copied().flatten())
        };
        self.z.scale.range(all())?;
        let zero = (self.z.scale == crate::Scale::Linear && !self.z.fitted).then_some(0.0);
        self.z.scale.range(all().chain(zero))
    }

    /// At most `count` grid lines that can be drawn.
    fn lines(axis: &Axis, values: &[f64], count: usize) -> Vec<Line> {
        let Some(range) = axis.scale.range(values.iter().copied()) else {
            return Vec::new();
        };
        let admitted = values
            .iter()
            .enumerate()
            .filter(|(_, value)| axis.scale.admits(**value));
        let stride = values.len().div_ceil(count.max(1)).max(1);
        let line = |(index, &value): (usize, &f64)| Line {
            index,
            value,
            place: axis.scale.place(range, value),
        };
        admitted.step_by(stride).map(line).collect()
    }

    /// Whether the surfaces are lower at the far end of x, and of y.
    fn lowest_corner(&self, xs: &[Line], ys: &[Line]) -> (bool, bool) {
        let mean = |x_half: Half, y_half: Half| {
            let (mut sum, mut count) = (0.0, 0.0);
            for x in xs.iter().filter(|line| x_half(line.place)) {
                for y in ys.iter().filter(|line| y_half(line.place)) {
                    let heights = self.sheets.iter().filter_map(|sheet| sheet.at(x.index, y.index));
                    heights.for_each(|z| (sum, count) = (sum + z, count + 1.0));
                }
            }
            if count > 0.0 { sum / count } else { f64::INFINITY }
        };
        let (near, far): (Half, Half) = (|place| place <= 0.5, |place| place >= 0.5);
        let corners = [
            (mean(near, near), (false, false)),
            (mean(far, near), (true, false)),
            (mean(near, far), (false, true)),
            (mean(far, far), (true, true)),
        ];
        let lowest = corners.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
        lowest.map_or((false, false), |(_, corner)| corner)
    }
}

/// Selects the positions in one half of an axis.
type Half = fn(f64) -> bool;

impl Sheet {
    /// The height at x index `x` and y index `y`.
    fn at(&self, x: usize, y: usize) -> Option<f64> {
        *self.zs.get(y)?.get(x)?
    }
}

/// One line of the grid.
#[derive(Clone, Copy, Debug)]
struct Line {
    index: usize,
    value: f64,
    place: f64,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{Scale, Terminal, Unit};
    use proptest::prelude::*;

    /// Two small sheets, one of them with a hole.
    pub(crate) fn sample() -> Surface {
        let surface = Surface::new(
            "When registering pays",
            (
                Axis::log2("buffer", Unit::Bytes),
                vec![65_536.0, 1_048_576.0, 16_777_216.0],
            ),
            (Axis::log2("I/Os", Unit::Count), vec![1.0, 8.0, 64.0]),
            Axis::linear("efficiency", Unit::Share),
        );
        let share = |rate: f64| {
            move |bytes: f64, uses: f64| {
                let moving = uses * bytes / rate;
                moving / (moving + 250e-6)
            }
        };
        let holed = |x: f64, y: f64| {
            if y > 9.0 && x < 1e5 {
                f64::NAN
            } else {
                share(50e9)(x, y)
            }
        };
        surface.with("100 Gb/s", share(12.5e9)).with("400 Gb/s", holed)
    }

    #[test]
    fn a_surface_as_heat_maps() {
        insta::assert_snapshot!(sample().to_text(Terminal::plain(80)));
    }

    #[test]
    fn a_surface_as_a_picture() {
        insta::assert_snapshot!(sample().to_svg_inline());
    }

    #[test]
    fn a_missing_height_leaves_a_hole() {
        let svg = sample().to_svg_inline();
        // Two sheets of four facets, without the one that has a missing corner.
        assert_eq!(svg.matches("class=\"facet\"").count(), 7);
    }

    #[test]
    fn the_low_corner_comes_to_the_front() {
        let falling = Surface::new(
            "",
            (Axis::linear("x", Unit::Count), vec![0.0, 1.0, 2.0]),
            (Axis::linear("y", Unit::Count), vec![0.0, 1.0, 2.0]),
            Axis::linear("z", Unit::Count),
        )
        .with("", |x, y| 4.0 - x - y);
        // The nearest facet is painted last. It starts at x = 1, y = 1.
        let svg = falling.to_svg_inline();
        let last = svg.rsplit("class=\"facet\"").next().unwrap();
        assert!(last.contains("<title>1, 1: 2</title>"), "{last}");
    }

    #[test]
    fn a_surface_survives_json_and_back() {
        let text = serde_json::to_string(&sample()).unwrap();
        assert_eq!(serde_json::from_str::<Surface>(&text).unwrap(), sample());
    }

    proptest! {
        #[test]
        fn any_surface_can_be_shown(
            xs in prop::collection::vec(any::<f64>(), 0..50),
            ys in prop::collection::vec(-2.0f64..9.0, 0..6),
            zs in prop::collection::vec(prop::collection::vec(any::<Option<f64>>(), 0..9), 0..9),
            scale in prop_oneof![Just(Scale::Linear), Just(Scale::Log2), Just(Scale::Log10)],
            columns in 0usize..200, colour in any::<bool>(), name in any::<String>(),
        ) {
            let axis = || Axis { label: name.clone(), unit: Unit::Bytes, scale, fitted: false };
            let mut surface = Surface::new(name.clone(), (axis(), xs), (axis(), ys), axis());
            surface.sheets.push(Sheet { name: name.clone(), zs });
            let text = surface.to_text(Terminal { columns, colour });
            prop_assert!(text.ends_with('\n'));
            let svg = surface.to_svg();
            prop_assert!(svg.ends_with("</svg>\n") && !svg.contains("\"NaN"), "{svg}");
        }
    }
}
