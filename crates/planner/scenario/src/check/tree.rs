//! Deserializes a type from a tree of TOML values.
//!
//! The deserializers of the `toml` crate give an error as text. [`TreeValue`] gives a [`Misfit`]. It describes what a
//! type accepts in TOML's own terms, such as a table or a whole number. It accepts the same values as the `toml` crate,
//! but a list of fixed length must have that length.
//!
//! A tree is either the text's, whose values have spans, or a table that was changed. Both are one type, so that the
//! code that reads an input is compiled once for each input type: it is half of the cluster planner's code.

use serde::{
    Deserializer,
    de::{
        DeserializeSeed, MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, StrDeserializer},
    },
    forward_to_deserialize_any,
};
use toml::{
    Table, Value,
    de::{DeFloat, DeInteger, DeTable, DeValue, Error},
};

use super::misfit::{Misfit, Reason, one_of};

/// Parses `text` into a tree whose root is a table.
pub(super) fn parse(text: &str) -> Result<DeValue<'_>, Error> {
    DeTable::parse(text).map(|table| DeValue::Table(table.into_inner()))
}

/// A value of a tree, as a deserializer.
#[derive(Clone, Copy, Debug)]
pub(super) enum TreeValue<'t> {
    /// A value of a text.
    Parsed(&'t DeValue<'t>),
    /// A value of a table.
    Plain(&'t Value),
    /// A table.
    Table(&'t Table),
}

/// The form of a value.
enum Form<'t> {
    Text(&'t str),
    Integer(i64),
    Digits(&'t DeInteger<'t>),
    Float(f64),
    FloatDigits(&'t DeFloat<'t>),
    Boolean(bool),
    Datetime,
    List(Elements<'t>),
    Table(Entries<'t>),
}

/// The elements of a list, one after the other.
struct Elements<'t> {
    rest: Box<dyn Iterator<Item = TreeValue<'t>> + 't>,
    count: usize,
    /// The number of elements that were read.
    read: usize,
}

/// The entries of a table, one after the other.
struct Entries<'t> {
    rest: Box<dyn Iterator<Item = (&'t str, TreeValue<'t>)> + 't>,
    count: usize,
    /// The entry whose key was read.
    current: Option<(&'t str, TreeValue<'t>)>,
    /// Whether the only key is the name of a variant. It is then not a step of the path of an error about itself.
    is_variant: bool,
}

impl<'t> Elements<'t> {
    fn new(items: impl ExactSizeIterator<Item = TreeValue<'t>> + 't) -> Self {
        Self {
            count: items.len(),
            rest: Box::new(items),
            read: 0,
        }
    }
}

impl<'t> Entries<'t> {
    fn new(entries: impl ExactSizeIterator<Item = (&'t str, TreeValue<'t>)> + 't) -> Self {
        Self {
            count: entries.len(),
            rest: Box::new(entries),
            current: None,
            is_variant: false,
        }
    }

    fn of_table(table: &'t Table) -> Self {
        Self::new(table.iter().map(|(key, value)| (key.as_str(), TreeValue::Plain(value))))
    }
}

impl<'de> SeqAccess<'de> for Elements<'de> {
    type Error = Misfit;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Misfit> {
        let Some(value) = self.rest.next() else {
            return Ok(None);
        };
        let index = self.read;
        self.read += 1;
        let element = seed.deserialize(value).map_err(|misfit| misfit.in_element(index))?;
        Ok(Some(element))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.count - self.read)
    }
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = Misfit;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Misfit> {
        self.current = self.rest.next();
        let Some((key, _)) = self.current else {
            return Ok(None);
        };
        let is_variant = self.is_variant;
        let read = seed.deserialize(StrDeserializer::new(key));
        let read = read.map_err(|misfit: Misfit| if is_variant { misfit } else { misfit.below_key(key) })?;
        Ok(Some(read))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Misfit> {
        let (key, value) = self.current.take().expect("serde reads a key before its value");
        seed.deserialize(value).map_err(|misfit| misfit.below_key(key))
    }
}

