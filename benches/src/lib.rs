//! What the benchmarks share.

pub mod selection;
