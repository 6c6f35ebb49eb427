//! Why the store refuses a call.

use std::error::Error;
use std::fmt;

use crate::device::DeviceError;
use crate::engine::EngineError;
use crate::recompute::HookError;

/// Why the store refuses a call.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no such layer.
    NoSuchLayer {
        /// The unit.
        unit: u32,
        /// Its layer.
        layer: usize,
    },
    /// No operator of the layer saves such a tensor.
    NoSuchTensor {
        /// The unit.
        unit: u32,
        /// Its layer.
        layer: usize,
        /// The tensor.
        tensor: usize,
    },
    /// The call does not fit what was done with the layer before.
    OutOfOrder {
        /// The call.
        call: &'static str,
        /// The unit.
        unit: u32,
        /// Its layer.
        layer: usize,
        /// What the call needs.
        needs: &'static str,
    },
    /// A tensor has more bytes than its model says: they would not be counted.
    Larger {
        /// The tensor.
        tensor: usize,
        /// Its bytes.
        bytes: u64,
        /// The model's, at the layer's rows.
        model: u64,
    },
    /// The forward of a layer has ended without one of its tensors.
    NotSaved {
        /// The tensor.
        tensor: usize,
    },
    /// A tensor that the plan quantises was saved without its shape, or with another tensor's.
    NoShape {
        /// The tensor.
        tensor: usize,
        /// Its bytes.
        bytes: u64,
        /// Those of the shape given; 0 without one.
        shape: u64,
    },
    /// The bytes of a tensor at the layer's rows pass `u64`.
    Overflow {
        /// The tensor.
        tensor: usize,
    },
    /// A hook failed. It is not called again.
    Hook {
        /// The unit.
        unit: u32,
        /// Its layer.
        layer: usize,
        /// The operator.
        op: usize,
        /// What it said.
        error: HookError,
    },
    /// The engine refuses.
    Engine(EngineError),
    /// The device or its allocator refuses.
    Device(DeviceError),
}

impl From<EngineError> for StoreError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

impl From<DeviceError> for StoreError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchLayer { unit, layer } => write!(f, "unit {unit} has no layer {layer}"),
            Self::NoSuchTensor { unit, layer, tensor } => {
                write!(
                    f,
                    "tensor {tensor} of layer {layer} of unit {unit} is saved by no operator of its model"
                )
            }
            Self::OutOfOrder { call, unit, layer, needs } => {
                write!(f, "{call} of layer {layer} of unit {unit} needs {needs}")
            }
            Self::Larger { tensor, bytes, model } => write!(
                f,
                "tensor {tensor} has {bytes} bytes and its model {model}; the budget counts the model's: correct the model"
            ),
            Self::NotSaved { tensor } => {
                write!(f, "tensor {tensor} was not saved before its layer ended, and the plan keeps it")
            }
            Self::NoShape { tensor, bytes, shape } => write!(
                f,
                "tensor {tensor} is quantised; save its {bytes} bytes with the cast of their shape (the one given has {shape})"
            ),
            Self::Overflow { tensor } => write!(f, "the bytes of tensor {tensor} pass 2^64"),
            Self::Hook { unit, layer, op, error } => {
                write!(f, "running operator {op} of layer {layer} of unit {unit} again failed: {error}")
            }
            Self::Engine(error) => error.fmt(f),
            Self::Device(error) => error.fmt(f),
        }
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Hook { error, .. } => Some(&**error),
            Self::Engine(error) => Some(error),
            Self::Device(error) => Some(error),
            _ => None,
        }
    }
}
