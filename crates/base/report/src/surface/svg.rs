//! Renders a surface as SVG, in an isometric projection.
//!
//! The facets are painted from the farthest to the nearest, so that near facets cover far ones. The lowest corner of
//! the surfaces is in front, so that they hide as little as possible.

use std::fmt::Write;

use super::{Line, Sheet, Surface};
use crate::{
    ValueRange,
    colour::{hex, ramp},
    markup::{escape, px},
    picture::{WIDTH, head, nothing, own_style},
    terminal::clean,
};

/// The space for the title at the top, and for the colour scale at the bottom.
const TOP: f64 = 40.0;
const FOOT: f64 = 54.0;
/// The most grid lines drawn in each direction; a finer grid would blur.
const LINES_MAX: usize = 40;
/// The most facets with tooltips.
const TIPS_MAX: usize = 400;
/// The ticks of the z axis, and of the two near edges, where labels are closer together.
const TICKS: usize = 5;
const EDGE_TICKS: usize = 4;

impl Surface {
    /// Renders the surface as a standalone SVG file.
    pub fn to_svg(&self) -> String {
        self.svg(&own_style())
    }

    /// Renders the surface as SVG for a page that contains the style.
    pub(crate) fn to_svg_inline(&self) -> String {
        self.svg("")
    }

    fn svg(&self, style: &str) -> String {
        let Some(view) = View::new(self) else {
            return nothing(&self.title, style);
        };
        let rows = self.sheets.len().div_ceil(view.columns);
        let height = TOP + rows as f64 * view.panel_height() + FOOT;
        let mut svg = head(&self.title, &self.description(), height, style);
        for (index, sheet) in self.sheets.iter().enumerate() {
            let column = (index % view.columns) as f64;
            let row = (index / view.columns) as f64;
            let x = (column + 0.5) * WIDTH / view.columns as f64;
            let y = TOP + (row + 1.0) * view.panel_height() - view.below();
            let _ = write!(svg, "<g transform=\"translate({} {})\">", px(x), px(y));
            view.panel(&mut svg, sheet);
            svg += "</g>\n";
        }
        view.legend(&mut svg, height);
        svg += "</svg>\n";
        svg
    }

    /// The description for screen readers.
    fn description(&self) -> String {
        let mut text = format!("{} over {} and {}.", self.z.label, self.x.label, self.y.label);
        for sheet in &self.sheets {
            let heights = sheet.zs.iter().flatten().copied().flatten();
            let span = self.z.scale.range(heights).map_or("no data".to_owned(), |range| {
                format!("{} to {}", self.z.unit.show(range.lo()), self.z.unit.show(range.hi()))
            });
            let _ = write!(text, " {}: {span}.", sheet.name);
        }
        text
    }
}

/// The projection and the size of the surfaces, shared by all panels.
struct View<'a> {
    surface: &'a Surface,
    xs: Vec<Line>,
    ys: Vec<Line>,
    heights: ValueRange,
    /// Panels side by side.
    columns: usize,
    /// Half the width and half the depth of the base, and the height of the box, in pixels.
    across: f64,
    along: f64,
    up: f64,
}

/// A point in the box: each coordinate between 0 and 1, the origin at the near corner.
#[derive(Clone, Copy)]
struct Spot {
    x: f64,
    y: f64,
    z: f64,
}

impl<'a> View<'a> {
    fn new(surface: &'a Surface) -> Option<Self> {
        let heights = surface.heights()?;
        let heights = surface.z.scale.widen(&surface.z.unit, heights, TICKS - 1);
        let mut xs = Surface::lines(&surface.x, &surface.xs, LINES_MAX);
        let mut ys = Surface::lines(&surface.y, &surface.ys, LINES_MAX);
        let (far_x, far_y) = surface.lowest_corner(&xs, &ys);
        let turn = |lines: &mut [Line]| {
            for line in lines {
                line.place = 1.0 - line.place;
            }
        };
        if far_x {
            turn(&mut xs);
        }
        if far_y {
            turn(&mut ys);
        }
        let columns = surface.sheets.len().clamp(1, 2);
        let size = if columns == 1 { 1.75 } else { 1.0 };
        Some(Self {
            surface,
            xs,
            ys,
            heights,
            columns,
            across: 128.0 * size,
            along: 58.0 * size,
            up: 110.0 * size,
        })
    }

