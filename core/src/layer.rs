//! One layer of a micro-batch at known rows: the input of Algorithm 2.
//!
//! [`cost`](crate::cost) evaluates a layer type at a row count and yields one of these. Everything is
//! in `u64` bytes and `u64` nanoseconds.

use core::fmt;

use crate::limits::{MAX_OPS, MAX_TENSORS};
use crate::set::Set;

/// What is done with a saved tensor between forward and backward (§IV-B).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Strategy {
    /// Its bytes stay on the device.
    Keep,
    /// Dropped; its producer runs again before backward.
    Recompute,
    /// Copied to the host, and back before backward.
    Offload,
    /// Held in a narrower format, and cast back before backward.
    Quantize,
}

/// What an operator occupies while it runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Resource {
    /// The device's compute units.
    Compute,
    /// The links between devices.
    Communication,
    /// The device→host copy engine.
    CopyOut,
    /// The host→device copy engine.
    CopyIn,
}

/// The ranks that meet in a collective.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Group {
    /// Expert parallel.
    Ep,
    /// Tensor parallel (sequence parallel included).
    Tp,
    /// Context parallel.
    Cp,
    /// Pipeline parallel.
    Pp,
}

/// Collectives that a recomputation may run again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Collectives(u8);

impl Collectives {
    /// None: only local recomputation.
    pub const NONE: Self = Self(0);
    /// Every group's.
    pub const ALL: Self = Self(0b1111);

    /// These and `group`'s.
    pub const fn with(self, group: Group) -> Self {
        Self(self.0 | 1 << group as u8)
    }

    /// Whether a collective of `group` is among them; no collective always is.
    pub const fn allow(self, group: Option<Group>) -> bool {
        match group {
            None => true,
            Some(group) => self.0 >> (group as u8) & 1 == 1,
        }
    }
}

/// Times of moving a tensor to the host and back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CopyTimes {
    /// Device→host, ns.
    pub out_ns: u64,
    /// Host→device, ns.
    pub in_ns: u64,
}

/// Times and bytes of holding a tensor in a narrower format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CastTimes {
    /// To the narrow format, ns.
    pub cast_ns: u64,
    /// Back, ns.
    pub uncast_ns: u64,
    /// Bytes held between (scales included). May exceed the tensor's own.
    pub bytes: u64,
}

/// One storage of a layer (views of one storage are one tensor).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tensor {
    /// Device bytes while kept.
    pub bytes: u64,
    /// Always kept and counted: block inputs, RNG state, top-k and dispatch layout.
    pub block_input: bool,
    /// Set where the tensor may be offloaded.
    pub copy: Option<CopyTimes>,
    /// Set where the tensor may be quantised.
    pub cast: Option<CastTimes>,
    /// The tensor of the layer that this is a cast copy of.
    pub source: Option<u8>,
}

/// An operator of a layer, in forward.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Op {
    /// Tensors it reads.
    pub reads: Set,
    /// Tensors it makes.
    pub makes: Set,
    /// Tensors it saves for its backward.
    pub saves: Set,
    /// Forward time, ns; also the cost of running it again.
    pub forward_ns: u64,
    /// The group of its collective, if it runs one.
    pub collective: Option<Group>,
}

/// A checked layer: every index exists, a tensor has one producer, producers do not form a cycle.
#[derive(Clone, Copy, Debug)]
pub struct Layer<'a> {
    tensors: &'a [Tensor],
    ops: &'a [Op],
    producer: [u8; MAX_TENSORS],
    order: [u8; MAX_OPS],
    saved: Set,
    block_inputs: Set,
}

const NO_OP: u8 = u8::MAX;

impl<'a> Layer<'a> {
    /// Checks `tensors` and `ops`.
    pub fn new(tensors: &'a [Tensor], ops: &'a [Op]) -> Result<Self, LayerError> {
        if tensors.len() > MAX_TENSORS {
            return Err(LayerError::TooManyTensors { count: tensors.len() });
        }
        if ops.len() > MAX_OPS {
            return Err(LayerError::TooManyOps { count: ops.len() });
        }
        let mut layer = Self {
            tensors,
            ops,
            producer: [NO_OP; MAX_TENSORS],
            order: [NO_OP; MAX_OPS],
            saved: Set::EMPTY,
            block_inputs: Set::EMPTY,
        };
        layer.check_sums()?;
        layer.link()?;
        layer.sort()?;
        Ok(layer)
    }

