//! Builds a layer type from formulas in `u128`, converting to the core's integers once.

use std::ops::Add;

use bagualu_core::cost::{Bytes, OpModel, TensorModel, Time};
use bagualu_core::layer::{Group, Resource};
use bagualu_core::narrow::row_bytes;
use bagualu_core::set::Set;

use super::LayerType;
use super::fp8::{self, Linear};
use crate::assumptions::{
    ATTENTION_BACKWARD_TENTHS, ATTENTION_PERMILLE, COLLECTIVE_NS, GEMM_BACKWARD, GEMM_PERMILLE,
    GROUPED_GEMM_PERMILLE, LAUNCH_NS, LINK_PERMILLE, MEMORY_PERMILLE,
};
use crate::shape::{Rates, Shape};
use crate::{Fp8Recipe, ModelError};

/// A quantity that grows with the routed rows.
#[derive(Clone, Copy, Default, PartialEq)]
pub(super) struct Amount {
    fixed: u128,
    per_row: u128,
}

/// A quantity independent of the rows.
pub(super) const fn fixed(fixed: u128) -> Amount {
    Amount { fixed, per_row: 0 }
}

/// A quantity for each routed row.
pub(super) const fn rows(per_row: u128) -> Amount {
    Amount { fixed: 0, per_row }
}

impl Add for Amount {
    type Output = Self;
    /// What passes `u128` stays there, and is refused when it is converted.
    fn add(self, other: Self) -> Self {
        Self {
            fixed: self.fixed.saturating_add(other.fixed),
            per_row: self.per_row.saturating_add(other.per_row),
        }
    }
}

impl Amount {
    pub fn map(self, f: impl Fn(u128) -> Option<u128>) -> Option<Self> {
        Some(Self { fixed: f(self.fixed)?, per_row: f(self.per_row)? })
    }

    fn bytes(self) -> Option<Bytes> {
        Some(Bytes { fixed: self.fixed.try_into().ok()?, per_row: self.per_row.try_into().ok()? })
    }
}

/// What a tensor holds, which decides what may be done with it.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Holds {
    /// Activations in the parameters' type: may be offloaded and quantised.
    Activations,
    /// Statistics, indices or masks: never quantised.
    Exact,
    /// Always kept (see [`TensorModel::block_input`]).
    Input,
}

/// What an operator computes, moves and sends in forward.
#[derive(Clone, Copy, Default)]
pub(super) struct Cost {
    /// FLOPs of dense GEMMs.
    pub gemm: u128,
    /// FLOPs of grouped GEMMs, for each routed row.
    pub grouped: u128,
    /// FLOPs of flash or unfused attention.
    pub attention: u128,
    /// Bytes of device memory traffic.
    pub memory: Amount,
    /// Bytes sent or received over the links of [`Spec::collective`].
    pub sent: Amount,
}

/// An operator before conversion.
#[derive(Clone, Copy, Default)]
pub(super) struct Spec<'a> {
    pub reads: &'a [usize],
    pub makes: &'a [usize],
    pub saves: &'a [usize],
    pub cost: Cost,
    /// The group of its collective. An operator that only communicates has no other cost.
    pub collective: Option<Group>,
    pub forward_work: Amount,
    pub backward_work: Amount,
}

/// Collects the tensors and operators of one layer type.
pub(super) struct Builder<'a> {
    pub shape: &'a Shape,
    rates: &'a Rates,
    layer: LayerType,
    overflow: Option<&'static str>,
}

impl<'a> Builder<'a> {
    pub fn new(name: &'static str, shape: &'a Shape, rates: &'a Rates) -> Self {
        let layer = LayerType {
            name,
            tensors: Vec::new(),
            tensor_names: Vec::new(),
            ops: Vec::new(),
            op_names: Vec::new(),
            moe: Set::EMPTY,
            experts: Set::EMPTY,
            routed: false,
        };
        Self { shape, rates, layer, overflow: None }
    }

    /// Adds a tensor and returns its index.
    pub fn tensor(&mut self, name: &'static str, bytes: Amount, holds: Holds) -> usize {
        let quantized = (holds == Holds::Activations).then(|| self.narrow(bytes)).flatten();
        let tensor = TensorModel {
            bytes: self.or_overflow(name, bytes.bytes()),
            block_input: holds == Holds::Input,
            offload: holds != Holds::Input,
            quantized,
            source: None,
        };
        self.layer.tensors.push(tensor);
        self.layer.tensor_names.push(name);
        self.layer.tensors.len() - 1
    }

