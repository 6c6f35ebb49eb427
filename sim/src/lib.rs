//! Memory replay of a pipeline under the controller and under static policies.
//!
//! ```text
//! trace | workload ──► load ──► replay: one executor per (stage, expert-parallel rank) ──► log ──► checker
//! ```
//!
//! Everything that decides or counts is in integers, and nothing depends on the number of threads.

mod apportion;
pub mod checker;
pub mod controlled;
pub mod executor;
pub mod job;
pub mod load;
pub mod load_summary;
pub mod log;
mod order;
pub mod policy;
pub mod replay;
pub mod text;
pub mod trace;
pub mod workload;
