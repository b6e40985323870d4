//! Streams for copies to and from GPUs, one for each, made once.

use straightway_core::Result;

use super::{Context, Stream};

/// The streams that were made so far.
#[derive(Debug, Default)]
pub struct Streams {
    made: Vec<Stream>,
}

impl Streams {
    /// The stream on a context's GPU.
    pub fn on(&mut self, context: &Context) -> Result<Stream> {
        let is_there = |stream: &&Stream| stream.context().is_same(context);
        if let Some(stream) = self.made.iter().find(is_there) {
            return Ok(stream.clone());
        }
        let stream = Stream::new(context)?;
        self.made.push(stream.clone());
        Ok(stream)
    }
}
