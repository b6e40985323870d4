//! Turns the recorded calls of a pickle into plain values.

use straightway_core::Result;

use super::{Array, Maker, NumpyField, NumpyType, Plain, Sequence, corrupt, untrusted};

/// Functions that pickles call, which are not values themselves.
const FUNCTIONS: [(&str, &str); 10] = [
    ("_codecs", "encode"),
    ("builtins", "bytes"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"),
    ("torch", "_get_layout"),
    ("builtins", "set"),
    ("builtins", "frozenset"),
];

pub(super) fn is_function(module: &str, name: &str) -> bool {
    FUNCTIONS.contains(&(module, name))
}

/// A recorded call, and the operations on its result. `T` is a value, or the number of a node.
#[derive(Clone, Debug)]
pub(super) struct Call<T> {
    pub(super) arguments: Vec<T>,
    /// Items that are appended to the result.
    pub(super) items: Vec<T>,
    /// Items that are set in the result.
    pub(super) pairs: Vec<(T, T)>,
    /// The state that the result is given.
    pub(super) state: Option<T>,
}

impl Call<Plain> {
    /// The value of the call.
    pub(super) fn value(self, module: &str, name: &str) -> Result<Plain> {
        if let Some(maker) = Maker::of_global(module, name) {
            return self.object(maker);
        }
        if !self.items.is_empty() || !self.pairs.is_empty() {
            return Err(corrupt(format!("{name} has no items")));
        }
        match (module, name) {
            ("numpy", "dtype") => self.dtype(),
            (_, "_reconstruct") => self.array(),
            (_, "scalar") => self.scalar(),
            _ if self.state.is_some() => Err(corrupt(format!("{name} takes no state"))),
            ("builtins", "set" | "frozenset") => self.set(name == "set"),
            ("builtins", "bytes") if self.arguments.is_empty() => Ok(Plain::Bytes(Vec::new())),
            ("_codecs", "encode") => latin1(&self.arguments).map(Plain::Bytes),
            ("torch", "_get_layout") => self.layout(),
            _ => Err(untrusted(module, name)),
        }
    }

    fn object(self, maker: Maker) -> Result<Plain> {
        let Self {
            mut arguments,
            items,
            pairs,
            state,
        } = self;
        let has_items = matches!(maker, Maker::Deque);
        let has_pairs = matches!(maker, Maker::OrderedDict | Maker::DefaultDict);
        if (!has_items && !items.is_empty()) || (!has_pairs && !pairs.is_empty()) {
            return Err(corrupt("a pickle adds items to a value that is not a container"));
        }
        if state.is_some() && maker != Maker::Uuid {
            return Err(corrupt("a pickle gives a state to a value that takes none"));
        }
        let arguments = match (maker, &mut arguments[..]) {
            (Maker::ByteArray, []) => vec![Plain::Bytes(Vec::new())],
            (Maker::ByteArray, [Plain::Text(_), _]) => vec![Plain::Bytes(latin1(&arguments)?)],
            (Maker::OrderedDict, []) => vec![Plain::Pairs(pairs)],
            (Maker::DefaultDict, []) => vec![Plain::None, Plain::Pairs(pairs)],
            (Maker::DefaultDict, [factory]) => {
                vec![std::mem::replace(factory, Plain::None), Plain::Pairs(pairs)]
            }
            (Maker::Deque, []) => vec![Plain::Items(Sequence::List, items), Plain::None],
            (Maker::Deque, [Plain::Items(_, none), bound]) if none.is_empty() => {
                let bound = std::mem::replace(bound, Plain::None);
                vec![Plain::Items(Sequence::List, items), bound]
            }
            (Maker::Counter, []) => vec![Plain::Pairs(Vec::new())],
            (Maker::Date, [Plain::Bytes(packed)]) => date(packed)?,
            (Maker::Time, [Plain::Bytes(packed), zone @ ..]) => {
                let (mut parts, fold) = time(packed)?;
                parts.extend([zone.first().cloned().unwrap_or(Plain::None), fold]);
                parts
            }
            (Maker::DateTime, [Plain::Bytes(packed), zone @ ..]) => {
                let (mut parts, fold) = date_time(packed)?;
                parts.extend([zone.first().cloned().unwrap_or(Plain::None), fold]);
                parts
            }
            (Maker::Fraction, [Plain::Text(text)]) => fraction(text)?,
            (Maker::Uuid, []) => vec![identifier(state)?],
            _ => arguments,
        };
        maker.make(arguments)
    }

    fn set(mut self, is_mutable: bool) -> Result<Plain> {
        let kind = if is_mutable { Sequence::Set } else { Sequence::FrozenSet };
        match (self.arguments.pop(), &self.arguments[..]) {
            (None, []) => Ok(Plain::Items(kind, Vec::new())),
            (Some(Plain::Items(_, items)), []) => Ok(Plain::Items(kind, items)),
            _ => Err(corrupt("a set does not take these arguments")),
        }
    }

    fn layout(self) -> Result<Plain> {
        let name = match &self.arguments[..] {
            [Plain::Text(name)] => name.strip_prefix("torch."),
            _ => None,
        };
        let name = name.and_then(|name| super::PythonName::find("torch", name));
        let name = name.ok_or_else(|| corrupt("there is no layout of that name"))?;
        Ok(Plain::Name(name))
    }

    /// `dtype(code, False, True)`, with a state that has its details.
    fn dtype(self) -> Result<Plain> {
        let refuse = || corrupt("a dtype is pickled in an unknown form");
        let [Plain::Text(code), ..] = &self.arguments[..] else {
            return Err(refuse());
        };
        let Some(state) = self.state else {
            return NumpyType::basic(code).map(Plain::Dtype);
        };
        let Some([Plain::Int(3 | 4), Plain::Text(order), form @ ..]) = state.tuple() else {
            return Err(refuse());
        };
        let [within, names, fields, item_bytes, _, _, more @ ..] = form else {
            return Err(refuse());
        };
        let dtype = match (within, names, fields) {
            (Plain::None, Plain::None, Plain::None) => NumpyType::basic(&format!("{order}{code}{}", unit(more)?))?,
            (rows, Plain::None, Plain::None) => match rows.tuple() {
                Some([Plain::Dtype(dtype), shape]) => NumpyType::rows(dtype.clone(), sides(shape)?)?,
                _ => return Err(refuse()),
            },
            (Plain::None, names, Plain::Pairs(fields)) => {
                let (names, item_bytes) = (names.tuple(), whole(item_bytes));
                let (names, item_bytes) = names.zip(item_bytes).ok_or_else(refuse)?;
                record(item_bytes, names, fields)?
            }
            _ => return Err(refuse()),
        };
        Ok(Plain::Dtype(dtype))
    }

    /// `_reconstruct(ndarray, (0,), b"b")`, with a state that has the whole array.
    fn array(self) -> Result<Plain> {
        let refuse = || corrupt("an array is pickled in an unknown form");
        let [Plain::Name(class), ..] = &self.arguments[..] else {
            return Err(refuse());
        };
        let Some(Plain::Items(Sequence::Tuple, state)) = self.state else {
            return Err(refuse());
        };
        if class.attribute != "ndarray" {
            return Err(refuse());
        }
        match <[Plain; 5]>::try_from(state) {
            Ok(
                [
                    Plain::Int(1),
                    shape,
                    Plain::Dtype(dtype),
                    Plain::Bool(is_fortran),
                    Plain::Bytes(data),
                ],
            ) => {
                let array = Array::new(dtype, sides(&shape)?, data);
                Array { is_fortran, ..array }.checked()
            }
            _ => Err(refuse()),
        }
    }

    fn scalar(self) -> Result<Plain> {
        match <[Plain; 2]>::try_from(self.arguments) {
            Ok([Plain::Dtype(dtype), Plain::Bytes(data)]) if self.state.is_none() => {
                Array::scalar(dtype, data).checked()
            }
            _ => Err(corrupt("a scalar is pickled in an unknown form")),
        }
    }
}

/// The current module and name of a Python 2 global, as in pickles of protocol 2.
pub(super) fn modern<'a>(module: &'a str, name: &'a str) -> (&'a str, &'a str) {
    match (module, name) {
        ("__builtin__", "xrange") => ("builtins", "range"),
        ("__builtin__", "long") => ("builtins", "int"),
        ("__builtin__", "unicode") => ("builtins", "str"),
        ("__builtin__", _) => ("builtins", name),
        // PyTorch's constants contain the module in their name.
        ("torch" | "torch._utils" | "torch.serialization", _) => ("torch", name.strip_prefix("torch.").unwrap_or(name)),
        _ => (module, name),
    }
}

