//! The page of a sweep: a table and a chart for each unit; and its JSON.

use serde_json::{Value, json};
use straightway_core::{Bytes, Rate, Seconds};
use straightway_report::{Axis, Block, Cell, Chart, Column, Page, Scale, Series, Table, Unit};
use straightway_scenario::{
    check::Refusals,
    claim::lookup,
    sweep::{self, ParameterSweep},
};

mod headline;

use crate::cells::listed;

pub use headline::{Headline, chosen, unit};

/// A point whose answer is JSON, so that any model can produce it.
type Point = sweep::GridPoint<Value>;

/// The points of a sweep with their answers, and the figures to show.
#[derive(Debug)]
pub struct Grid {
    title: String,
    sweeps: Vec<ParameterSweep>,
    points: Vec<Point>,
    headlines: Vec<Headline>,
}

impl Grid {
    /// Creates a grid. Fails if every point was refused, or if a requested figure is in no answer. A default figure
    /// that is in no answer is left out.
    pub fn new(
        title: &str,
        sweeps: Vec<ParameterSweep>,
        points: Vec<Point>,
        mut headlines: Vec<Headline>,
    ) -> Result<Self, Refusals> {
        if let Some(refused) = all_refused(&points) {
            return Err(refused.clone());
        }
        for headline in headlines.iter().filter(|headline| headline.is_asked) {
            if !has(&points, headline) {
                let known = fields(&points).join(", ");
                let path = &headline.path;
                return Err(Refusals::one(
                    "show",
                    path,
                    format!("a figure of the answer; it has {known}"),
                ));
            }
        }
        headlines.retain(|headline| has(&points, headline));
        Ok(Self {
            title: title.to_owned(),
            sweeps,
            points,
            headlines,
        })
    }

    /// Renders the page: a table, and a chart for each unit.
    pub fn page(&self) -> Page {
        let over: Vec<&str> = self.sweeps.iter().map(|s| s.path.as_str()).collect();
        let title = format!("{} over {}", self.title, over.join(" and "));
        let mut blocks: Vec<Block> = self.charts();
        blocks.insert(0, self.table().into());
        let page = Page::new(title).section("", blocks);
        let refused = refusals(&self.points);
        if refused.is_empty() {
            page
        } else {
            page.section("Refused", [Block::from(refused.join("\n\n"))])
        }
    }

    /// Renders the points as JSON: the settings, and the answer or the refusals.
    pub fn json(&self) -> Value {
        let point = |point: &Point| {
            let set: serde_json::Map<String, Value> = point
                .settings
                .iter()
                .map(|setting| (setting.path.clone(), json!(setting.value)))
                .collect();
            match &point.answer {
                Ok(answer) => json!({ "set": set, "answer": answer }),
                Err(refused) => json!({ "set": set, "refused": refused }),
            }
        };
        self.points.iter().map(point).collect()
    }

    fn table(&self) -> Table {
        let swept = self.sweeps.iter().map(column);
        let shown = self.headlines.iter().map(|headline| {
            let words = self
                .points
                .iter()
                .any(|p| figure(p, headline).is_some_and(Value::is_string));
            if words {
                Column::text(&*headline.label)
            } else {
                Column::new(&*headline.label, headline.unit.clone())
            }
        });
        let mut table = Table::new("", swept.chain(shown));
        for point in &self.points {
            let swept = point.settings.iter().map(|setting| quantity(&setting.value));
            let shown = self.headlines.iter().map(|headline| cell(point, headline));
            table.push(swept.chain(shown));
        }
        table
    }

    /// One chart for each unit, over the first sweep; a second sweep makes more lines. Figures that do not change are a
    /// sentence.
    fn charts(&self) -> Vec<Block> {
        let Some(x) = axis(&self.sweeps[0]) else {
            return Vec::new();
        };
        let mut units: Vec<&Unit> = Vec::new();
        for headline in &self.headlines {
            if !units.contains(&&headline.unit) {
                units.push(&headline.unit);
            }
        }
        let (mut charts, mut constant) = (Vec::new(), Vec::new());
        for unit in units {
            let of_unit = self.headlines.iter().filter(|headline| headline.unit == *unit);
            let (level, moving): (Vec<&Headline>, Vec<_>) =
                of_unit.partition(|headline| self.level(headline).is_some());
            constant.extend(level);
            let chart = self.chart(&x, unit, &moving);
            // A chart with more lines than colours is not legible.
            if (1..=8).contains(&chart.series.len()) {
                charts.push(Block::from(chart));
            }
        }
        let sentence = |headline: &&Headline| {
            let value = Cell::number(self.level(headline)?, headline.unit.clone()).show();
            Some(format!("{} is {value}", headline.label))
        };
        let constant: Vec<String> = constant.iter().filter_map(sentence).collect();
        if !constant.is_empty() {
            charts.push(format!("The same at every point: {}.", constant.join("; ")).into());
        }
        charts
    }

