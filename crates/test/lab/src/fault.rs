//! The faults of a proxy, and their assignment to requests.

use std::{str::FromStr, time::Duration};

use straightway_core::random::Seed;
use straightway_webserver::message::MessageHead;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyFault {
    /// The connection is closed before the response.
    CutHead,
    /// The connection is closed inside the head of the response.
    CutInHead,
    /// The connection is closed inside the body.
    CutBody,
    /// The response is late.
    Stall(Duration),
    /// The body pauses once.
    StallBody(Duration),
    /// The body arrives in small pieces with pauses, for a while.
    Drip,
    /// The response never arrives, and the connection stays open.
    Lose,
    /// An error status.
    Status(u16),
    /// The body of another range, which the head reports.
    WrongRange,
    /// The body of another range, which the head does not report.
    WrongLength,
    /// The whole object with status 200.
    Whole,
    /// Another `ETag`.
    OtherTag,
    /// The response is sent twice.
    Twice,
    /// Bytes after the body.
    Leftover,
    /// One bit of the body is flipped. Only a checksum detects it.
    FlipBit,
    /// The connection is reset.
    Reset,
    /// A write request is executed, and its response is lost.
    LoseAnswer,
    /// The connection is closed inside the body of a write request.
    CutUpload,
    /// One bit of the body of a write request is flipped.
    FlipUpload,
    /// A write request is refused before its body is read.
    RefuseUpload(u16),
    /// A write request gets status 200 with an error in the body.
    ErrorIn200,
}

impl ProxyFault {
    /// Whether it applies to write requests.
    fn is_of_writes(self) -> bool {
        matches!(
            self,
            Self::LoseAnswer | Self::CutUpload | Self::FlipUpload | Self::RefuseUpload(_) | Self::ErrorIn200
        )
    }
}

/// Faults and their frequencies, in parts of 10,000.
#[derive(Clone, Debug, Default)]
pub struct ProxyFaults {
    /// The seed of the choice.
    pub seed: u64,
    /// Each fault and its frequency.
    pub shares: Vec<(ProxyFault, u32)>,
    /// Restricts faults to requests whose target contains this text.
    pub only: Option<String>,
    /// The number of requests at the beginning without faults.
    pub after: u64,
}

impl ProxyFaults {
    /// The fault of a request.
    pub(crate) fn of(&self, number: u64, request: &MessageHead) -> Option<ProxyFault> {
        let only = self.only.as_deref().unwrap_or_default();
        let is_write = matches!(request.method(), "PUT" | "POST" | "DELETE");
        let is_other = !is_write && request.method() != "GET";
        if number < self.after || is_other || !request.target().contains(only) {
            return None;
        }
        let draw = Seed(self.seed).part(number).0 % 10_000;
        let mut draw = u32::try_from(draw).expect("it is below 10,000");
        for (fault, share) in &self.shares {
            match draw.checked_sub(*share) {
                None => return Some(*fault).filter(|fault| fault.is_of_writes() == is_write),
                Some(rest) => draw = rest,
            }
        }
        None
    }
}

/// Parses a fault such as `stall:3s`.
impl FromStr for ProxyFault {
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
            "refuse-upload" => Self::RefuseUpload(value.parse().map_err(|_| format!("{text}: no status"))?),
            "error-in-200" => Self::ErrorIn200,
            _ => return Err(format!("unknown fault {text}")),
        })
    }
}
