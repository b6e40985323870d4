//! Input validation: the values a model accepts, and the errors for all others.
//!
//! Every input type defines its valid values in one place ([`Checkable`]). A [`Checker`] walks the input and collects
//! *all* errors, each as a [`Refusal`] with the field, the value, what is allowed and, for TOML, the line. [`read`] is
//! the only function from text to a checked input: syntax errors, unknown keys, wrong types and impossible values all
//! give the same kind of error.
//!
//! A range excludes only impossible values, such as a bandwidth of zero or a checkpoint of 10^40 bytes. An unwise but
//! possible value is accepted, and the answer shows its effect.

mod misfit;
mod place;
mod tree;

use std::{fmt, ops::RangeInclusive};

use serde::{Serialize, de::DeserializeOwned};
use straightway_core::{Bytes, Rate, Seconds, nearest::nearest, text::shown};
use toml::{Table, de::DeValue};

pub use self::place::{PathStep, steps};
use self::{
    misfit::{Misfit, Reason},
    place::{dotted, find, line_at},
    tree::{TreeValue, parse},
};

/// The largest text accepted. The largest real topology so far takes 60 KiB.
pub const TEXT_BYTES_MAX: usize = 1 << 20;

/// The most refusals collected from one input. A thousand wrong links do not need a thousand lines.
pub const REFUSALS_MAX: usize = 20;

/// The longest value shown in a message.
const VALUE_CHARS_MAX: usize = 60;

/// The range of any rate: 1 kB/s to 1 EB/s.
pub const RATE_ANY: RangeInclusive<Rate> = Rate(1e3)..=Rate(1e18);

/// The range of any size: one byte to 8 EB.
pub const BYTES_ANY: RangeInclusive<Bytes> = Bytes(1)..=Bytes(8_000_000_000_000_000_000);

/// The range of any time: zero to three centuries.
pub const TIME_ANY: RangeInclusive<Seconds> = Seconds(0.0)..=Seconds(1e10);

/// The range of any time that must not be zero.
pub const TIME_POSITIVE: RangeInclusive<Seconds> = Seconds(1e-12)..=Seconds(1e10);

/// A refused value, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The dotted path of the field, such as `cluster.gpus` or `links[3].rate`.
    pub field: String,
    /// The value as given.
    pub value: String,
    /// The allowed values.
    pub allowed: String,
    /// The line in the text, counted from one.
    pub line: Option<usize>,
    /// The name that was probably meant by a field that does not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meant: Option<String>,
}

/// All refusals of one input; never empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusals(pub Vec<Refusal>);

/// An input that can check its own values.
pub trait Checkable {
    /// Reports every invalid value to `c`.
    fn check(&self, c: &mut Checker);
}

/// Collects the refusals of an input.
#[derive(Debug, Default)]
pub struct Checker {
    path: String,
    refusals: Vec<Refusal>,
}

/// Reads `text` as TOML into an input and checks it.
pub fn read<T: DeserializeOwned + Checkable>(text: &str) -> Result<T, Refusals> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(Refusals::one(
            "(text)",
            format!("{} bytes", text.len()),
            format!("at most {TEXT_BYTES_MAX} bytes"),
        ));
    }
    let tree = parse(text).map_err(|e| syntax(text, &e))?;
    let input = T::deserialize(TreeValue::Parsed(&tree)).map_err(|misfit| mistyped(text, &tree, &misfit))?;
    checked(&input).map_err(|refusals| refusals.with_lines(text, &tree))?;
    Ok(input)
}

/// Reads an input from a table without checking it. The error is what is allowed instead.
pub(crate) fn fit<T: DeserializeOwned>(table: &Table) -> Result<T, String> {
    T::deserialize(TreeValue::Table(table)).map_err(|misfit| misfit.allowed())
}

/// What a type allows in the place of a value that does not fit it.
#[derive(Debug)]
pub(crate) enum Shape {
    /// A table with these fields.
    Fields(&'static [&'static str]),
    /// A value, described in words.
    Value(String),
}

