//! A slice of every tensor that a filter matches: a range of indices along one dimension, or the share of a
//! tensor-parallel rank.

use std::{fmt, str::FromStr};

use straightway_core::{Error, ErrorKind, Result};

use super::{Filter, Rectangle, Tensor, tensor::quoted};

/// The indices of a slice along its dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlicePart {
    /// From `start` up to, but not including, `stop`.
    Range {
        /// The first index.
        start: u64,
        /// The first index after it.
        stop: u64,
    },
    /// The share of one of `of` ranks. A length that is not divisible by `of` is an error.
    Rank {
        /// The rank, from 0 on.
        rank: u64,
        /// The number of ranks.
        of: u64,
    },
    /// As `Rank`, but a length that is not divisible is divided as by `torch.chunk`: each share is the length over the
    /// ranks, rounded up, and the last ranks get the rest, possibly nothing.
    RankUneven {
        /// The rank, from 0 on.
        rank: u64,
        /// The number of ranks.
        of: u64,
    },
}

/// A cut along one dimension of every tensor that a filter matches, or of all tensors.
///
/// A tensor without the dimension, such as a scalar, is taken whole if the part is a rank's share and there is no
/// filter: ranks replicate such tensors. A range, or a filter, makes it an error.
///
/// As text: `0:128..256`, `0:3/8`, with a filter `*.q_proj.weight@0:3/8`.
#[derive(Clone, Debug)]
pub struct Slice {
    /// The tensors to cut; `None` for all.
    pub filter: Option<Filter>,
    /// The dimension.
    pub dim: usize,
    /// The indices.
    pub part: SlicePart,
}

impl Slice {
    /// Cuts a rectangle of `tensor` further.
    pub(crate) fn cut(&self, tensor: &Tensor, rectangle: Rectangle) -> Result<Rectangle> {
        let name = &tensor.name;
        let is_range = matches!(self.part, SlicePart::Range { .. });
        let Some(&length) = rectangle.lengths().get(self.dim) else {
            if is_range || self.filter.is_some() {
                return rectangle.cut(name, self.dim, 0, 0);
            }
            return Ok(rectangle);
        };
        let (start, stop) = self.part.indices(length).map_err(|(why, hint)| {
            let target = format!("tensor {}", quoted(name));
            let why = format!("dimension {} has {length}, {why}", self.dim);
            Error::new(ErrorKind::Invalid, "slice", target, why).with_hint(hint)
        })?;
        rectangle.cut(name, self.dim, start, stop.saturating_sub(start))
    }
}

impl SlicePart {
    /// The first index and the one after the last, in a dimension of this length. An error is the reason and the
    /// remedy.
    fn indices(self, length: u64) -> Result<(u64, u64), (String, String)> {
        match self {
            Self::Range { start, stop } if start > stop => Err((
                format!("and {start}..{stop} goes backwards"),
                format!("write {stop}..{start}"),
            )),
            Self::Range { start, stop } => Ok((start, stop)),
            Self::Rank { rank, of } | Self::RankUneven { rank, of } if rank >= of => Err((
                format!("and there is no rank {rank} of {of}"),
                match of.checked_sub(1) {
                    Some(last) => format!("ranks are 0 to {last}"),
                    None => "there must be at least one rank".to_owned(),
                },
            )),
            Self::Rank { of, .. } if !length.is_multiple_of(of) => Err((
                format!("which does not divide by {of} ranks"),
                "leave the tensor out with ⟦filter⟧, or allow uneven shares (⟦uneven⟧)".to_owned(),
            )),
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
            Error::new(ErrorKind::Invalid, "read slice", format!("`{text}`"), message)
        };
        let (filter, cut) = match text.rsplit_once('@') {
            Some((filter, cut)) => (Some(filter.parse()?), cut),
            None => (None, text),
        };
        let (dim, part) = cut.split_once(':').ok_or_else(refuse)?;
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| refuse());
        let part = if let Some((start, stop)) = part.split_once("..") {
            let (start, stop) = (number(start)?, number(stop)?);
            SlicePart::Range { start, stop }
        } else {
            let (rank, of) = part.split_once('/').ok_or_else(refuse)?;
            let (rank, of) = (number(rank)?, number(of)?);
            SlicePart::Rank { rank, of }
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
            SlicePart::Range { start, stop } => write!(f, "{}:{start}..{stop}", self.dim),
            SlicePart::Rank { rank, of } | SlicePart::RankUneven { rank, of } => {
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
                let (start, stop) = SlicePart::RankUneven { rank, of }.indices(length).unwrap();
                prop_assert!(start == next && stop >= start);
                next = stop;
                let even = SlicePart::Rank { rank, of }.indices(length);
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
    fn a_rank_out_of_range_and_a_reversed_range_are_refused() {
        assert!(SlicePart::Rank { rank: 8, of: 8 }.indices(64).is_err());
        assert!(SlicePart::RankUneven { rank: 0, of: 0 }.indices(64).is_err());
        assert!(SlicePart::Range { start: 4, stop: 3 }.indices(64).is_err());
    }
}
