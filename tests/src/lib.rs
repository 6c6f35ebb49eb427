//! What cross-crate tests share.

pub mod random_rank;
