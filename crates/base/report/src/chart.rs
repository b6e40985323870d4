//! Charts: curves over two axes, as plain data.
//!
//! A chart is independent of its renderer: it is drawn with braille dots in a terminal ([`Chart::to_text`]) and as SVG
//! on a page ([`Chart::to_svg`]). It may have millions of points; the renderers thin them without losing extremes (see
//! `frame.rs`).

mod canvas;
mod frame;
mod label;
mod svg;
mod text;

use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::SerializeSeq};

use crate::{Scale, Unit};

/// Curves over two axes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// The title.
    pub title: String,
    /// The x axis. It covers exactly the points.
    pub x: Axis,
    /// The y axis. A linear axis starts at zero, unless it is [fitted](Axis::fitted).
    pub y: Axis,
    /// The curves.
    pub series: Vec<Series>,
    /// Horizontal lines across the plot: a line rate, a deadline.
    #[serde(default)]
    pub limits: Vec<Limit>,
}

/// An axis of a chart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// The label.
    pub label: String,
    /// The unit of its numbers.
    pub unit: Unit,
    /// The scale.
    pub scale: Scale,
    /// Whether the axis covers only the values, even if they are far from zero.
    #[serde(default)]
    pub fitted: bool,
}

/// One curve.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// The points, drawn in order. A point that is not finite is a gap in the curve.
    #[serde(serialize_with = "write_points", deserialize_with = "read_points")]
    pub points: Vec<(f64, f64)>,
    /// The stroke.
    #[serde(default)]
    pub stroke: Stroke,
    /// Labelled points, such as a knee.
    #[serde(default)]
    pub marks: Vec<Mark>,
}

/// The stroke of a curve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stroke {
    /// A solid line, for measurements.
    #[default]
    Solid,
    /// A dashed line, for predictions.
    Dashed,
    /// Points without a line, if values between them have no meaning.
    Dots,
}

/// A labelled point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// The x value.
    #[serde(deserialize_with = "null_is_nan")]
    pub x: f64,
    /// The y value.
    #[serde(deserialize_with = "null_is_nan")]
    pub y: f64,
    /// The label.
    pub label: String,
}

/// A horizontal line across the plot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// The y value.
    #[serde(deserialize_with = "null_is_nan")]
    pub y: f64,
    /// The label.
    pub label: String,
}

impl Chart {
    /// A chart without curves.
    pub fn new(title: impl Into<String>, x: Axis, y: Axis) -> Self {
        Self {
            title: title.into(),
            x,
            y,
            ..Self::default()
        }
    }

    /// Adds a curve.
    #[must_use]
    pub fn with(mut self, series: Series) -> Self {
        self.series.push(series);
        self
    }

    /// Adds a horizontal line across the plot.
    #[must_use]
    pub fn limit(mut self, y: f64, label: impl Into<String>) -> Self {
        self.limits.push(Limit { y, label: label.into() });
        self
    }
}

impl Axis {
    /// An axis where equal differences take equal space.
    pub fn linear(label: impl Into<String>, unit: Unit) -> Self {
        Self {
            label: label.into(),
            unit,
            scale: Scale::Linear,
            fitted: false,
        }
    }

    /// An axis where each doubling takes equal space.
    pub fn log2(label: impl Into<String>, unit: Unit) -> Self {
        Self {
            scale: Scale::Log2,
            ..Self::linear(label, unit)
        }
    }

    /// An axis where each factor of ten takes equal space.
    pub fn log10(label: impl Into<String>, unit: Unit) -> Self {
        Self {
            scale: Scale::Log10,
            ..Self::linear(label, unit)
        }
    }

    /// Makes the axis cover only the values, even if they are far from zero. Small differences become visible, and look
    /// larger than they are.
    #[must_use]
    pub fn fitted(mut self) -> Self {
        self.fitted = true;
        self
    }
}

impl Series {
    /// A curve through `points`.
    pub fn new(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Self {
            name: name.into(),
            points: points.into_iter().collect(),
            ..Self::default()
        }
    }

