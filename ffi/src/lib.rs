//! The C boundary: what of the core, the model reader and the executor is called from C and C++.
//!
//! Users read `include/bagualu.h`, which is made of this crate's comments, and `docs/c-api.md`. One file for each
//! C object; what they share is in five: `boundary` (panics), `status` and `message` (errors), `handle` (opaque
//! objects), `arguments` (pointers).
//!
//! Every function here does the same: arguments are checked, the object is found and locked, the safe API is
//! called, results are written. Nothing else is `unsafe` than reading and writing what the caller's pointers
//! name.
#![allow(non_camel_case_types, reason = "the names are those of C")]

mod arguments;
mod boundary;
#[cfg(feature = "cxx")]
mod bridge;
mod cast;
mod collective;
mod device;
mod engine;
mod group;
mod handle;
mod layer;
mod library;
mod message;
mod model;
mod plan;
mod rank;
mod status;

pub use cast::*;
pub use collective::*;
pub use device::*;
pub use engine::*;
pub use group::*;
pub use layer::*;
pub use library::*;
pub use message::*;
pub use model::*;
pub use plan::*;
pub use rank::*;
pub use status::{bagualu_status, bagualu_status_name};

/// The largest number of a handle's kind in use.
const MOST_KIND: usize = 16;