/// What is allowed instead of the first value of a table that does not fit; `None` if all fit.
pub(crate) fn misfit<T: DeserializeOwned>(table: &Table) -> Option<Shape> {
    let misfit = T::deserialize(TreeValue::Table(table)).err()?;
    Some(match misfit.reason {
        Reason::UnknownKey(fields) => Shape::Fields(fields),
        _ => Shape::Value(misfit.allowed()),
    })
}

/// Checks an input that did not come from text. The refusals have no lines.
pub fn checked(input: &impl Checkable) -> Result<(), Refusals> {
    let mut checker = Checker::default();
    input.check(&mut checker);
    checker.finish()
}

impl Checker {
    /// Refuses a `value` outside `allowed`; NaN and infinity are outside every range.
    pub fn range(&mut self, field: &str, value: f64, allowed: RangeInclusive<f64>, unit: &str) {
        if value.is_finite() && allowed.contains(&value) {
            return;
        }
        let unit = if unit.is_empty() {
            String::new()
        } else {
            format!(" {unit}")
        };
        let range = format!("from {} to {}{unit}", plain(*allowed.start()), plain(*allowed.end()));
        self.refuse(field, format!("{}{unit}", plain(value)), range);
    }

    /// Refuses a count outside `allowed`.
    pub fn count(&mut self, field: &str, value: u64, allowed: RangeInclusive<u64>) {
        if !allowed.contains(&value) {
            let range = format!("a whole number from {} to {}", allowed.start(), allowed.end());
            self.refuse(field, value, range);
        }
    }

    /// Refuses a share outside 0 to 1.
    pub fn share(&mut self, field: &str, value: f64) {
        self.range(field, value, 0.0..=1.0, "");
    }

    /// Refuses a size outside `allowed`.
    pub fn bytes(&mut self, field: &str, value: Bytes, allowed: RangeInclusive<Bytes>) {
        if !allowed.contains(&value) {
            let range = format!("from {} to {}", allowed.start(), allowed.end());
            self.refuse(field, value, range);
        }
    }

    /// Refuses a rate outside `allowed`.
    pub fn rate(&mut self, field: &str, value: Rate, allowed: RangeInclusive<Rate>) {
        if !(value.0.is_finite() && allowed.contains(&value)) {
            let range = format!("from {} to {}", allowed.start(), allowed.end());
            self.refuse(field, value, range);
        }
    }

    /// Refuses a time outside `allowed`.
    pub fn seconds(&mut self, field: &str, value: Seconds, allowed: RangeInclusive<Seconds>) {
        if !(value.0.is_finite() && allowed.contains(&value)) {
            let range = format!("from {} to {}", allowed.start(), allowed.end());
            self.refuse(field, value, range);
        }
    }

    /// Refuses `value`, with a description of what is `allowed`.
    pub fn refuse(&mut self, field: &str, value: impl fmt::Display, allowed: impl Into<String>) {
        if self.refusals.len() < REFUSALS_MAX {
            self.refusals.push(Refusal {
                field: join(&self.path, field),
                value: shorten(&value.to_string()),
                allowed: allowed.into(),
                line: None,
                meant: None,
            });
        }
    }

    /// Runs `check` with `field` appended to the path.
    pub fn within(&mut self, field: &str, check: impl FnOnce(&mut Self)) {
        let outer = self.path.len();
        self.path = join(&self.path, field);
        check(self);
        self.path.truncate(outer);
    }

    /// Checks a nested input.
    pub fn nested(&mut self, field: &str, input: &impl Checkable) {
        self.within(field, |c| input.check(c));
    }

    /// Checks every element of a list, as `field[0]`, `field[1]` and so on, and its length.
    pub fn each<T: Checkable>(&mut self, field: &str, items: &[T], len: RangeInclusive<usize>) {
        if !len.contains(&items.len()) {
            let range = format!("from {} to {} entries", len.start(), len.end());
            self.refuse(field, format!("{} entries", items.len()), range);
        }
        for (i, item) in items.iter().enumerate().take(*len.end()) {
            self.nested(&format!("{field}[{i}]"), item);
        }
    }

    /// Whether nothing was refused so far. Checks that combine several values run only then.
    pub fn is_clean(&self) -> bool {
        self.refusals.is_empty()
    }

    /// Returns all refusals, or `Ok` if there are none.
    pub fn finish(self) -> Result<(), Refusals> {
        if self.refusals.is_empty() {
            Ok(())
        } else {
            Err(Refusals(self.refusals))
        }
    }
}

