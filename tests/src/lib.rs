//! What cross-crate tests share.

pub mod pipeline;
pub mod random_rank;
