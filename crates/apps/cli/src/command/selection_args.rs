//! The selection of tensors of a model and of their parts, for `load` and `inspect`.

use straightway_core::Result;
use straightway_weights::{Filter, Model, Selection, Slice, SlicePart};

use super::words::whole;

/// A selection of tensors, and of a part of each.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Selection")]
pub(crate) struct SelectionArgs {
    /// Only these tensors: a name, a glob such as `model.layers.*`, or `regex:…`; may be repeated.
    #[arg(long, value_name = "PATTERN")]
    filter: Vec<Filter>,

    /// Only a part of each tensor: `DIM:START..STOP` or `DIM:RANK/RANKS`; of matching tensors only: `PATTERN@DIM:…`;
    /// may be repeated.
    #[arg(long, value_name = "SLICE")]
    slice: Vec<Slice>,

    /// Only the share of a tensor-parallel rank, such as 3/8, of every tensor.
    #[arg(long, value_name = "R/N", value_parser = rank)]
    rank: Option<(u64, u64)>,

    /// The dimension that ranks divide.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "rank", value_parser = whole(0..=255_usize))]
    dim: usize,

    /// If a length is not divisible by the number of ranks, give the last ranks less.
    #[arg(long, requires = "rank")]
    uneven: bool,
}

impl SelectionArgs {
    /// The selection in a model.
    pub(crate) fn of(&self, model: &Model) -> Result<Selection> {
        let mut slices = self.slice.clone();
        if let Some((rank, of)) = self.rank {
            let part = if self.uneven {
                SlicePart::RankUneven { rank, of }
            } else {
                SlicePart::Rank { rank, of }
            };
            slices.push(Slice {
                filter: None,
                dim: self.dim,
                part,
            });
        }
        let filters = self.filter.iter().cloned().collect();
        Selection::new(model, &filters, &slices)
    }
}

/// Parses a rank and the number of ranks.
fn rank(text: &str) -> Result<(u64, u64), String> {
    let refuse = || "it must be a rank and the number of ranks, such as 3/8".to_owned();
    let (rank, of) = text.split_once('/').ok_or_else(refuse)?;
    let number = |text: &str| text.trim().parse::<u64>().map_err(|_| refuse());
    match (number(rank)?, number(of)?) {
        (_, 0) => Err("there must be at least one rank".to_owned()),
        (rank, of) if rank >= of => Err(format!("ranks of {of} are 0 to {}", of - 1)),
        both => Ok(both),
    }
}
