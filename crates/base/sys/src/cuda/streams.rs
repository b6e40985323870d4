//! CUDA streams for copies, one for each context.

use straightway_core::Result;

use super::{Context, CudaStream};

/// The streams created so far.
#[derive(Debug, Default)]
pub struct CudaStreams {
    made: Vec<CudaStream>,
}

impl CudaStreams {
    /// The stream of a context. It is created on first use.
    pub fn on(&mut self, context: &Context) -> Result<CudaStream> {
        let is_there = |stream: &&CudaStream| stream.context().is_same(context);
        if let Some(stream) = self.made.iter().find(is_there) {
            return Ok(stream.clone());
        }
        let stream = CudaStream::new(context)?;
        self.made.push(stream.clone());
        Ok(stream)
    }
}