    /// The chart of figures with one unit.
    fn chart(&self, x: &Axis, unit: &Unit, headlines: &[&Headline]) -> Chart {
        let mut series = Vec::new();
        for headline in headlines {
            let label = (headlines.len() > 1).then_some(headline.label.as_str());
            let lines = lines(&self.points, headline, label).into_iter();
            series.extend(lines.map(|(name, line)| Series::new(name, line)));
        }
        let labels: Vec<&str> = headlines.iter().map(|headline| headline.label.as_str()).collect();
        let mut y = Axis::linear(y_label(unit, &labels), unit.clone());
        y.scale = y_scale(&series);
        // Shares of more than a half differ in their last digits.
        y.fitted = *unit == Unit::Share && points(&series).all(|value| value > 0.5);
        let title = format!("{} by {}", listed(&labels), self.sweeps[0].path);
        Chart {
            series,
            ..Chart::new(title, x.clone(), y)
        }
    }

    /// The value of a figure that is the same at all points that have it.
    fn level(&self, headline: &Headline) -> Option<f64> {
        let mut values = self.points.iter().filter_map(|point| figure(point, headline)?.as_f64());
        let first = values.next()?;
        values
            .all(|value| (value - first).abs() <= 1e-9 * first.abs())
            .then_some(first)
    }
}

/// The label of a y axis: its quantity.
fn y_label(unit: &Unit, labels: &[&str]) -> String {
    match unit {
        Unit::Bytes => "size".to_owned(),
        Unit::Rate => "rate".to_owned(),
        Unit::Seconds => "time".to_owned(),
        Unit::Share => "share".to_owned(),
        Unit::Count => listed(labels),
        Unit::Named(name) => name.clone(),
    }
}

/// The scale of the y axis: logarithmic if the largest of its values would hide the others.
fn y_scale(series: &[Series]) -> Scale {
    /// Points of a linear axis below this part of its length lie on zero.
    const HIDDEN: f64 = 50.0;
    let least = points(series).fold(f64::MAX, f64::min);
    let most = points(series).fold(0.0, f64::max);
    if least > 0.0 && least * HIDDEN < most {
        Scale::Log10
    } else {
        Scale::Linear
    }
}

/// The values of all points.
fn points(series: &[Series]) -> impl Iterator<Item = f64> + '_ {
    series.iter().flat_map(|series| &series.points).map(|point| point.1)
}

/// The figures of one answer at `paths`: a page, and a JSON object with a field for each path. Refuses a path that is
/// not in the answer.
pub fn figures(title: &str, answer: &Value, paths: &[String]) -> Result<(Page, Value), Refusals> {
    let mut table = Table::new("", [Column::text("figure"), Column::mixed("value")]);
    let mut json = serde_json::Map::new();
    for headline in chosen(&[], paths) {
        let path = &headline.path;
        let Some(value) = lookup(answer, path) else {
            let fields = answer.as_object().into_iter().flat_map(|fields| fields.keys().cloned());
            let known = fields.collect::<Vec<_>>().join(", ");
            let allowed = format!("a figure of the answer; it has {known}");
            return Err(Refusals::one("show", path, allowed));
        };
        let shown = match value {
            Value::String(word) => word.as_str().into(),
            value => value
                .as_f64()
                .map_or(Cell::Missing, |value| Cell::number(value, headline.unit.clone())),
        };
        table.push([path.as_str().into(), shown]);
        json.insert(path.clone(), value.clone());
    }
    Ok((Page::new(title).section("", [table.into()]), Value::Object(json)))
}

/// A figure of a point's answer; `None` if the point was refused, or the figure is absent or null.
fn figure<'a>(point: &'a Point, headline: &Headline) -> Option<&'a Value> {
    let figure = lookup(point.answer.as_ref().ok()?, &headline.path)?;
    (!figure.is_null()).then_some(figure)
}

fn has(points: &[Point], headline: &Headline) -> bool {
    points.iter().any(|point| figure(point, headline).is_some())
}