    /// Adds a tensor that no operator saves.
    pub fn transient(&mut self, name: &'static str, bytes: Amount) -> usize {
        let index = self.tensor(name, bytes, Holds::Exact);
        self.layer.tensors[index].offload = false;
        index
    }

    /// Marks `tensor` as a cast copy of `source`.
    pub fn copy_of(&mut self, tensor: usize, source: usize) {
        self.layer.tensors[tensor].source = u8::try_from(source).ok();
    }

    /// Marks tensors that exist only because of routed rows.
    pub fn routed(&mut self, tensors: &[usize]) {
        self.layer.moe |= tensors.iter().copied().collect();
        self.layer.routed = true;
    }

    /// Marks the operators added since there were `first` as the experts' own.
    pub fn experts_since(&mut self, first: usize) {
        self.layer.experts |= (first..self.layer.ops.len()).collect();
    }

    /// How many operators there are.
    pub fn op_count(&self) -> usize {
        self.layer.ops.len()
    }

    /// Adds an operator, with what it saves in FP8.
    pub fn op(&mut self, name: &'static str, spec: Spec<'_>) {
        match (fp8::named(name), fp8::stored(name), self.shape.kind.fp8) {
            (Some(linear), _, Some(recipe)) => self.fp8_linear(linear, recipe, spec),
            (_, Some(copy), _) if self.shape.kind.fp8_store => self.fp8_activation(name, copy, spec),
            _ => self.plain(name, spec),
        }
    }

    /// A linear layer that saves an FP8 copy of its input, cast before it.
    fn fp8_linear(&mut self, linear: &Linear, recipe: Fp8Recipe, spec: Spec<'_>) {
        let input = spec.reads.first().copied().filter(|input| spec.saves.contains(input));
        let Some(input) = input.filter(|_| !linear.original || recipe == Fp8Recipe::Delayed) else {
            return self.plain(linear.op, spec);
        };
        let whole = self.amount(input);
        let cast = fp8::amount(recipe, whole, self.shape.e);
        let cast = self.or_overflow(linear.copy, cast);
        let copy = self.narrow_copy(linear.copy, input, cast);
        let cost = Cost { memory: whole + cast, ..Cost::default() };
        self.plain(linear.cast, Spec { reads: &[input], makes: &[copy], cost, ..Spec::default() });
        self.passes(input);
        let instead = |tensors: &[usize]| -> Vec<_> {
            tensors.iter().map(|&tensor| if tensor == input { copy } else { tensor }).collect()
        };
        let (reads, saves) = (instead(spec.reads), instead(spec.saves));
        self.plain(linear.op, Spec { reads: &reads, saves: &saves, ..spec });
    }

    /// An activation that saves an FP8 copy of its input, cast without a scale.
    fn fp8_activation(&mut self, name: &'static str, copy: &'static str, spec: Spec<'_>) {
        let Some(&input) = spec.reads.first() else { return self.plain(name, spec) };
        let whole = self.amount(input);
        let cast = fp8::amount(Fp8Recipe::Tensorwise, whole, self.shape.e);
        let cast = self.or_overflow(copy, cast);
        let copy = self.narrow_copy(copy, input, cast);
        let saves: Vec<_> = spec.saves.iter().map(|&t| if t == input { copy } else { t }).collect();
        let makes = [spec.makes, &[copy]].concat();
        // Backward casts it back.
        let backward_work = spec.backward_work + whole;
        self.plain(name, Spec { makes: &makes, saves: &saves, backward_work, ..spec });
        self.passes(input);
    }

    fn narrow_copy(&mut self, name: &'static str, of: usize, bytes: Amount) -> usize {
        let copy = self.tensor(name, bytes, Holds::Exact);
        self.copy_of(copy, of);
        if self.layer.moe.contains(of) {
            self.layer.moe.insert(copy);
        }
        copy
    }

    /// `tensor` is there from its producer to the last operator so far: their work, where nobody saves it.
    fn passes(&mut self, tensor: usize) {
        if self.layer.ops.iter().any(|op| op.saves.contains(tensor)) {
            return;
        }
        let bytes = self.layer.tensors[tensor].bytes;
        let first = self.layer.ops.iter().position(|op| op.makes.contains(tensor)).unwrap_or(0);
        for op in &mut self.layer.ops[first..] {
            op.forward_work.fixed = op.forward_work.fixed.saturating_add(bytes.fixed);
            op.forward_work.per_row = op.forward_work.per_row.saturating_add(bytes.per_row);
        }
    }