    /// No sum over the layer may overflow, so that none needs checking later.
    fn check_sums(&self) -> Result<(), LayerError> {
        let (mut bytes, mut ns) = (0u64, 0u64);
        for (index, tensor) in self.tensors.iter().enumerate() {
            let copy = tensor.copy.unwrap_or_default();
            let cast = tensor.cast.unwrap_or_default();
            let held = tensor.bytes.checked_add(cast.bytes).and_then(|b| bytes.checked_add(b));
            let spent = [copy.out_ns, copy.in_ns, cast.cast_ns, cast.uncast_ns]
                .iter()
                .try_fold(ns, |sum, &t| sum.checked_add(t));
            match (held, spent) {
                (Some(b), Some(t)) => (bytes, ns) = (b, t),
                _ => return Err(LayerError::Overflow { tensor: index }),
            }
            if let Some(source) = tensor.source
                && (source as usize >= self.tensors.len() || source as usize == index)
            {
                return Err(LayerError::NoSuchSource { tensor: index, source: source as usize });
            }
        }
        for (index, op) in self.ops.iter().enumerate() {
            ns = ns.checked_add(op.forward_ns).ok_or(LayerError::OpOverflow { op: index })?;
        }
        Ok(())
    }

    fn link(&mut self) -> Result<(), LayerError> {
        let all = Set::first(self.tensors.len());
        for (index, tensor) in self.tensors.iter().enumerate() {
            if tensor.block_input {
                self.block_inputs.insert(index);
            }
        }
        for (op, o) in self.ops.iter().enumerate() {
            if let Some(tensor) = ((o.reads | o.makes | o.saves) - all).last() {
                return Err(LayerError::NoSuchTensor { op, tensor });
            }
            for tensor in o.makes.iter() {
                let first = self.producer[tensor];
                if first != NO_OP {
                    return Err(LayerError::TwoProducers { tensor, first: first as usize, second: op });
                }
                self.producer[tensor] = op as u8;
            }
            self.saved |= o.saves;
        }
        self.saved = self.saved - self.block_inputs;
        Ok(())
    }

    /// Orders the operators so that producers come first.
    fn sort(&mut self) -> Result<(), LayerError> {
        let mut waiting = Set::first(self.ops.len());
        let mut made: Set = (0..self.tensors.len()).filter(|&t| self.producer[t] == NO_OP).collect();
        for place in 0..self.ops.len() {
            let ready = waiting.iter().find(|&op| self.ops[op].reads.is_subset(made));
            let Some(op) = ready else {
                return Err(LayerError::Cycle { op: waiting.iter().next().unwrap_or(0) });
            };
            self.order[place] = op as u8;
            made |= self.ops[op].makes;
            waiting.remove(op);
        }
        Ok(())
    }

    /// The tensors.
    pub fn tensors(&self) -> &'a [Tensor] {
        self.tensors
    }

    /// The operators.
    pub fn ops(&self) -> &'a [Op] {
        self.ops
    }

    /// The operator that makes `tensor`.
    pub fn producer(&self, tensor: usize) -> Option<usize> {
        self.producer.get(tensor).filter(|&&op| op != NO_OP).map(|&op| op as usize)
    }

    /// The operators, producers before consumers.
    pub fn order(&self) -> impl DoubleEndedIterator<Item = usize> {
        self.order[..self.ops.len()].iter().map(|&op| op as usize)
    }

    /// Tensors that have a strategy: saved by some operator and no block input.
    pub fn saved(&self) -> Set {
        self.saved
    }

    /// Tensors that are always kept.
    pub fn block_inputs(&self) -> Set {
        self.block_inputs
    }

    /// Bytes of the tensors in `set`.
    pub fn bytes(&self, set: Set) -> u64 {
        set.iter().map(|t| self.tensors[t].bytes).sum()
    }

    /// full: bytes with nothing mitigated.
    pub fn full_bytes(&self) -> u64 {
        self.bytes(self.saved | self.block_inputs)
    }
}

