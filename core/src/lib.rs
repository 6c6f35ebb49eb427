//! Activation memory decisions for Mixture-of-Experts training, one micro-batch at a time.
//!
//! The crate is `no_std`, allocates nothing and forbids `unsafe`. It never reads a clock, a file, an
//! environment variable or a device: time and state come in as arguments, decisions come out as values,
//! and storage is the caller's. The same inputs give the same decision, bit for bit, on every rank and
//! processor: no floating point takes part in one.
//!
//! Data flows one way:
//!
//! ```text
//! cost → budget → mitigate (+ conflict) → interleave → plan → executor
//! ```
#![cfg_attr(not(test), no_std)]

pub mod budget;
pub mod conflict;
pub mod controller;
pub mod cost;
pub mod curve;
pub mod fingerprint;
pub mod floor;
pub mod group;
pub mod interleave;
pub mod layer;
pub mod ledger;
pub mod limits;
pub mod mitigate;
pub mod narrow;
pub mod plan_cache;
pub mod planner;
pub mod provision;
pub mod roofline;
pub mod schedule;
pub mod set;
pub mod stage;