/// Bytes of protocol 2: characters up to 255, and the name of their encoding.
fn latin1(arguments: &[Plain]) -> Result<Vec<u8>> {
    let refuse = || corrupt("bytes are pickled in an unknown form");
    match arguments {
        [Plain::Text(text), Plain::Text(encoding)] if matches!(&**encoding, "latin1" | "latin-1") => {
            text.chars().map(|c| u8::try_from(c).map_err(|_| refuse())).collect()
        }
        _ => Err(refuse()),
    }
}

/// The unit of a date's dtype in brackets, from its state; empty for other dtypes.
fn unit(more: &[Plain]) -> Result<String> {
    let refuse = || corrupt("a dtype's unit is pickled in an unknown form");
    let parts = match more {
        [] | [Plain::None] => return Ok(String::new()),
        [parts] => parts.tuple(),
        _ => None,
    };
    let Some([_, unit]) = parts else {
        return Err(refuse());
    };
    match unit.tuple() {
        Some([Plain::Bytes(name), Plain::Int(count @ 1..), Plain::Int(1), ..]) => {
            let name = std::str::from_utf8(name).map_err(|_| refuse())?;
            let count = Some(count).filter(|count| **count > 1);
            let count = count.map_or_else(String::new, i64::to_string);
            Ok(format!("[{count}{name}]"))
        }
        _ => Err(refuse()),
    }
}