impl Refusals {
    /// A single refusal without a line.
    pub fn one(field: impl Into<String>, value: impl Into<String>, allowed: impl Into<String>) -> Self {
        Self(vec![Refusal {
            field: field.into(),
            value: shorten(&value.into()),
            allowed: allowed.into(),
            line: None,
            meant: None,
        }])
    }

    /// Adds to every refusal of a field that does not exist the name that was probably meant.
    #[must_use]
    pub(crate) fn meaning(mut self, meant: Option<&str>) -> Self {
        for refusal in &mut self.0 {
            refusal.meant = meant.map(str::to_owned);
        }
        self
    }

    /// Prefixes every field with a table. A model names fields from its own root.
    #[must_use]
    pub fn below(mut self, table: &str) -> Self {
        for refusal in &mut self.0 {
            refusal.field = join(table, &refusal.field);
        }
        self
    }

    /// Adds the lines of the fields in `text` to refusals that a model made after reading.
    #[must_use]
    pub fn located(self, text: &str) -> Self {
        match parse(text) {
            Ok(tree) => self.with_lines(text, &tree),
            Err(_) => self,
        }
    }

    /// Sets the line of each refusal to that of its field, or of the nearest enclosing table in the text.
    fn with_lines(mut self, text: &str, tree: &DeValue<'_>) -> Self {
        for refusal in &mut self.0 {
            let place = find(tree, steps(&refusal.field));
            refusal.line = Some(line_at(text, place.span.start));
        }
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        let (field, value) = (shown(&self.field), shown(&self.value));
        if let Some(meant) = &self.meant {
            return write!(f, "there is no `{field}`; did you mean {}?", shown(meant));
        }
        write!(f, "{field} = {value}: allowed is {}", shown(&self.allowed))
    }
}

impl fmt::Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, refusal) in self.0.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{refusal}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusals {}

/// Formats a number without an exponent if that is short, and with one otherwise.
pub(crate) fn plain(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e7).contains(&size) {
        format!("{value:e}")
    } else {
        format!("{value}")
    }
}

/// The path of `field` below `path`.
fn join(path: &str, field: &str) -> String {
    match (path, field) {
        ("", field) => field.to_owned(),
        (path, "") => path.to_owned(),
        (path, field) => format!("{path}.{field}"),
    }
}

