//! Part of every tensor that a rule names: a range of indices along one dimension, or a
//! tensor-parallel rank's share of it.

use std::{fmt, str::FromStr};

use straightway_core::{Error, Kind, Result};

use super::{Filter, Rectangle, Tensor, tensor::quoted};

/// Which indices along a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// From `start` up to, but not including, `stop`.
    Range {
        /// The first index.
        start: u64,
        /// The first index that is not in it.
        stop: u64,
    },
    /// The share of one of `of` ranks. A length that does not divide by them is refused.
    Rank {
        /// Which rank, from 0 on.
        rank: u64,
        /// How many ranks there are.
        of: u64,
    },
    /// As `Rank`, with the shares of `torch.chunk` where the length does not divide: each is as long
    /// as the length over the ranks, rounded up, and the last get what is left, perhaps nothing.
    RankUneven {
        /// Which rank, from 0 on.
        rank: u64,
        /// How many ranks there are.
        of: u64,
    },
}

/// A cut along one dimension of every tensor that a filter names, or of all.
///
/// A tensor that lacks the dimension, a scalar say, is taken whole where the part is a rank's share
/// and no filter names it: that is how ranks keep what they do not divide. A range is an error there.
///
/// As text: `0:128..256`, `0:3/8`, with a filter `*.q_proj.weight@0:3/8`.
#[derive(Clone, Debug)]
pub struct Slice {
    /// Which tensors; all where there is none.
    pub filter: Option<Filter>,
    /// Along which dimension.
    pub dim: usize,
    /// Which indices.
    pub part: Part,
}

impl Slice {
    /// Cuts a rectangle of `tensor` further.
    pub(crate) fn cut(&self, tensor: &Tensor, rectangle: Rectangle) -> Result<Rectangle> {
        let name = &tensor.name;
        let is_range = matches!(self.part, Part::Range { .. });
        let Some(&length) = rectangle.lengths().get(self.dim) else {
            if is_range || self.filter.is_some() {
                return rectangle.cut(name, self.dim, 0, 0);
            }
            return Ok(rectangle);
        };
        let (start, stop) = self.part.indices(length).map_err(|why| {
            let target = format!("tensor {}", quoted(name));
            let why = format!("dimension {} has {length}, {why}", self.dim);
            Error::new(Kind::Invalid, "slice", target, why)
                .with_hint("leave it out by a filter, or allow uneven shares")
        })?;
        rectangle.cut(name, self.dim, start, stop.saturating_sub(start))
    }
}

impl Part {
    /// The first index and the one after the last, of a dimension with this length.
    fn indices(self, length: u64) -> Result<(u64, u64), String> {
        match self {
            Self::Range { start, stop } if start > stop => {
                Err(format!("and {start}..{stop} goes backwards"))
            }
            Self::Range { start, stop } => Ok((start, stop)),
            Self::Rank { rank, of } | Self::RankUneven { rank, of } if rank >= of => {
                Err(format!("and there is no rank {rank} of {of}"))
            }
            Self::Rank { of, .. } if !length.is_multiple_of(of) => {
                Err(format!("which does not divide by {of} ranks"))
            }
            Self::Rank { rank, of } | Self::RankUneven { rank, of } => {
                let share = length.div_ceil(of);
                let start = rank.saturating_mul(share).min(length);
                Ok((start, start.saturating_add(share).min(length)))
            }
        }
    }
}

impl FromStr for Slice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = || {
            let message = "a slice is a dimension and a range, `0:128..256`, or a rank's share, \
                           `0:3/8`; before it may stand which tensors, `*.weight@0:3/8`";
            Error::new(Kind::Invalid, "read slice", format!("`{text}`"), message)
        };
        let (filter, cut) = match text.rsplit_once('@') {
            Some((filter, cut)) => (Some(filter.parse()?), cut),
            None => (None, text),
        };
        let (dim, part) = cut.split_once(':').ok_or_else(refuse)?;
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| refuse());
        let part = if let Some((start, stop)) = part.split_once("..") {
            let (start, stop) = (number(start)?, number(stop)?);
            Part::Range { start, stop }
        } else {
            let (rank, of) = part.split_once('/').ok_or_else(refuse)?;
            let (rank, of) = (number(rank)?, number(of)?);
            Part::Rank { rank, of }
        };
        let dim = dim.trim().parse().map_err(|_| refuse())?;
        Ok(Self { filter, dim, part })
    }
}

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(filter) = &self.filter {
            write!(f, "{filter}@")?;
        }
        match self.part {
            Part::Range { start, stop } => write!(f, "{}:{start}..{stop}", self.dim),
            Part::Rank { rank, of } | Part::RankUneven { rank, of } => {
                write!(f, "{}:{rank}/{of}", self.dim)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranks_together_have_every_index_once(length in 0_u64..200, of in 1_u64..20) {
            let mut next = 0;
            for rank in 0..of {
                let (start, stop) = Part::RankUneven { rank, of }.indices(length).unwrap();
                prop_assert!(start == next && stop >= start);
                next = stop;
                let even = Part::Rank { rank, of }.indices(length);
                prop_assert_eq!(even.is_ok(), length.is_multiple_of(of));
                if let Ok(even) = even {
                    prop_assert_eq!(even, (start, stop));
                }
            }
            prop_assert_eq!(next, length);
        }
    }

    #[test]
    fn a_slice_is_read_as_it_is_shown() {
        for text in ["0:128..256", "1:3/8", "glob:*.q@x.weight@0:0/2"] {
            assert_eq!(text.parse::<Slice>().unwrap().to_string(), text);
        }
        for text in [
            "", "0", "0:", "0:1", "0:1..", "x:1..2", "0:-1..2", "a@b", "0:1/x", "[@0:1/2",
        ] {
            assert!(text.parse::<Slice>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_rank_that_is_not_there_and_a_range_that_goes_backwards_are_refused() {
        assert!(Part::Rank { rank: 8, of: 8 }.indices(64).is_err());
        assert!(Part::RankUneven { rank: 0, of: 0 }.indices(64).is_err());
        assert!(Part::Range { start: 4, stop: 3 }.indices(64).is_err());
    }
}