    fn amount(&self, tensor: usize) -> Amount {
        let Bytes { fixed, per_row } = self.layer.tensors[tensor].bytes;
        Amount { fixed: fixed.into(), per_row: per_row.into() }
    }

    fn plain(&mut self, name: &'static str, spec: Spec<'_>) {
        let set = |indices: &[usize]| indices.iter().copied().collect::<Set>();
        let (forward, backward) = self.times(name, &spec);
        let cost = &spec.cost;
        let communicates = cost.gemm == 0 && cost.attention == 0 && cost.memory == Amount::default();
        let resource = match spec.collective {
            Some(_) if communicates => Resource::Communication,
            _ => Resource::Compute,
        };
        let op = OpModel {
            reads: set(spec.reads),
            makes: set(spec.makes),
            saves: set(spec.saves),
            forward: self.or_overflow(name, forward),
            backward: self.or_overflow(name, backward),
            resource,
            collective: spec.collective,
            forward_work: self.or_overflow(name, spec.forward_work.bytes()),
            backward_work: self.or_overflow(name, spec.backward_work.bytes()),
        };
        self.layer.ops.push(op);
        self.layer.op_names.push(name);
    }

    pub fn finish(self) -> Result<LayerType, ModelError> {
        match self.overflow {
            Some(what) => Err(ModelError::Overflow { what }),
            None => Ok(self.layer),
        }
    }

    /// Bytes in the narrow format; the fixed bytes are stored as one row.
    fn narrow(&self, bytes: Amount) -> Option<Bytes> {
        bytes
            .map(|bytes| {
                let elements = u64::try_from(bytes / self.shape.e).ok()?;
                row_bytes(elements).map(u128::from)
            })?
            .bytes()
    }

    /// Forward and backward times: a GEMM's backward is two GEMMs, an element-wise operator's moves as
    /// much again, a collective's sends as much again.
    fn times(&self, name: &str, spec: &Spec<'_>) -> (Option<Time>, Option<Time>) {
        let cost = spec.cost;
        let flops = |permille: u64| Rate { per_s: self.rates.flops, permille };
        let narrow = self.shape.kind.fp8.is_some() && fp8::named(name).is_some();
        let per_s = if narrow { self.rates.fp8_flops } else { self.rates.flops };
        let gemm_flops = |permille: u64| Rate { per_s, permille };
        let link = match spec.collective {
            Some(Group::Ep) => self.rates.ep,
            Some(Group::Cp) => self.rates.cp,
            _ => self.rates.tp,
        };
        let launch = LAUNCH_NS + if spec.collective.is_some() { COLLECTIVE_NS } else { 0 };
        let sum = |gemm: u64, attention_tenths: u64, memory: u64| {
            let times = [
                gemm_flops(GEMM_PERMILLE).ps(fixed(cost.gemm), gemm, 1)?,
                gemm_flops(GROUPED_GEMM_PERMILLE).ps(rows(cost.grouped), gemm, 1)?,
                flops(ATTENTION_PERMILLE).ps(fixed(cost.attention), attention_tenths, 10)?,
                Rate { per_s: self.rates.memory, permille: MEMORY_PERMILLE }.ps(cost.memory, memory, 1)?,
                Rate { per_s: link, permille: LINK_PERMILLE }.ps(cost.sent, 1, 1)?,
            ];
            let total = times.into_iter().fold(Amount::default(), Add::add);
            Some(Time {
                fixed_ns: u64::try_from(total.fixed.div_ceil(1_000)).ok()?.checked_add(launch)?,
                per_row_ps: total.per_row.try_into().ok()?,
            })
        };
        (sum(1, 10, 1), sum(GEMM_BACKWARD, ATTENTION_BACKWARD_TENTHS, 2))
    }

    fn or_overflow<T: Default>(&mut self, what: &'static str, value: Option<T>) -> T {
        if value.is_none() {
            self.overflow.get_or_insert(what);
        }
        value.unwrap_or_default()
    }
}

/// A rate of which a share is reached.
struct Rate {
    per_s: u64,
    permille: u64,
}

impl Rate {
    /// Picoseconds, rounded up, that `amount` · numerator / denominator takes; `None` past `u128`.
    fn ps(&self, amount: Amount, numerator: u64, denominator: u64) -> Option<Amount> {
        let reached = u128::from(self.per_s) * u128::from(self.permille) * u128::from(denominator);
        amount.map(|amount| {
            let product = amount.checked_mul(1_000_000_000_000 * 1_000)?.checked_mul(numerator.into())?;
            Some(if product == 0 { 0 } else { product.div_ceil(reached.max(1)) })
        })
    }
}