    /// Projects a point to pixels, relative to the near corner of the base.
    fn project(&self, spot: Spot) -> (f64, f64) {
        let across = (spot.x - spot.y) * self.across;
        (across, -(spot.x + spot.y) * self.along - spot.z * self.up)
    }

    /// The height of the labels below the near corner.
    fn below(&self) -> f64 {
        if self.columns == 1 { 30.0 } else { 24.0 }
    }

    fn panel_height(&self) -> f64 {
        2.0 * self.along + self.up + self.below() + 40.0
    }

    fn panel(&self, svg: &mut String, sheet: &Sheet) {
        let top = -(2.0 * self.along + self.up);
        if !sheet.name.is_empty() {
            let (y, name) = (px(top - 14.0), escape(&clean(&sheet.name)));
            let _ = write!(
                svg,
                "<text class=\"name\" y=\"{y}\" text-anchor=\"middle\">{name}</text>"
            );
        }
        self.walls(svg);
        self.facets(svg, sheet);
        self.ticks(svg);
    }

    /// Draws the base and the two far walls, with lines at the ticks of the z axis.
    fn walls(&self, svg: &mut String) {
        let spot = |x, y, z| self.project(Spot { x, y, z });
        let ground = [spot(0., 0., 0.), spot(1., 0., 0.), spot(1., 1., 0.), spot(0., 1., 0.)];
        let _ = write!(svg, "<path class=\"grid\" fill=\"none\" d=\"{}Z\"/>", path(&ground));
        for (tick, _) in self.height_ticks() {
            let wall = [spot(0., 1., tick), spot(1., 1., tick), spot(1., 0., tick)];
            let _ = write!(svg, "<path class=\"grid\" fill=\"none\" d=\"{}\"/>", path(&wall));
        }
        for (x, y) in [(0.0, 1.0), (1.0, 1.0), (1.0, 0.0)] {
            let post = [spot(x, y, 0.0), spot(x, y, 1.0)];
            let _ = write!(svg, "<path class=\"grid\" d=\"{}\"/>", path(&post));
        }
        svg.push('\n');
    }

    /// Draws the surface, from the farthest facet to the nearest.
    fn facets(&self, svg: &mut String, sheet: &Sheet) {
        let scale = self.surface.z.scale;
        let spot = |x: &Line, y: &Line| {
            let z = sheet.at(x.index, y.index).filter(|&z| scale.admits(z))?;
            Some(Spot {
                x: x.place,
                y: y.place,
                z: scale.place(self.heights, z),
            })
        };
        let mut facets: Vec<(f64, [Spot; 4], String)> = Vec::new();
        for x in self.xs.windows(2) {
            for y in self.ys.windows(2) {
                let corners = [(0, 0), (1, 0), (1, 1), (0, 1)].map(|(i, j)| spot(&x[i], &y[j]));
                // A facet with a missing corner is left out.
                let [Some(a), Some(b), Some(c), Some(d)] = corners else {
                    continue;
                };
                let tip = self.tip(sheet, &x[0], &y[0]);
                facets.push((a.x + c.x + a.y + c.y, [a, b, c, d], tip));
            }
        }
        facets.sort_by(|a, b| b.0.total_cmp(&a.0));
        let tips = facets.len() <= TIPS_MAX;
        for (_, corners, tip) in &facets {
            let colour = hex(ramp(corners.iter().map(|spot| spot.z).sum::<f64>() / 4.0));
            let outline = path(&corners.map(|spot| self.project(spot)));
            let tip = if tips {
                format!("<title>{}</title>", escape(tip))
            } else {
                String::new()
            };
            let _ = write!(
                svg,
                "<path class=\"facet\" fill=\"{colour}\" d=\"{outline}Z\">{tip}</path>"
            );
        }
        if facets.is_empty() {
            *svg += "<text y=\"-60\" text-anchor=\"middle\">no data</text>";
        }
        svg.push('\n');
    }

    fn tip(&self, sheet: &Sheet, x: &Line, y: &Line) -> String {
        let surface = self.surface;
        let z = sheet
            .at(x.index, y.index)
            .map_or_else(String::new, |z| surface.z.unit.show(z));
        format!(
            "{}, {}: {z}",
            surface.x.unit.show(x.value),
            surface.y.unit.show(y.value)
        )
    }