impl<'t> TreeValue<'t> {
    fn form(self) -> Form<'t> {
        match self {
            Self::Parsed(value) => match value {
                DeValue::String(text) => Form::Text(text),
                DeValue::Integer(integer) => Form::Digits(integer),
                DeValue::Float(float) => Form::FloatDigits(float),
                DeValue::Boolean(value) => Form::Boolean(*value),
                DeValue::Datetime(_) => Form::Datetime,
                DeValue::Array(items) => {
                    Form::List(Elements::new(items.iter().map(|item| Self::Parsed(item.get_ref()))))
                }
                DeValue::Table(table) => {
                    let entries = table.iter();
                    Form::Table(Entries::new(
                        entries.map(|(key, value)| (key.get_ref().as_ref(), Self::Parsed(value.get_ref()))),
                    ))
                }
            },
            Self::Plain(value) => match value {
                Value::String(text) => Form::Text(text),
                Value::Integer(integer) => Form::Integer(*integer),
                Value::Float(float) => Form::Float(*float),
                Value::Boolean(value) => Form::Boolean(*value),
                Value::Datetime(_) => Form::Datetime,
                Value::Array(items) => Form::List(Elements::new(items.iter().map(Self::Plain))),
                Value::Table(table) => Form::Table(Entries::of_table(table)),
            },
            Self::Table(table) => Form::Table(Entries::of_table(table)),
        }
    }
}

/// Gives an integer of at most 64 bits to `visitor`.
fn visit_integer<'de, V: Visitor<'de>>(integer: &DeInteger<'_>, visitor: V) -> Result<V::Value, Misfit> {
    let (digits, radix) = (integer.as_str(), integer.radix());
    if let Ok(value) = i64::from_str_radix(digits, radix) {
        visitor.visit_i64(value)
    } else if let Ok(value) = u64::from_str_radix(digits, radix) {
        visitor.visit_u64(value)
    } else {
        refuse(visitor)
    }
}

/// Gives a float to `visitor`; refuses digits that only infinity could represent.
fn visit_float<'de, V: Visitor<'de>>(float: &DeFloat<'_>, visitor: V) -> Result<V::Value, Misfit> {
    let digits = float.as_str();
    match digits.parse::<f64>() {
        Ok(value) if value.is_infinite() == digits.contains("inf") => visitor.visit_f64(value),
        _ => refuse(visitor),
    }
}

/// Refuses a value that no input takes. A unit fits none of their types, and each type describes what it takes.
fn refuse<'de, V: Visitor<'de>>(visitor: V) -> Result<V::Value, Misfit> {
    visitor.visit_unit()
}

/// Methods for types of a single value, each with the description of these values.
macro_rules! scalars {
    ($($method:ident: $allowed:literal,)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
            self.deserialize_any(visitor).map_err(|misfit| misfit.described($allowed))
        }
    )*};
}

