//! Sizes, rates, times and counts as people type and read them.
//!
//! `4MiB`, `16k`, `1.5TB`, `400Gb/s`, `3.2GB/s`, `50us`: these go in on the command line, in TOML and in Python, and
//! the same spellings come out. A size without a suffix is bytes; `k`, `M`, `G` and `T` alone are binary, as in fio
//! and dd; `kB` and `MB` are decimal, `KiB` and `MiB` binary, in any case. A rate is a size per second, with or
//! without `/s`: `100M`, `1.5GB/s`. In `Gb/s`, `Gbps` and `Gbit` it counts bits. `mb/s` and `gb/s` are refused: they
//! could be both. In TOML a bare number is in the base unit: bytes, bytes per second, seconds.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// Bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Rate(pub f64);

/// A span of time in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Seconds(pub f64);

/// A number of things: `20_000`, `20k`, `1.5M`. Its multiples are decimal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Count(pub u64);

impl Bytes {
    /// `n` KiB.
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// `n` MiB.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// `n` GiB.
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }

    /// As it is typed: `4MiB` if that is exact, else `4000001`.
    pub fn typed(self) -> String {
        let units = ["", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let (mut value, mut unit) = (self.0, 0);
        while value != 0 && value.is_multiple_of(1024) && unit + 1 < units.len() {
            (value, unit) = (value / 1024, unit + 1);
        }
        format!("{value}{}", units[unit])
    }

    /// The exact number, as in `4,000,000 bytes`.
    pub fn exactly(self) -> String {
        let digits = self.0.to_string();
        let mut text = String::new();
        for (at, digit) in digits.char_indices() {
            if at > 0 && (digits.len() - at).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        text + " bytes"
    }

    /// The binary size that is probably meant by a decimal one: 4 MiB for `4MB`.
    pub fn binary_twin(self) -> Option<Self> {
        let twins = [
            (1_000_000_000_000, 40),
            (1_000_000_000, 30),
            (1_000_000, 20),
            (1000, 10),
        ];
        let (decimal, shift) = twins.into_iter().find(|(decimal, _)| self.0.is_multiple_of(*decimal))?;
        let number = self.0 / decimal;
        (1..1024).contains(&number).then(|| Self(number << shift))
    }
}

impl Rate {
    /// A link's rate in Gb/s.
    pub fn gbit(n: f64) -> Self {
        Self(n * 1e9 / 8.0)
    }

    /// The rate in Gb/s.
    pub fn as_gbit(self) -> f64 {
        self.0 * 8.0 / 1e9
    }
}

/// An error for text that is not a valid quantity. Its alternate form (`{:#}`) is the expected form alone, for messages
/// that show the text themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantityError {
    text: String,
    want: &'static str,
}

impl fmt::Display for QuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return f.write_str(self.want);
        }
        write!(f, "`{}` is not {}", self.text, self.want)
    }
}

impl std::error::Error for QuantityError {}

const WANT_BYTES: &str = "a size such as 4096, 16k, 4MiB or 1.5TB";
const WANT_RATE: &str = "a rate such as 3.2GB/s, 400Gb/s or 2GiB/s";
const WANT_SECONDS: &str = "a time such as 50us, 3ms, 1.5s, 2h or 30d";
const WANT_COUNT: &str = "a whole number such as 16 or 20k";

/// The refusal of `100mb/s`: some mean bytes, others bits.
const AMBIGUOUS: &str = "a clear rate: type MB/s for bytes, Mb/s or Mbit/s for bits";

