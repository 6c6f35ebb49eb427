//! Routing traces: rows per expert that were really counted, and their mapping to a model.
//!
//! A [`Trace`] is what a file says; [`Trace::onto`] maps it to an expert-parallel group, by the rules of
//! [`mapping`].

mod csv;
mod error;
pub mod mapping;
mod popularity;

pub use error::TraceError;
pub use mapping::Mapped;

/// Rows per expert, layer and micro-batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    experts: usize,
    layers: usize,
    /// First micro-batch of each iteration.
    starts: Vec<usize>,
    /// Whether the micro-batches are one sequence that runs on over the iterations.
    continuous: bool,
    /// By micro-batch, layer and expert.
    counts: Vec<u32>,
}

impl Trace {
    /// Reads a trace, in the format that its first bytes show: JSON with `expert_popularity`, or CSV with
    /// one of the headers of `docs/formats.md`. `model` chooses where a file holds several.
    pub fn parse(text: &[u8], model: Option<&str>) -> Result<Self, TraceError> {
        if text.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{') {
            popularity::parse(text)
        } else {
            csv::parse(text, model)
        }
    }

    /// Experts of the traced model.
    pub const fn experts(&self) -> usize {
        self.experts
    }

    /// Layers that were traced.
    pub const fn layers(&self) -> usize {
        self.layers
    }

    /// Micro-batches that were traced, over all iterations.
    pub const fn micro_batches(&self) -> usize {
        self.counts.len() / (self.experts * self.layers)
    }

    /// Iterations that were traced; `None` where the micro-batches are one running sequence.
    pub const fn iterations(&self) -> Option<usize> {
        if self.continuous { None } else { Some(self.starts.len()) }
    }

    fn counts(&self, micro_batch: usize, layer: usize) -> &[u32] {
        let first = (micro_batch * self.layers + layer) * self.experts;
        &self.counts[first..first + self.experts]
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