    /// Draws tick labels and names along the two near edges and the left edge.
    fn ticks(&self, svg: &mut String) {
        let surface = self.surface;
        let edges = [
            (&self.xs, &surface.x, &surface.xs, 1.0, "start"),
            (&self.ys, &surface.y, &surface.ys, -1.0, "end"),
        ];
        for (lines, axis, values, side, anchor) in edges {
            let Some(range) = axis.scale.range(values.iter().copied()) else {
                continue;
            };
            let flipped = lines.first().is_some_and(|line| line.place > 0.5) && lines.len() > 1;
            let ticks = axis.scale.ticks(&axis.unit, range, EDGE_TICKS);
            for (tick, label) in ticks.iter().zip(axis.unit.labels(&ticks)) {
                let place = axis.scale.place(range, *tick);
                let place = if flipped { 1.0 - place } else { place };
                let (x, y) = (side * place * self.across, -place * self.along);
                let _ = write!(
                    svg,
                    "<path class=\"axis\" d=\"M{} {}l{} 3\"/>\
                     <text x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\" font-size=\"11\">{}</text>",
                    px(x),
                    px(y),
                    px(side * 5.0),
                    px(x + side * 8.0),
                    px(y + 16.0),
                    escape(&label)
                );
            }
            self.edge_name(svg, &axis.label, side);
        }
        for (tick, label) in self.height_ticks() {
            let (x, y) = self.project(Spot {
                x: 0.0,
                y: 1.0,
                z: tick,
            });
            let _ = write!(
                svg,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" font-size=\"11\">{}</text>",
                px(x - 7.0),
                px(y + 2.0),
                escape(&label)
            );
        }
        svg.push('\n');
    }

    /// Draws an axis's name along its edge of the base, outside of the tick labels.
    fn edge_name(&self, svg: &mut String, name: &str, side: f64) {
        let angle = -side * self.along.atan2(self.across).to_degrees();
        // Far enough out for labels such as `256 MiB`.
        let (x, y) = (side * (self.across / 2.0 + 44.0), -self.along / 2.0 + 37.0);
        let _ = write!(
            svg,
            "<text text-anchor=\"middle\" transform=\"translate({} {}) rotate({angle:.1})\">{}</text>",
            px(x),
            px(y),
            escape(&clean(name))
        );
    }

    /// The positions and labels of the ticks of the z axis.
    fn height_ticks(&self) -> Vec<(f64, String)> {
        let z = &self.surface.z;
        let ticks = z.scale.ticks(&z.unit, self.heights, TICKS);
        let places = ticks.iter().map(|&tick| z.scale.place(self.heights, tick));
        places.zip(z.unit.labels(&ticks)).collect()
    }

    /// Draws the colour scale, with a note if grid lines were left out.
    fn legend(&self, svg: &mut String, height: f64) {
        const STEPS: usize = 64;
        const LENGTH: f64 = 240.0;
        let (left, top) = ((WIDTH - LENGTH) / 2.0, height - 34.0);
        for step in 0..STEPS {
            let colour = hex(ramp((step as f64 + 0.5) / STEPS as f64));
            let x = left + step as f64 * LENGTH / STEPS as f64;
            // One pixel wider, to hide the seams.
            let wide = px(LENGTH / STEPS as f64 + 1.0);
            let (x, y) = (px(x), px(top));
            let _ = write!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{wide}\" height=\"9\" fill=\"{colour}\"/>"
            );
        }
        let unit = &self.surface.z.unit;
        let thinned = self.xs.len() < self.surface.xs.len() || self.ys.len() < self.surface.ys.len();
        let note = if thinned {
            " (not every line of the grid is drawn)"
        } else {
            ""
        };
        let label = format!("{}{note}", clean(&self.surface.z.label));
        let texts = [
            (left - 8.0, top + 9.0, "end", unit.labels(&[self.heights.lo()]).concat()),
            (left + LENGTH + 8.0, top + 9.0, "start", unit.show(self.heights.hi())),
            (WIDTH / 2.0, top + 25.0, "middle", label),
        ];
        for (x, y, anchor, text) in texts {
            let (x, y, text) = (px(x), px(y), escape(&text));
            let _ = write!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{text}</text>");
        }
        svg.push('\n');
    }
}

/// Path data through `points`.
fn path(points: &[(f64, f64)]) -> String {
    let mut path = String::new();
    for (i, (x, y)) in points.iter().enumerate() {
        let _ = write!(path, "{}{} {}", if i == 0 { "M" } else { "L" }, px(*x), px(*y));
    }
    path
}
