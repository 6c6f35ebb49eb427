//! What the benchmarks and the tables of `docs/` share.

pub mod selection;
pub mod windows;