impl<'de> Deserializer<'de> for TreeValue<'de> {
    type Error = Misfit;

    scalars! {
        deserialize_bool: "a boolean",
        deserialize_i8: "a whole number",
        deserialize_i16: "a whole number",
        deserialize_i32: "a whole number",
        deserialize_i64: "a whole number",
        deserialize_u8: "a whole number",
        deserialize_u16: "a whole number",
        deserialize_u32: "a whole number",
        deserialize_u64: "a whole number",
        deserialize_f32: "a number",
        deserialize_f64: "a number",
        deserialize_str: "a string",
        deserialize_string: "a string",
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.form() {
            Form::Text(text) => visitor.visit_borrowed_str(text),
            Form::Integer(integer) => visitor.visit_i64(integer),
            Form::Digits(integer) => visit_integer(integer, visitor),
            Form::Float(float) => visitor.visit_f64(float),
            Form::FloatDigits(float) => visit_float(float, visitor),
            Form::Boolean(value) => visitor.visit_bool(value),
            Form::Datetime => refuse(visitor),
            Form::List(elements) => visitor.visit_seq(elements),
            Form::Table(entries) => visitor.visit_map(entries),
        }
    }

    /// A list of values in the order of the fields stands for a table, as in the `toml` crate.
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        const ALLOWED: &str = "a table";
        match self.form() {
            Form::Table(entries) => visitor.visit_map(entries),
            Form::List(elements) => visitor.visit_seq(elements).map_err(|misfit| match misfit.reason {
                Reason::Length(_) => Misfit::value(ALLOWED),
                _ => misfit,
            }),
            _ => Err(Misfit::value(ALLOWED)),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        self.deserialize_map(visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.form() {
            Form::List(elements) => visitor.visit_seq(elements),
            _ => Err(Misfit::value("a list")),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Misfit> {
        match self.form() {
            Form::List(elements) if elements.count == len => visitor.visit_seq(elements),
            _ => Err(Misfit::value(format!("a list of {len} values"))),
        }
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        self.deserialize_tuple(len, visitor)
    }

    /// A string names a variant without values. A table with one key names a variant by the key.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        match self.form() {
            Form::Text(text) => visitor
                .visit_enum(StrDeserializer::new(text))
                .map_err(|misfit: Misfit| misfit.described("a table")),
            Form::Table(mut entries) if entries.count == 1 => {
                entries.is_variant = true;
                visitor.visit_enum(MapAccessDeserializer::new(entries))
            }
            Form::Table(entries) => Err(Reason::Kinds(entries.count).into()),
            _ => Err(Misfit::value(one_of(variants))),
        }
    }

    /// The values of a variant without values: `kind = {}`.
    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.form() {
            Form::Table(entries) if entries.count == 0 => visitor.visit_unit(),
            Form::List(elements) if elements.count == 0 => visitor.visit_unit(),
            _ => Err(Misfit::value("an empty table")),
        }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Misfit> {
        self.deserialize_unit(visitor)
    }

    /// TOML has no null. A key that is present has a value.
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Misfit> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! { char bytes byte_buf identifier }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, de::DeserializeOwned};

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Shape {
        Round,
        Square(Square),
        Long { sides: [u8; 2] },
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Square {
        side: u8,
        #[serde(default)]
        colour: Option<String>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}

    fn fit<T: DeserializeOwned>(value: &str) -> Result<T, String> {
        let value = DeValue::parse(value).unwrap();
        T::deserialize(TreeValue::Parsed(value.get_ref())).map_err(|misfit| misfit.allowed())
    }

    fn square(side: u8, colour: Option<&str>) -> Shape {
        let colour = colour.map(str::to_owned);
        Shape::Square(Square { side, colour })
    }

    #[test]
    fn all_forms_of_a_variant_are_read() {
        for (text, shape) in [
            ("'round'", Shape::Round),
            ("{ round = {} }", Shape::Round),
            ("{ square = { side = 2 } }", square(2, None)),
            ("{ square = { side = 2, colour = 'red' } }", square(2, Some("red"))),
            ("{ square = [2, 'red'] }", square(2, Some("red"))),
            ("{ long = { sides = [1, 0x2] } }", Shape::Long { sides: [1, 2] }),
        ] {
            assert_eq!(fit::<Shape>(text).as_ref(), Ok(&shape), "{text}");
        }
    }

    #[test]
    fn each_misfit_has_its_own_description() {
        const SHAPES: &str = "one of `round`, `square`, `long`";
        for (text, allowed) in [
            ("5", SHAPES),
            ("'oval'", SHAPES),
            ("{ oval = {} }", SHAPES),
            ("{}", "exactly one kind"),
            ("{ round = {}, square = {} }", "exactly one kind"),
            ("'square'", "a table"),
            ("{ square = 5 }", "a table"),
            ("{ square = [] }", "a table"),
            ("{ round = 5 }", "an empty table"),
            ("{ square = {} }", "a value"),
            ("{ square = { size = 1 } }", "`side` or `colour`"),
            ("{ square = { side = 256 } }", "a whole number"),
            ("{ square = { side = 1.0 } }", "a whole number"),
            ("{ square = { side = 2020-01-01 } }", "a whole number"),
            ("{ square = { side = 1, colour = 2 } }", "a string"),
            ("{ square = { side = 1, colour = 2020-01-01 } }", "a string"),
            ("{ long = { sides = 1 } }", "a list of 2 values"),
            ("{ long = { sides = [1, 2, 3] } }", "a list of 2 values"),
            ("{ long = { sides = [1, []] } }", "a whole number"),
        ] {
            assert_eq!(fit::<Shape>(text), Err(allowed.to_owned()), "{text}");
        }
        assert_eq!(fit::<bool>("1").unwrap_err(), "a boolean");
        assert_eq!(fit::<Vec<u8>>("{}").unwrap_err(), "a list");
        assert_eq!(fit::<Nothing>("{ a = 1 }").unwrap_err(), "no key: this table has none");
    }

    #[test]
    fn numbers_beyond_64_bits_are_refused() {
        assert_eq!(fit::<u64>("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(fit::<f64>("-inf"), Ok(f64::NEG_INFINITY));
        assert!(fit::<f64>("nan").unwrap().is_nan());
        for (allowed, refused) in [
            ("a whole number", fit::<u64>("18446744073709551616").err()),
            ("a number", fit::<f64>("18446744073709551616").err()),
            ("a number", fit::<f64>("-1e999").err()),
            ("a string", fit::<String>("1e999").err()),
        ] {
            assert_eq!(refused.as_deref(), Some(allowed));
        }
    }
}