/// The strategies of a layer's saved tensors; a saved tensor in none of the sets is kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct LayerPlan {
    /// Tensors recomputed.
    pub recompute: Set,
    /// Tensors offloaded.
    pub offload: Set,
    /// Tensors quantised.
    pub quantize: Set,
}

impl LayerPlan {
    /// Everything kept.
    pub const KEEP: Self = Self { recompute: Set::EMPTY, offload: Set::EMPTY, quantize: Set::EMPTY };

    /// The strategy of `tensor`.
    pub const fn strategy(&self, tensor: usize) -> Strategy {
        if self.recompute.contains(tensor) {
            Strategy::Recompute
        } else if self.offload.contains(tensor) {
            Strategy::Offload
        } else if self.quantize.contains(tensor) {
            Strategy::Quantize
        } else {
            Strategy::Keep
        }
    }

    /// Sets the strategy of `tensor`.
    pub fn assign(&mut self, tensor: usize, strategy: Strategy) {
        self.recompute.remove(tensor);
        self.offload.remove(tensor);
        self.quantize.remove(tensor);
        match strategy {
            Strategy::Keep => {}
            Strategy::Recompute => self.recompute.insert(tensor),
            Strategy::Offload => self.offload.insert(tensor),
            Strategy::Quantize => self.quantize.insert(tensor),
        }
    }
}

/// Why a layer is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LayerError {
    /// More tensors than [`MAX_TENSORS`].
    TooManyTensors {
        /// How many.
        count: usize,
    },
    /// More operators than [`MAX_OPS`].
    TooManyOps {
        /// How many.
        count: usize,
    },
    /// An operator names a tensor that does not exist.
    NoSuchTensor {
        /// The operator.
        op: usize,
        /// The index it names.
        tensor: usize,
    },
    /// A tensor names a source that does not exist, or itself.
    NoSuchSource {
        /// The tensor.
        tensor: usize,
        /// The index it names.
        source: usize,
    },
    /// Two operators make the same tensor.
    TwoProducers {
        /// The tensor.
        tensor: usize,
        /// The first operator.
        first: usize,
        /// The second operator.
        second: usize,
    },
    /// Operators wait for each other's tensors.
    Cycle {
        /// One of them.
        op: usize,
    },
    /// The sum of bytes or times passes `u64` at this tensor.
    Overflow {
        /// The tensor.
        tensor: usize,
    },
    /// The sum of times passes `u64` at this operator.
    OpOverflow {
        /// The operator.
        op: usize,
    },
}

impl fmt::Display for LayerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyTensors { count } => {
                write!(
                    f,
                    "{count} tensors in one layer; this build takes {MAX_TENSORS} (BAGUALU_MAX_TENSORS)"
                )
            }
            Self::TooManyOps { count } => {
                write!(f, "{count} operators in one layer; this build takes {MAX_OPS} (BAGUALU_MAX_OPS)")
            }
            Self::NoSuchTensor { op, tensor } => {
                write!(f, "operator {op} names tensor {tensor}, which does not exist")
            }
            Self::NoSuchSource { tensor, source } => {
                write!(f, "tensor {tensor} names source {source}; a source is another tensor of the layer")
            }
            Self::TwoProducers { tensor, first, second } => {
                write!(f, "tensor {tensor} is made by operators {first} and {second}; it needs one producer")
            }
            Self::Cycle { op } => {
                write!(f, "operator {op} waits for a tensor that is made from its own output")
            }
            Self::Overflow { tensor } => {
                write!(f, "the sum of bytes or times passes 2^64 at tensor {tensor}")
            }
            Self::OpOverflow { op } => write!(f, "the sum of times passes 2^64 at operator {op}"),
        }
    }
}

impl core::error::Error for LayerError {}
