//! Model shapes to operators, saved tensors, static memory and times: what Megatron's GPT/MoE layer
//! keeps for backward and what it costs, as integers for [`bagualu_core`].
//!
//! ```text
//! ModelConfig + Parallelism + Device → Model { layer types, stages, micro-batches }
//! ```
//!
//! Everything a formula assumes rather than derives is in [`assumptions`].

pub mod assumptions;
mod buffers;
mod config;
mod device;
mod error;
mod fields;
mod layer;
mod layout;
mod model;
mod parallel;
mod params;
mod preset;
pub mod read;
pub mod script;
pub mod settings;
mod shape;
mod static_bytes;

pub use buffers::{Buffers, Memory};
pub use config::{
    Activation, Attention, Capacity, Loss, Mla, ModelConfig, MoeConfig, MoeLayers, Norm, PermuteIndices,
    Rotary, RouterInput,
};
pub use device::{DEVICES, Device, DeviceFileError, MAX_DEVICE_FILE, Workspaces};
pub use error::ModelError;
pub use layer::LayerType;
pub use layout::{Layout, StageLayout};
pub use model::{LayerRef, Model, Stage};
pub use parallel::{Fp8, Fp8Recipe, GradientType, Libraries, Optimizer, Parallelism, Precision, RowPadding};
pub use params::{ParameterCount, Parameters};
pub use preset::{MODELS, Preset};
pub use static_bytes::StaticBytes;