/// The first line of a value, truncated to fit a message.
fn shorten(value: &str) -> String {
    let line = value.lines().next().unwrap_or_default();
    match line.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// The refusal of text that is not TOML. The field is the key on the line.
fn syntax(text: &str, error: &toml::de::Error) -> Refusals {
    let offset = error.span().map_or(0, |span| span.start);
    let line = line_at(text, offset);
    let shown = text.lines().nth(line - 1).unwrap_or_default().trim();
    let key = shown.split('=').next().unwrap_or_default().trim();
    let field = if key.is_empty() { "(text)" } else { key };
    let mut refusals = Refusals::one(shorten(field), shown, format!("TOML ({})", first_line(error)));
    refusals.0[0].line = Some(line);
    refusals
}

/// The refusal of TOML that does not fit the input: a wrong type, a missing or an unknown key.
fn mistyped(text: &str, tree: &DeValue<'_>, misfit: &Misfit) -> Refusals {
    let mut path = misfit.path();
    // The path ends before an unknown kind, which is a key if a table names it.
    if let Reason::UnknownKind { kind, .. } = &misfit.reason {
        path.push(PathStep::Key(kind));
    }
    let place = find(tree, path.iter().copied());
    let is_at_key = match misfit.reason {
        Reason::UnknownKey(_) => true,
        Reason::UnknownKind { .. } => place.depth == path.len(),
        _ => false,
    };
    let span = if is_at_key { place.key } else { place.span };
    // A kind that a string names is not a step of the text.
    path.truncate(place.depth);
    if let Reason::Missing(key) = misfit.reason {
        path.push(PathStep::Key(key));
    }
    let value = match misfit.reason {
        Reason::Missing(_) => "nothing",
        Reason::UnknownKey(_) => "an unknown key",
        Reason::Kinds(0) => "no kind",
        Reason::Kinds(_) => "several kinds",
        _ => text.get(span.clone()).unwrap_or_default(),
    };
    let mut field = dotted(&path);
    if field.is_empty() {
        "(text)".clone_into(&mut field);
    }
    let typed = field.rsplit('.').next().unwrap_or_default();
    let meant = match misfit.reason {
        Reason::UnknownKey(known) => nearest(typed, known).copied(),
        _ => None,
    };
    let mut refusals = Refusals::one(field.clone(), value, misfit.allowed()).meaning(meant);
    refusals.0[0].line = Some(line_at(text, span.start));
    refusals
}

/// The first line of a parser's message.
fn first_line(error: &toml::de::Error) -> &str {
    error.message().lines().next().unwrap_or("unreadable")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Cluster {
        gpus: u64,
        links: Vec<Link>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Link {
        rate: Rate,
        #[serde(default)]
        share: f64,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Input {
        cluster: Cluster,
    }

    impl Checkable for Input {
        fn check(&self, c: &mut Checker) {
            c.nested("cluster", &self.cluster);
        }
    }

    impl Checkable for Cluster {
        fn check(&self, c: &mut Checker) {
            c.count("gpus", self.gpus, 1..=1000);
            c.each("links", &self.links, 1..=4);
        }
    }

    impl Checkable for Link {
        fn check(&self, c: &mut Checker) {
            c.rate("rate", self.rate, Rate(1.0)..=Rate(1e12));
            c.share("share", self.share);
        }
    }

    fn refused(text: &str) -> Refusal {
        read::<Input>(text).unwrap_err().0.remove(0)
    }

    const GOOD: &str = "[cluster]\ngpus = 8\n\n[[cluster.links]]\nrate = \"400Gb/s\"\n\n\
                        [[cluster.links]]\nrate = \"200Gb/s\"\nshare = 0.5\n";

    #[test]
    fn a_sensible_input_is_read() {
        let input: Input = read(GOOD).unwrap();
        assert_eq!(input.cluster.links[1].rate, Rate(25e9));
    }

    #[test]
    fn an_impossible_value_is_refused_with_field_value_range_and_line() {
        let refusal = refused(&GOOD.replace("0.5", "1.5"));
        assert_eq!(
            refusal.to_string(),
            "line 9: cluster.links[1].share = 1.5: allowed is from 0 to 1"
        );
        let refusal = refused(&GOOD.replace("200Gb/s", "0"));
        assert_eq!(
            refusal.to_string(),
            "line 8: cluster.links[1].rate = 0 B/s: allowed is from 1 B/s to 1 TB/s"
        );
    }

    #[test]
    fn nan_infinity_and_negative_numbers_are_refused_everywhere() {
        for value in ["nan", "inf", "-inf", "-1.0"] {
            let refusal = refused(&GOOD.replace("0.5", value));
            assert_eq!(
                (refusal.field.as_str(), refusal.line),
                ("cluster.links[1].share", Some(9)),
                "{value}"
            );
        }
    }

    #[test]
    fn all_errors_are_reported_at_once() {
        let text = GOOD.replace("0.5", "2").replace("= 8", "= 0");
        assert_eq!(read::<Input>(&text).unwrap_err().0.len(), 2);
    }

    #[test]
    fn a_wrong_type_names_its_field_and_line() {
        for (from, to, says) in [
            (
                "200Gb/s",
                "200 furlongs",
                "line 8: cluster.links[1].rate = \"200 furlongs\": allowed is a rate such as 3.2GB/s, 400Gb/s or 2GiB/s",
            ),
            (
                "\"200Gb/s\"",
                "true",
                "line 8: cluster.links[1].rate = true: allowed is a rate such as 3.2GB/s, 400Gb/s or 2GiB/s",
            ),
            ("= 8", "= -8", "line 2: cluster.gpus = -8: allowed is a whole number"),
            ("0.5", "[]", "line 9: cluster.links[1].share = []: allowed is a number"),
            (
                "gpus = 8",
                "[cluster.gpus]",
                "line 2: cluster.gpus = [cluster.gpus]: allowed is a whole number",
            ),
        ] {
            assert_eq!(refused(&GOOD.replace(from, to)).to_string(), says);
        }
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_known_ones() {
        let refusal = refused(&GOOD.replace("share", "shar"));
        assert_eq!(
            refusal.to_string(),
            "line 9: there is no `cluster.links[1].shar`; did you mean share?"
        );
        let refusal = refused(&GOOD.replace("share", "weight"));
        assert_eq!(
            refusal.to_string(),
            "line 9: cluster.links[1].weight = an unknown key: allowed is `rate` or `share`"
        );
    }

    #[test]
    fn a_missing_key_is_named_with_its_table() {
        let refusal = refused(&GOOD.replace("gpus = 8", ""));
        assert_eq!((refusal.field.as_str(), refusal.line), ("cluster.gpus", Some(1)));
    }

    #[test]
    fn missing_and_unknown_keys_at_the_top_level_are_in_no_table() {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Root {
            #[expect(dead_code, reason = "only its absence is looked at")]
            title: String,
            #[expect(dead_code, reason = "only its absence is looked at")]
            shape: Shape,
        }
        #[derive(Debug, Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Shape {
            Round {},
            Square {},
        }
        impl Checkable for Root {
            fn check(&self, _: &mut Checker) {}
        }
        let refused = |text: &str| read::<Root>(text).unwrap_err().0.remove(0);
        for text in ["title = \"x\"\n", "[shape.round]\n"] {
            let refusal = refused(text);
            let lacks = if text.starts_with('[') { "title" } else { "shape" };
            assert_eq!((refusal.field.as_str(), refusal.value.as_str()), (lacks, "nothing"));
        }
        // One header opens two tables; only the first is unknown.
        let refusal = refused("title = \"x\"\n[checkpoint.cluster]\ngpus = 8\n");
        assert_eq!((refusal.field.as_str(), refusal.line), ("checkpoint", Some(2)));
    }

    #[test]
    fn a_wrong_kind_is_named_with_its_place() {
        #[derive(Debug, Deserialize)]
        struct Root {
            #[expect(dead_code, reason = "only its errors are looked at")]
            shapes: Vec<Shape>,
        }
        #[derive(Debug, Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Shape {
            Round {},
            Square {},
        }
        impl Checkable for Root {
            fn check(&self, _: &mut Checker) {}
        }
        for (text, says) in [
            (
                "[[shapes]]\n[shapes.round]\n[shapes.square]\n",
                "line 1: shapes[0] = several kinds: allowed is exactly one kind",
            ),
            (
                "shapes = [\n{ round = {} },\n{}]",
                "line 3: shapes[1] = no kind: allowed is exactly one kind",
            ),
            (
                "[[shapes]]\noval = {}",
                "line 2: shapes[0].oval = oval: allowed is `round` or `square`",
            ),
            (
                "shapes = ['oval']",
                "line 1: shapes[0] = 'oval': allowed is `round` or `square`",
            ),
            ("shapes = ['round']", "line 1: shapes[0] = 'round': allowed is a table"),
        ] {
            let refused = read::<Root>(text).unwrap_err();
            assert_eq!(refused.to_string(), says);
        }
    }

    #[test]
    fn a_key_missing_in_a_list_is_named_with_its_place() {
        let refusal = refused(&GOOD.replace("rate = \"200Gb/s\"\n", ""));
        assert_eq!(refusal.field, "cluster.links[1].rate");
    }

    #[test]
    fn invalid_toml_is_refused_with_the_line_and_its_key() {
        let refusal = refused(&GOOD.replace("= 0.5", "= = 0.5"));
        assert_eq!((refusal.field.as_str(), refusal.line), ("share", Some(9)));
        assert!(refused("\u{0}").line.is_some());
    }

    #[test]
    fn size_and_nesting_are_bounded() {
        let long = "#".repeat(TEXT_BYTES_MAX + 1);
        assert!(refused(&long).allowed.contains("bytes"));
        for deep in [
            format!("a = {}", "[".repeat(100_000)),
            format!("a{} = 1", ".a".repeat(100_000)),
            format!("a = {}", "{a=".repeat(100_000)),
            format!("[a{}]", ".a".repeat(100_000)),
        ] {
            assert!(refused(&deep).line.is_some());
        }
    }
}
