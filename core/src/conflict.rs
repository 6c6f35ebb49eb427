//! Conflicting mitigations (§V-A): one logical tensor, several consumers, copies that do not agree.
//!
//! Algorithm 2 of the paper decides per operator, so two operators that save the same tensor, or cast
//! copies of one, may ask for different things. Then copies in several precisions exist at once (case 1),
//! or the device copy outlives an offload (case 2). The check traces every choice back to its source
//! tensor. The paper rejects a candidate that disagrees; [`Consumers::joint`] names the operators that
//! would have to change together, without which a shared tensor could never be mitigated.

use core::fmt;

use crate::layer::{Collectives, Layer, LayerPlan, Strategy};
use crate::limits::{MAX_OPS, MAX_TENSORS};
use crate::mitigate::recomputable;
use crate::set::Set;

/// One strategy per operator, for all tensors that it saves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choices([Strategy; MAX_OPS]);

impl Choices {
    /// Every operator keeps what it saves.
    pub const KEEP: Self = Self([Strategy::Keep; MAX_OPS]);

    /// The strategy of an operator; `Keep` where there is no such operator.
    pub fn of(&self, op: usize) -> Strategy {
        self.0.get(op).copied().unwrap_or(Strategy::Keep)
    }

    /// These, with one strategy for all of `ops`.
    #[must_use]
    pub fn with(mut self, ops: Set, strategy: Strategy) -> Self {
        for op in ops.iter().filter(|&op| op < MAX_OPS) {
            self.0[op] = strategy;
        }
        self
    }
}

/// Two operators that treat copies of one source differently.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conflict {
    /// The tensor that both trace back to.
    pub source: usize,
    /// The first operator, and how it treats what it saves.
    pub first: (usize, Strategy),
    /// The second.
    pub second: (usize, Strategy),
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, first, second } = self;
        write!(f, "operator {} treats tensor {source} by {:?}, ", first.0, first.1)?;
        write!(f, "operator {} by {:?}; choose one for both", second.0, second.1)
    }
}

/// Who saves what in a layer, and where it comes from.
#[derive(Clone, Debug)]
pub struct Consumers<'l> {
    layer: &'l Layer<'l>,
    source: [u8; MAX_TENSORS],
    recomputable: Set,
}

impl<'l> Consumers<'l> {
    /// Traces the tensors of a layer in which these collectives may run again.
    pub fn new(layer: &'l Layer<'l>, allow: Collectives) -> Self {
        let mut source = [0; MAX_TENSORS];
        for (tensor, source) in source.iter_mut().enumerate().take(layer.tensors().len()) {
            *source = trace(layer, tensor);
        }
        Self { layer, source, recomputable: recomputable(layer, allow) }
    }

    /// The tensor that `tensor` is a cast copy of in the end, or itself.
    pub fn source(&self, tensor: usize) -> usize {
        usize::from(self.source[tensor])
    }

    /// How `op`'s choice treats a tensor that it saves: kept where the tensor does not offer the strategy.
    pub fn treats(&self, choices: &Choices, op: usize, tensor: usize) -> Strategy {
        let (t, strategy) = (&self.layer.tensors()[tensor], choices.of(op));
        let offered = match strategy {
            Strategy::Keep => true,
            Strategy::Recompute => self.recomputable.contains(tensor),
            Strategy::Offload => t.copy.is_some(),
            Strategy::Quantize => t.cast.is_some(),
        };
        if offered && !t.block_input { strategy } else { Strategy::Keep }
    }

    /// The first disagreement, by operator.
    ///
    /// All consumers of a tensor must treat it alike. Copies of one source that are held must agree in
    /// place (device or host) and in whether they are narrowed; a copy that is recomputed is nowhere.
    pub fn conflict(&self, choices: &Choices) -> Option<Conflict> {
        let mut held: [Option<(usize, Strategy)>; MAX_TENSORS] = [None; MAX_TENSORS];
        let mut treated: [Option<(usize, Strategy)>; MAX_TENSORS] = [None; MAX_TENSORS];
        for (op, o) in self.layer.ops().iter().enumerate() {
            for tensor in o.saves.iter() {
                let (source, strategy) = (self.source(tensor), self.treats(choices, op, tensor));
                let held = if strategy == Strategy::Recompute { None } else { Some(&mut held[source]) };
                for seen in [Some(&mut treated[tensor]), held].into_iter().flatten() {
                    let first = *seen.get_or_insert((op, strategy));
                    if first.1 != strategy {
                        return Some(Conflict { source, first, second: (op, strategy) });
                    }
                }
            }
        }
        None
    }

    /// Device bytes of all copies of `source`: each distinct copy that some operator keeps counts once.
    pub fn device_bytes(&self, choices: &Choices, source: usize) -> u64 {
        let (mut full, mut narrow) = (Set::EMPTY, Set::EMPTY);
        for (op, o) in self.layer.ops().iter().enumerate() {
            for tensor in o.saves.iter().filter(|&t| self.source(t) == source) {
                match self.treats(choices, op, tensor) {
                    Strategy::Keep => full.insert(tensor),
                    Strategy::Quantize => narrow.insert(tensor),
                    Strategy::Recompute | Strategy::Offload => {}
                }
            }
        }
        let narrowed = |t: usize| self.layer.tensors()[t].cast.map_or(0, |cast| cast.bytes);
        self.layer.bytes(full) + narrow.iter().map(narrowed).sum::<u64>()
    }

    /// The operators that must choose together with `op`: all that save copies of what it saves, and of
    /// what those save.
    pub fn joint(&self, op: usize) -> Set {
        let sources =
            |op: usize| -> Set { self.layer.ops()[op].saves.iter().map(|t| self.source(t)).collect() };
        let (mut ops, mut shared) = (Set::one(op), sources(op));
        loop {
            let touches = |&op: &usize| !(sources(op) & shared).is_empty();
            let wider: Set = (0..self.layer.ops().len()).filter(touches).collect::<Set>() | ops;
            if wider == ops {
                return ops;
            }
            shared = wider.iter().fold(shared, |shared, op| shared | sources(op));
            ops = wider;
        }
    }

    /// The tensors' strategies; meaningful where there is no conflict.
    pub fn plan(&self, choices: &Choices) -> LayerPlan {
        let mut plan = LayerPlan::KEEP;
        for (op, o) in self.layer.ops().iter().enumerate() {
            for tensor in (o.saves & self.layer.saved()).iter() {
                plan.assign(tensor, self.treats(choices, op, tensor));
            }
        }
        plan
    }
}

/// Follows `source` to its end. Where the links form a circle, its lowest tensor stands for all.
fn trace(layer: &Layer<'_>, tensor: usize) -> u8 {
    let next = |t: u8| layer.tensors()[usize::from(t)].source.unwrap_or(t);
    let count = layer.tensors().len();
    let end = (0..count).fold(tensor as u8, |t, _| next(t));
    (0..count).scan(end, |t, _| Some(core::mem::replace(t, next(*t)))).min().unwrap_or(end)
}