/// Binary multiples, in which sizes are printed.
const BINARY: [(&str, f64); 5] = [("PiB", PIB), ("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)];
const KIB: f64 = 1024.0;
const MIB: f64 = KIB * 1024.0;
const GIB: f64 = MIB * 1024.0;
const TIB: f64 = GIB * 1024.0;
const PIB: f64 = TIB * 1024.0;

/// Splits `4MiB` into its number and its unit, refusing signs, NaN and infinity.
fn split<'a>(text: &'a str, want: &'static str) -> Result<(f64, &'a str), QuantityError> {
    let trimmed = text.trim();
    let end = trimmed
        .char_indices()
        .find(|(i, c)| !(c.is_ascii_digit() || matches!(c, '.' | '_') || exponent(trimmed, *i)))
        .map_or(trimmed.len(), |(i, _)| i);
    let number = trimmed[..end].replace('_', "");
    match number.parse::<f64>() {
        Ok(n) if n.is_finite() && n >= 0.0 => Ok((n, trimmed[end..].trim())),
        _ => Err(QuantityError {
            text: text.to_owned(),
            want,
        }),
    }
}

/// Whether the byte at `at` belongs to an exponent such as `e9` or `e-3`.
fn exponent(text: &str, at: usize) -> bool {
    let bytes = text.as_bytes();
    let digit = |i: usize| bytes.get(i).is_some_and(u8::is_ascii_digit);
    match bytes[at] {
        b'e' | b'E' if at > 0 => digit(at + 1) || (matches!(bytes.get(at + 1), Some(b'-' | b'+')) && digit(at + 2)),
        b'-' | b'+' if at > 0 => matches!(bytes[at - 1], b'e' | b'E') && digit(at + 1),
        _ => false,
    }
}

/// The factor of a byte unit in any case; `None` if `unit` is unknown.
fn byte_unit(unit: &str) -> Option<f64> {
    let unit = unit.to_ascii_lowercase();
    if matches!(unit.as_str(), "" | "b" | "byte" | "bytes") {
        return Some(1.0);
    }
    let (prefix, rest) = unit.split_at_checked(1)?;
    let exponent = 1 + "kmgtpe".find(prefix)?;
    let base = match rest {
        "b" => 1e3,
        "" | "i" | "ib" => KIB,
        _ => return None,
    };
    Some(base.powi(i32::try_from(exponent).ok()?))
}

/// The factor of a rate's unit to bytes per second.
fn rate_unit(unit: &str) -> Result<f64, &'static str> {
    let decimal = |prefix: &str| {
        let exponent = match prefix.to_ascii_lowercase().as_str() {
            "" => 0,
            "k" => 1,
            "m" => 2,
            "g" => 3,
            "t" => 4,
            _ => return Err(WANT_RATE),
        };
        Ok(1e3_f64.powi(exponent))
    };
    let slashed = ["/s", "/S", "/sec"].into_iter().find_map(|end| unit.strip_suffix(end));
    let lower = slashed.unwrap_or(unit).to_ascii_lowercase();
    let in_bits = ["bit", "bits"].into_iter().find_map(|end| lower.strip_suffix(end));
    if let Some(prefix) = in_bits.or_else(|| unit.strip_suffix("bps")) {
        return Ok(decimal(prefix)? / 8.0);
    }
    let in_bytes = unit.strip_suffix("ps").filter(|size| size.ends_with('B'));
    let size = slashed.or(in_bytes).unwrap_or(unit);
    match size.strip_suffix('b') {
        Some("" | "k" | "K" | "M" | "G" | "T") if slashed.is_some() => Ok(decimal(&size[..size.len() - 1])? / 8.0),
        // Nobody types mebibits in lower case.
        Some("ki" | "mi" | "gi" | "ti") | None => byte_unit(size).ok_or(WANT_RATE),
        Some(_) if byte_unit(size).is_some() => Err(AMBIGUOUS),
        Some(_) => Err(WANT_RATE),
    }
}

impl FromStr for Bytes {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let error = || QuantityError {
            text: text.to_owned(),
            want: WANT_BYTES,
        };
        if let Ok(exact) = text.trim().parse::<u64>() {
            return Ok(Self(exact));
        }
        let (number, unit) = split(text, WANT_BYTES)?;
        let bytes = number * byte_unit(unit).ok_or_else(error)?;
        // About 2^63, the largest file offset.
        if bytes > 9.2e18 {
            return Err(error());
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
        Ok(Self(bytes.round() as u64))
    }
}

impl FromStr for Rate {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let (number, unit) = split(text, WANT_RATE)?;
        let factor = rate_unit(unit).map_err(|want| QuantityError {
            text: text.to_owned(),
            want,
        })?;
        Ok(Self(number * factor))
    }
}

impl FromStr for Seconds {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let (number, unit) = split(text, WANT_SECONDS)?;
        let factor = match unit.to_lowercase().as_str() {
            "ps" => 1e-12,
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "" | "s" | "sec" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => {
                return Err(QuantityError {
                    text: text.to_owned(),
                    want: WANT_SECONDS,
                });
            }
        };
        Ok(Self(number * factor))
    }
}

