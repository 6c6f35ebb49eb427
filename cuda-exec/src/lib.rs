//! The executor: it does with real buffers what a plan says (§V, Fig. 7; design §3, §5, §6).
//!
//! ```text
//! plan (core::controller) ──► store ──► engine (offload, reload) ──► pool (pinned memory, capped)
//!                               ├─────► fp8 (storage casts)             │
//!                               └─────► recompute (hooks)               ▼
//!                                                        device: host | cuda | hip
//! ```
//!
//! A [`Device`](device::Device) is chosen at run time. Nothing here needs CUDA or HIP to build; their
//! libraries are looked for when a device is opened, and an absent one is a typed error.

pub mod collective;
#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod device;
pub mod engine;
#[cfg(feature = "conformance")]
pub mod fault;
pub mod fp8;
#[cfg(any(feature = "cuda", feature = "hip"))]
mod gpu;
#[cfg(feature = "hip")]
pub mod hip;
pub mod host;
mod open;
pub mod pool;
pub mod rank;
pub mod recompute;
pub mod store;
mod sync;

#[cfg(any(feature = "cuda", feature = "hip"))]
pub use gpu::Kernels;
pub use open::{Choice, open};