    /// Draws a dashed line, for a prediction.
    #[must_use]
    pub fn dashed(mut self) -> Self {
        self.stroke = Stroke::Dashed;
        self
    }

    /// Draws points without a line.
    #[must_use]
    pub fn dots(mut self) -> Self {
        self.stroke = Stroke::Dots;
        self
    }

    /// Adds a label at a point.
    #[must_use]
    pub fn mark(mut self, x: f64, y: f64, label: impl Into<String>) -> Self {
        self.marks.push(Mark {
            x,
            y,
            label: label.into(),
        });
        self
    }
}

/// JSON has no NaN and no infinity; they are written as `null` and read back as NaN.
pub(crate) fn null_is_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

fn write_points<S: Serializer>(points: &[(f64, f64)], serializer: S) -> Result<S::Ok, S::Error> {
    let finite = |value: f64| value.is_finite().then_some(value);
    let mut list = serializer.serialize_seq(Some(points.len()))?;
    for &(x, y) in points {
        list.serialize_element(&(finite(x), finite(y)))?;
    }
    list.end()
}

fn read_points<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(f64, f64)>, D::Error> {
    let points = Vec::<(Option<f64>, Option<f64>)>::deserialize(deserializer)?;
    let value = |value: Option<f64>| value.unwrap_or(f64::NAN);
    Ok(points.into_iter().map(|(x, y)| (value(x), value(y))).collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two curves, one of them predicted, a knee and a limit.
    pub(crate) fn sample() -> Chart {
        let rate = |depth: f64| {
            move |step: i32| {
                let block = 4096.0 * 2f64.powi(step);
                (block, 1.0 / (1.0 / 6.9e9 + 80e-6 / (depth * block)))
            }
        };
        let (x, y) = rate(8.0)(8);
        Chart::new(
            "Reads from one drive",
            Axis::log2("block size", Unit::Bytes),
            Axis::linear("throughput", Unit::Rate),
        )
        .with(Series::new("depth 1", (0..=10).map(rate(1.0))).dashed())
        .with(Series::new("depth 8", (0..=10).map(rate(8.0))).mark(x, y, "knee"))
        .limit(7e9, "drive limit")
    }

    /// Charts with arbitrary data.
    pub(crate) fn any_chart() -> impl Strategy<Value = Chart> {
        let scale = || prop_oneof![Just(Scale::Linear), Just(Scale::Log2), Just(Scale::Log10)];
        let value = || {
            prop_oneof![
                any::<f64>(),
                -10.0..10.0,
                Just(f64::NAN),
                Just(f64::INFINITY),
                Just(0.0),
                Just(f64::MAX),
                Just(f64::MIN_POSITIVE)
            ]
        };
        let stroke = prop_oneof![Just(Stroke::Solid), Just(Stroke::Dashed), Just(Stroke::Dots)];
        let points = prop::collection::vec((value(), value()), 0..40);
        let series = prop::collection::vec(("\\PC{0,12}", points, stroke), 0..12);
        (scale(), scale(), series, value(), any::<String>(), any::<bool>()).prop_map(
            |(x, y, series, at, text, fitted)| {
                let axis = |scale| Axis {
                    label: text.clone(),
                    unit: Unit::Rate,
                    scale,
                    fitted,
                };
                let mut chart = Chart::new(text.clone(), axis(x), axis(y)).limit(at, text.clone());
                for (name, points, stroke) in series {
                    let series = Series {
                        stroke,
                        ..Series::new(name, points)
                    };
                    chart = chart.with(series.mark(at, at, text.clone()));
                }
                chart
            },
        )
    }

    #[test]
    fn a_chart_survives_json_and_back_with_its_gaps() {
        let chart = sample();
        let text = serde_json::to_string(&chart).unwrap();
        assert_eq!(serde_json::from_str::<Chart>(&text).unwrap(), chart);
        let gap = Series::new("gap", [(1.0, f64::NAN), (2.0, f64::INFINITY)]);
        let text = serde_json::to_string(&gap).unwrap();
        let back: Series = serde_json::from_str(&text).unwrap();
        assert!(back.points.iter().all(|point| point.1.is_nan()), "{text}");
    }
}