impl FromStr for Count {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let error = || QuantityError {
            text: text.to_owned(),
            want: WANT_COUNT,
        };
        if let Ok(exact) = text.trim().parse::<u64>() {
            return Ok(Self(exact));
        }
        let (number, unit) = split(text, WANT_COUNT)?;
        let factor = match unit.to_ascii_lowercase().as_str() {
            "" => 1.0,
            "k" => 1e3,
            "m" => 1e6,
            "g" => 1e9,
            _ => return Err(error()),
        };
        let count = number * factor;
        // Beyond 2^53 a floating-point number may not be the one that was typed.
        if count.fract() != 0.0 || count > 9e15 {
            return Err(error());
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
        Ok(Self(count as u64))
    }
}

/// Three significant digits, without trailing zeros after the point.
fn digits(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0 as f64;
        let text = match BINARY.iter().rev().rfind(|(_, size)| value >= *size) {
            Some((unit, size)) => format!("{} {unit}", digits(value / size)),
            None => format!("{} B", self.0),
        };
        f.pad(&text)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = [
            (1e12, "TB/s"),
            (1e9, "GB/s"),
            (1e6, "MB/s"),
            (1e3, "kB/s"),
            (0.0, "B/s"),
        ];
        let (size, unit) = steps.into_iter().find(|(s, _)| self.0 >= *s).unwrap_or((1.0, "B/s"));
        f.pad(&format!("{} {unit}", digits(self.0 / size.max(1.0))))
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = [
            (86_400.0, "d"),
            (3600.0, "h"),
            (120.0, "min"),
            (1.0, "s"),
            (1e-3, "ms"),
            (1e-6, "µs"),
            (1e-9, "ns"),
        ];
        let (step, unit) = steps.into_iter().find(|(s, _)| self.0 >= *s).unwrap_or((1e-9, "ns"));
        // Minutes start at 2 min (120 s), but a minute is 60 s.
        let size = if unit == "min" { 60.0 } else { step };
        f.pad(&format!("{} {unit}", digits(self.0 / size)))
    }
}

/// Accepts a string with a unit or a bare number in the base unit.
macro_rules! quantity_serde {
    ($name:ident, $want:expr) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                self.0.serialize(serializer)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl de::Visitor<'_> for Visitor {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($want)
                    }

                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }

                    fn visit_u64<E: de::Error>(self, value: u64) -> Result<$name, E> {
                        self.visit_str(&value.to_string())
                    }

                    fn visit_i64<E: de::Error>(self, value: i64) -> Result<$name, E> {
                        self.visit_str(&value.to_string())
                    }

                    fn visit_f64<E: de::Error>(self, value: f64) -> Result<$name, E> {
                        self.visit_str(&value.to_string())
                    }
                }
                deserializer.deserialize_any(Visitor)
            }
        }
    };
}

