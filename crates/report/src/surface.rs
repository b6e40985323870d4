//! A value over two others: z over a grid of x and y, for one case or several.
//!
//! One [`Sheet`] is drawn as one surface; several (an efficiency at 100, 200 and 400 Gb/s) stand
//! beside each other with one scale of heights and colours, so that they can be compared. Laid
//! over each other they would hide each other. On a page it is seen from the side on which it is
//! lowest, in a terminal from above, as a heat map.

mod svg;
mod text;

use serde::{Deserialize, Serialize};

use crate::{Axis, Range};

/// A value over a grid.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Surface {
    /// What the surface shows.
    pub title: String,
    /// What runs along the first side of the grid.
    pub x: Axis,
    /// What runs along its second side.
    pub y: Axis,
    /// What stands over the grid.
    pub z: Axis,
    /// The grid's lines along x, in increasing order.
    pub xs: Vec<f64>,
    /// The grid's lines along y, in increasing order.
    pub ys: Vec<f64>,
    /// The surfaces over this one grid.
    pub sheets: Vec<Sheet>,
}

/// One surface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sheet {
    /// The case it is for.
    pub name: String,
    /// The heights: for every y, those of every x. `None` where there is none.
    pub zs: Vec<Vec<Option<f64>>>,
}

impl Surface {
    /// A grid without surfaces.
    pub fn new(
        title: impl Into<String>,
        (x, xs): (Axis, Vec<f64>),
        (y, ys): (Axis, Vec<f64>),
        z: Axis,
    ) -> Self {
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

    /// Adds a surface by asking for its height over every point of the grid.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, height: impl Fn(f64, f64) -> f64) -> Self {
        let finite = |z: f64| z.is_finite().then_some(z);
        let line = |&y: &f64| self.xs.iter().map(|&x| finite(height(x, y))).collect();
        let zs = self.ys.iter().map(line).collect();
        self.sheets.push(Sheet {
            name: name.into(),
            zs,
        });
        self
    }

    /// The range of heights over all sheets, from zero where the axis is linear and not fitted.
    fn heights(&self) -> Option<Range> {
        let all = || {
            self.sheets
                .iter()
                .flat_map(|sheet| sheet.zs.iter().flatten().copied().flatten())
        };
        self.z.scale.range(all())?;
        let zero = (self.z.scale == crate::Scale::Linear && !self.z.fitted).then_some(0.0);
        self.z.scale.range(all().chain(zero))
    }

    /// Lines of the grid that can be drawn, at most `count`: their index, value and place.
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
}

impl Sheet {
    /// The height at the crossing of the `x`th and the `y`th line.
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
