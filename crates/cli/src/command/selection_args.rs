//! Which tensors of a model are meant, and which part of each: what `load` and `inspect` share.

use straightway_core::{Error, Kind, Place, Result};
use straightway_pipeline::weights::{Filter, Model, Part, Selection, Slice};

/// Which tensors, and which part of each.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Selection")]
pub(crate) struct Chosen {
    /// Only these tensors: a name, a glob such as `model.layers.*`, or `regex:…`; may be repeated.
    #[arg(long, value_name = "PATTERN")]
    filter: Vec<Filter>,

    /// Only a part: `DIM:START..STOP` or `DIM:RANK/RANKS`, of some tensors `PATTERN@DIM:…`; may be
    /// repeated.
    #[arg(long, value_name = "SLICE")]
    slice: Vec<Slice>,

    /// Only the share of a tensor-parallel rank, such as 3/8, of every tensor.
    #[arg(long, value_name = "R/N", value_parser = rank)]
    rank: Option<(u64, u64)>,

    /// The dimension that ranks divide.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "rank")]
    dim: usize,

    /// Where a length does not divide by the ranks, give the last ones less.
    #[arg(long, requires = "rank")]
    uneven: bool,
}

impl Chosen {
    /// What is chosen of a model.
    pub(crate) fn of(&self, model: &Model) -> Result<Selection> {
        let mut slices = self.slice.clone();
        if let Some((rank, of)) = self.rank {
            let part = if self.uneven {
                Part::RankUneven { rank, of }
            } else {
                Part::Rank { rank, of }
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

/// A rank and the number of ranks.
fn rank(text: &str) -> Result<(u64, u64)> {
    let refuse = || {
        let message = "a rank and the number of ranks are meant, such as 3/8";
        Error::new(Kind::Invalid, "read rank", format!("`{text}`"), message)
    };
    let (rank, of) = text.split_once('/').ok_or_else(refuse)?;
    let number = |text: &str| text.parse().map_err(|_| refuse());
    Ok((number(rank)?, number(of)?))
}

/// Memory as `--device` names it: where nothing else can be meant, `host` needs no colon.
pub(crate) fn device(text: &str) -> Result<Place> {
    match text {
        "host" => Ok(Place::Host),
        _ => text.parse(),
    }
}
