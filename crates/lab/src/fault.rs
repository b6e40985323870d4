//! Faults that a proxy injects, and which request gets which.

use std::{str::FromStr, time::Duration};

use crate::head::Head;

/// A lie or a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection is closed before the answer.
    CutHead,
    /// The connection is closed somewhere in the head of the answer.
    CutInHead,
    /// The connection is closed somewhere in the body.
    CutBody,
    /// The answer comes late.
    Stall(Duration),
    /// The body stops somewhere for a while.
    StallBody(Duration),
    /// The body comes in pieces of some bytes, with pauses, for a while.
    Drip,
    /// The answer never comes, and the connection stays open.
    Lose,
    /// An error of the server.
    Status(u16),
    /// The body of another range, which its head says.
    WrongRange,
    /// The body of another range, under a head that does not say which.
    WrongLength,
    /// The whole object with status 200.
    Whole,
    /// Another `ETag`.
    OtherTag,
    /// The answer twice.
    Twice,
    /// Bytes after the body.
    Leftover,
    /// One bit of the body is another. Only a checksum tells.
    FlipBit,
    /// The connection is reset.
    Reset,
    /// A request that changes something is carried out, and its answer is lost.
    LoseAnswer,
    /// The connection is closed somewhere in the body of a request that changes something.
    CutUpload,
    /// One bit of the body of a request that changes something is another.
    FlipUpload,
    /// A request that changes something is refused before its body was taken.
    RefuseUpload(u16),
    /// A request that changes something is answered with status 200 and an error.
    ErrorIn200,
}

impl Fault {
    /// Whether it is one of requests that change something.
    fn is_of_writes(self) -> bool {
        matches!(
            self,
            Self::LoseAnswer
                | Self::CutUpload
                | Self::FlipUpload
                | Self::RefuseUpload(_)
                | Self::ErrorIn200
        )
    }
}

/// Faults, and how often each comes, in parts of 10,000.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// What the choice follows from.
    pub seed: u64,
    /// Each fault and its share.
    pub shares: Vec<(Fault, u32)>,
    /// Only requests whose target has this text.
    pub only: Option<String>,
    /// As many requests at the beginning get no fault.
    pub after: u64,
}

impl Faults {
    /// The fault of a request.
    pub(crate) fn of(&self, number: u64, request: &Head) -> Option<Fault> {
        let only = self.only.as_deref().unwrap_or_default();
        let is_write = matches!(request.method(), "PUT" | "POST" | "DELETE");
        let is_other = !is_write && request.method() != "GET";
        if number < self.after || is_other || !request.target().contains(only) {
            return None;
        }
        let mut draw =
            u32::try_from(random(self.seed, number) % 10_000).expect("it is below 10,000");
        for (fault, share) in &self.shares {
            match draw.checked_sub(*share) {
                None => return Some(*fault).filter(|fault| fault.is_of_writes() == is_write),
                Some(rest) => draw = rest,
            }
        }
        None
    }
}

/// `stall:3s=100` and the like: the fault, and its share of 10,000.
impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once(':').unwrap_or((text, ""));
        let time = || {
            let seconds = value
                .trim_end_matches('s')
                .parse()
                .map_err(|_| format!("{text}: no time"))?;
            Ok::<_, String>(Duration::from_secs_f64(seconds))
        };
        Ok(match name {
            "cut-head" => Self::CutHead,
            "cut-in-head" => Self::CutInHead,
            "cut-body" => Self::CutBody,
            "stall" => Self::Stall(time()?),
            "stall-body" => Self::StallBody(time()?),
            "drip" => Self::Drip,
            "lose" => Self::Lose,
            "status" => Self::Status(value.parse().map_err(|_| format!("{text}: no status"))?),
            "wrong-range" => Self::WrongRange,
            "wrong-length" => Self::WrongLength,
            "whole" => Self::Whole,
            "other-tag" => Self::OtherTag,
            "twice" => Self::Twice,
            "leftover" => Self::Leftover,
            "flip-bit" => Self::FlipBit,
            "reset" => Self::Reset,
            "lose-answer" => Self::LoseAnswer,
            "cut-upload" => Self::CutUpload,
            "flip-upload" => Self::FlipUpload,
            "refuse-upload" => {
                Self::RefuseUpload(value.parse().map_err(|_| format!("{text}: no status"))?)
            }
            "error-in-200" => Self::ErrorIn200,
            _ => return Err(format!("{text} is no fault")),
        })
    }
}

/// A number that follows from a seed and another number: splitmix64.
pub(crate) fn random(seed: u64, number: u64) -> u64 {
    let mut x = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