fn record(item_bytes: u64, names: &[Plain], fields: &[(Plain, Plain)]) -> Result<NumpyType> {
    let refuse = || corrupt("a record is pickled in an unknown form");
    let field = |name: &Plain| {
        let found = fields.iter().find(|(key, _)| key == name);
        match (name, found.and_then(|(_, parts)| parts.tuple())) {
            (Plain::Text(text), Some([Plain::Dtype(dtype), offset, title @ ..])) => Ok(NumpyField {
                name: text.clone(),
                dtype: dtype.clone(),
                offset: whole(offset).ok_or_else(refuse)?,
                title: match title {
                    [] => None,
                    [Plain::Text(title)] => Some(title.clone()),
                    _ => return Err(refuse()),
                },
            }),
            _ => Err(refuse()),
        }
    };
    // The search is quadratic, so the counts are limited.
    if names.len() > 1 << 12 || fields.len() > 1 << 13 {
        return Err(refuse());
    }
    NumpyType::fields(item_bytes, names.iter().map(field).collect::<Result<_>>()?)
}

fn sides(shape: &Plain) -> Result<Vec<u64>> {
    let refuse = || corrupt("a shape is pickled in an unknown form");
    match shape {
        Plain::Int(_) => Ok(vec![whole(shape).ok_or_else(refuse)?]),
        Plain::Items(Sequence::Tuple, sides) => sides.iter().map(|side| whole(side).ok_or_else(refuse)).collect(),
        _ => Err(refuse()),
    }
}

fn whole(value: &Plain) -> Option<u64> {
    match value {
        Plain::Int(value) => u64::try_from(*value).ok(),
        _ => None,
    }
}

fn ints(parts: impl IntoIterator<Item = u32>) -> Vec<Plain> {
    parts.into_iter().map(|part| Plain::Int(i64::from(part))).collect()
}

/// Year, month and day, as Python packs them.
fn date(packed: &[u8]) -> Result<Vec<Plain>> {
    match *packed {
        [high, low, month, day] => Ok(ints([u32::from(high) << 8 | u32::from(low), month.into(), day.into()])),
        _ => Err(corrupt("a date has 4 bytes")),
    }
}

/// Hour, minute, second and microsecond, and the fold: whether it is the second such time of the day.
fn time(packed: &[u8]) -> Result<(Vec<Plain>, Plain)> {
    match *packed {
        [hour, minute, second, high, middle, low] => {
            let micros = u32::from(high) << 16 | u32::from(middle) << 8 | u32::from(low);
            let parts = ints([u32::from(hour & 0x7f), minute.into(), second.into(), micros]);
            Ok((parts, Plain::Int(i64::from(hour >> 7))))
        }
        _ => Err(corrupt("a time has 6 bytes")),
    }
}

fn date_time(packed: &[u8]) -> Result<(Vec<Plain>, Plain)> {
    match packed.split_at_checked(4) {
        Some((&[high, low, month, day], rest)) => {
            let mut parts = date(&[high, low, month & 0x7f, day])?;
            parts.extend(time(rest)?.0);
            Ok((parts, Plain::Int(i64::from(month >> 7))))
        }
        _ => Err(corrupt("a date with a time has 10 bytes")),
    }
}

/// Both parts of `1/3`.
fn fraction(text: &str) -> Result<Vec<Plain>> {
    let refuse = || corrupt("a fraction is pickled in an unknown form");
    let (above, below) = text.split_once('/').unwrap_or((text, "1"));
    let part = |digits: &str| digits.parse::<i128>().map_err(|_| refuse());
    let part = |digits: &str| part(digits).map(|part| Plain::integer(part.to_le_bytes().to_vec()));
    Ok(vec![part(above)?, part(below)?])
}

/// The digits of a UUID, whose state is its number.
fn identifier(state: Option<Plain>) -> Result<Plain> {
    let refuse = || corrupt("a UUID is pickled in an unknown form");
    let Some(Plain::Pairs(pairs)) = state else {
        return Err(refuse());
    };
    let is_number = |(key, _): &&(Plain, Plain)| *key == Plain::Text("int".to_owned());
    let number = match pairs.iter().find(is_number) {
        Some((_, Plain::Int(number))) => u128::try_from(*number).map_err(|_| refuse())?,
        Some((_, Plain::Long(bytes))) if bytes.len() <= 17 && bytes.last().is_some_and(|last| last & 0x80 == 0) => {
            let mut wide = [0; 17];
            wide[..bytes.len()].copy_from_slice(bytes);
            if wide[16] != 0 {
                return Err(refuse());
            }
            u128::from_le_bytes(wide[..16].try_into().expect("it has 16 bytes"))
        }
        _ => return Err(refuse()),
    };
    Ok(Plain::Text(format!("{number:032x}")))
}