quantity_serde!(Bytes, WANT_BYTES);
quantity_serde!(Rate, WANT_RATE);
quantity_serde!(Seconds, WANT_SECONDS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_type_them() {
        for (text, bytes) in [
            ("4096", 4096),
            ("16k", 16 << 10),
            ("4MiB", 4 << 20),
            ("4 MiB", 4 << 20),
            ("1.5TB", 1_500_000_000_000),
            ("1kB", 1000),
            ("1_000", 1000),
            ("2e3", 2000),
            ("18446744073709551615", u64::MAX),
            // In any case, and as Kubernetes has them.
            ("4mb", 4_000_000),
            ("4mib", 4 << 20),
            ("4MIB", 4 << 20),
            ("16K", 16 << 10),
            ("1.5g", 3 << 29),
            ("4Gi", 4 << 30),
            ("2eib", 2 << 60),
        ] {
            assert_eq!(text.parse::<Bytes>(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn sizes_are_written_as_they_are_typed() {
        for (bytes, typed) in [(0, "0"), (4 << 20, "4MiB"), (6000, "6000"), (3 << 29, "1536MiB")] {
            assert_eq!(Bytes(bytes).typed(), typed);
            assert_eq!(typed.parse(), Ok(Bytes(bytes)));
        }
        assert_eq!(Bytes(4_000_000).exactly(), "4,000,000 bytes");
        assert_eq!(Bytes(12).exactly(), "12 bytes");
    }

    #[test]
    fn a_decimal_size_has_a_binary_twin() {
        for (decimal, binary) in [("4MB", "4MiB"), ("256kB", "256KiB"), ("1GB", "1GiB")] {
            let twin = decimal.parse::<Bytes>().unwrap().binary_twin().unwrap();
            assert_eq!(twin.typed(), binary);
        }
        assert_eq!(Bytes(6001).binary_twin(), None);
        assert_eq!(Bytes(0).binary_twin(), None);
    }

    #[test]
    fn counts_are_whole_and_may_have_multiples() {
        for (text, count) in [
            ("16", 16),
            ("20k", 20_000),
            ("1.5M", 1_500_000),
            ("1_000", 1000),
            ("1e3", 1000),
        ] {
            assert_eq!(text.parse(), Ok(Count(count)), "{text}");
        }
        for text in ["many", "1.5", "-1", "", "4KiB", "1e30"] {
            let error = text.parse::<Count>().unwrap_err().to_string();
            assert!(error.contains("a whole number"), "{text}: {error}");
        }
    }

    #[test]
    fn rates_count_bits_with_a_small_b_and_bytes_with_a_large_one() {
        assert_eq!("400Gb/s".parse::<Rate>(), Ok(Rate(50e9)));
        assert_eq!("400Gbps".parse::<Rate>(), Ok(Rate(50e9)));
        assert_eq!("3.2GB/s".parse::<Rate>(), Ok(Rate(3.2e9)));
        assert_eq!("1GiB/s".parse::<Rate>(), Ok(Rate(1_073_741_824.0)));
        for text in ["1Gbit/s", "1gbit", "1Gbits/s", "1Gbps", "1gbps", "1Gb/s"] {
            assert_eq!(text.parse(), Ok(Rate(125e6)), "{text}");
        }
        assert_eq!("8kb/s".parse(), Ok(Rate(1e3)));
    }

    #[test]
    fn a_rate_may_be_typed_like_a_size() {
        for (text, rate) in [
            ("100M", 104_857_600.0),
            ("100m/s", 104_857_600.0),
            ("1.5g", 1_610_612_736.0),
            ("100MB", 1e8),
            ("3GBps", 3e9),
            ("2mib/s", 2_097_152.0),
            ("500", 500.0),
        ] {
            assert_eq!(text.parse(), Ok(Rate(rate)), "{text}");
        }
    }

    #[test]
    fn a_rate_that_could_be_bits_or_bytes_is_refused() {
        for text in ["100mb/s", "1gb/s", "100Mb", "1Mib/s"] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(
                error.ends_with("type MB/s for bytes, Mb/s or Mbit/s for bits"),
                "{error}"
            );
        }
    }

    #[test]
    fn times_are_read_with_their_units() {
        assert_eq!("50us".parse::<Seconds>(), Ok(Seconds(50.0 * 1e-6)));
        assert_eq!("2h".parse::<Seconds>(), Ok(Seconds(7200.0)));
        assert_eq!("5m".parse::<Seconds>(), Ok(Seconds(300.0)));
        assert_eq!("3MS".parse::<Seconds>(), Ok(Seconds(0.003)));
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for text in ["", "-4k", "4 furlongs", "NaN", "inf", "1e400", "MiB", "1e30"] {
            let error = text.parse::<Bytes>().unwrap_err().to_string();
            assert!(error.contains("4MiB"), "{text}: {error}");
            assert!(text.parse::<Rate>().is_err() || text == "1e30", "{text}");
        }
    }

    #[test]
    fn the_alternate_form_of_an_error_is_the_expected_form_alone() {
        let error = "fast".parse::<Rate>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "`fast` is not a rate such as 3.2GB/s, 400Gb/s or 2GiB/s"
        );
        assert_eq!(format!("{error:#}"), WANT_RATE);
    }

    #[test]
    fn quantities_are_shown_with_three_digits_and_a_unit() {
        assert_eq!(Bytes(4 << 20).to_string(), "4 MiB");
        assert_eq!(Bytes(1_234_567).to_string(), "1.18 MiB");
        assert_eq!(Bytes(17).to_string(), "17 B");
        assert_eq!(Bytes(0).to_string(), "0 B");
        assert_eq!(Rate(3.214e9).to_string(), "3.21 GB/s");
        assert_eq!(Rate(0.0).to_string(), "0 B/s");
        assert_eq!(Seconds(42.1e-6).to_string(), "42.1 µs");
        assert_eq!(Seconds(150.0).to_string(), "2.5 min");
        assert_eq!(Seconds(0.0).to_string(), "0 ns");
    }
}
