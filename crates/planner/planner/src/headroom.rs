//! The buffer a lossless Ethernet port needs beyond its pause threshold, as a topic of the cluster planner.

use straightway_fabric::headroom::{Headroom, Port};
use straightway_scenario::check::Refusals;

use crate::question::Question;

impl Question for Port {
    const NAME: &'static str = "headroom";
    type Answer = Headroom;

    fn answer(&self) -> Result<Headroom, Refusals> {
        Ok(self.headroom())
    }
}