/// The top-level fields of the first answer.
fn fields(points: &[Point]) -> Vec<String> {
    let answer = points.iter().find_map(|point| point.answer.as_ref().ok());
    let fields = answer.and_then(Value::as_object);
    fields.map_or_else(Vec::new, |fields| fields.keys().cloned().collect())
}

fn cell(point: &Point, headline: &Headline) -> Cell {
    match figure(point, headline) {
        Some(Value::String(word)) => word.as_str().into(),
        Some(value) => value
            .as_f64()
            .map_or(Cell::Missing, |value| Cell::number(value, headline.unit.clone())),
        None => Cell::Missing,
    }
}

/// The refusals of the first point, if no point has an answer.
fn all_refused(points: &[Point]) -> Option<&Refusals> {
    let answered = points.iter().any(|point| point.answer.is_ok());
    points.first().filter(|_| !answered)?.answer.as_ref().err()
}

fn refusals(points: &[Point]) -> Vec<String> {
    let at = |point: &Point| {
        let set = point.settings.iter().map(|s| format!("{}={}", s.path, s.value));
        set.collect::<Vec<_>>().join(", ")
    };
    let refused = points
        .iter()
        .filter_map(|point| Some((at(point), point.answer.as_ref().err()?)));
    refused.map(|(at, why)| format!("{at}: {why}")).collect()
}

/// The column of swept values, with a unit if all values have the same.
fn column(sweep: &ParameterSweep) -> Column {
    let mut units = sweep.values.iter().map(|value| quantity(value).unit().cloned());
    let first = units.next().flatten();
    match first.filter(|unit| units.all(|other| other.as_ref() == Some(unit))) {
        Some(unit) => Column::new(&*sweep.path, unit),
        None => Column::mixed(&*sweep.path),
    }
}

/// A swept value as a number with its unit, or as text.
fn quantity(text: &str) -> Cell {
    if let Ok(number) = text.parse::<f64>() {
        Cell::count(number)
    } else if let Ok(rate) = text.parse::<Rate>() {
        rate.into()
    } else if let Ok(seconds) = text.parse::<Seconds>() {
        seconds.into()
    } else if let Ok(bytes) = text.parse::<Bytes>() {
        bytes.into()
    } else {
        text.into()
    }
}

/// The axis of a sweep: logarithmic if its values span more than a decade; `None` if they are not all numbers.
fn axis(sweep: &ParameterSweep) -> Option<Axis> {
    let cells: Vec<Cell> = sweep.values.iter().map(|value| quantity(value)).collect();
    let numbers: Option<Vec<f64>> = cells.iter().map(number).collect();
    let numbers = numbers.filter(|numbers| numbers.len() > 1)?;
    let unit = cells[0].unit().cloned().unwrap_or_default();
    let (least, most) = (
        numbers.iter().copied().fold(f64::MAX, f64::min),
        numbers.iter().copied().fold(0.0, f64::max),
    );
    let mut axis = Axis::linear(&*sweep.path, unit);
    // Values over more than a decade would be crowded on a linear axis.
    if least > 0.0 && most / least > 10.0 {
        axis.scale = Scale::Log10;
    }
    Some(axis)
}

fn number(cell: &Cell) -> Option<f64> {
    match cell {
        Cell::Number { value, .. } => Some(*value),
        _ => None,
    }
}

/// A figure's lines over the first sweep, one for each setting of the others. Each is named by `label` and those
/// settings.
fn lines(points: &[Point], headline: &Headline, label: Option<&str>) -> Vec<(String, Vec<(f64, f64)>)> {
    let mut lines: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for point in points {
        let (first, others) = point.settings.split_first().expect("a sweep sets something");
        // The last word of a path and a rounded value: longer names do not fit beside a curve.
        let others = others.iter().map(|setting| {
            let name = setting.path.rsplit('.').next().unwrap_or(&setting.path);
            format!("{name} {}", quantity(&setting.value).show())
        });
        let words: Vec<String> = label.map(str::to_owned).into_iter().chain(others).collect();
        let name = words.join(", ");
        let x = number(&quantity(&first.value));
        let y = figure(point, headline).and_then(Value::as_f64);
        let Some(at) = x.zip(y) else { continue };
        match lines.iter_mut().find(|(known, _)| *known == name) {
            Some((_, line)) => line.push(at),
            None => lines.push((name, vec![at])),
        }
    }
    lines
}
