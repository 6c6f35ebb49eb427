//! Fuzz targets: each takes any bytes and panics if an invariant is broken.
//!
//! The bytes are a program for a generator of valid instances ([`Input`]), so that the search moves
//! through instances and not through syntax; only [`solver_json`] and the readers of files eat raw bytes. The binaries
//! in `targets/` hand them to libFuzzer, `tests/corpus.rs` replays `corpus/`.

mod budget;
#[allow(unsafe_code, reason = "it calls C functions")]
mod c_api;
mod device;
mod input;
mod interleave;
mod mitigate;
mod readers;
mod script;
mod solver_json;

pub use budget::budget;
pub use c_api::c_api;
pub use device::device;
pub use input::Input;
pub use interleave::interleave;
pub use mitigate::mitigate;
pub use readers::{flag_list, hf_config, yaml};
pub use script::script;
pub use solver_json::solver_json;
