//! Random instances, and an evaluation that shares no code with the crate's.

use bagualu_core::layer::{CastTimes, Collectives, CopyTimes, Group, LayerPlan, Op, Strategy, Tensor};
use bagualu_core::set::Set;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

pub struct Dice(ChaCha8Rng);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0.next_u64() % n
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn subset(&mut self, of: &[usize], percent: u64) -> Set {
        of.iter().copied().filter(|_| self.chance(percent)).collect()
    }
}

/// Tensors and operators of one layer.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    pub tensors: Vec<Tensor>,
    pub ops: Vec<Op>,
}

/// A random layer whose operators come in topological order: `saved` tensors or fewer have a strategy,
/// bytes and times are below `most`.
pub fn random(dice: &mut Dice, saved: usize, most: u64) -> Parts {
    let inputs = 1 + dice.below(2) as usize;
    let count = inputs + saved + dice.below(3) as usize;
    let mut layer = Parts::default();
    for index in 0..count {
        let bytes = if dice.chance(10) { 0 } else { dice.below(most) };
        let times = |dice: &mut Dice| (dice.below(most), dice.below(most));
        let copy = dice.chance(50).then(|| times(dice)).map(|(out_ns, in_ns)| CopyTimes { out_ns, in_ns });
        let cast = dice.chance(40).then(|| times(dice)).map(|(cast_ns, uncast_ns)| CastTimes {
            cast_ns,
            uncast_ns,
            bytes: dice.below(bytes + 2),
        });
        layer.tensors.push(Tensor { bytes, block_input: index == 0, copy, cast, source: None });
    }
    let mut made = inputs;
    while made < count {
        let before: Vec<usize> = (0..made).collect();
        let makes = made..(made + 1 + dice.below(3) as usize).min(count);
        made = makes.end;
        let collective = dice.chance(15).then_some(if dice.chance(50) { Group::Ep } else { Group::Tp });
        layer.ops.push(Op {
            reads: dice.subset(&before, 45),
            makes: makes.collect(),
            saves: Set::EMPTY,
            forward_ns: dice.below(most),
            collective,
        });
    }
    let mut named = 0;
    for op in 0..layer.ops.len() {
        let near: Vec<usize> = (layer.ops[op].reads | layer.ops[op].makes).iter().collect();
        for tensor in dice.subset(&near, 60).iter() {
            let new = layer.ops.iter().all(|o| !o.saves.contains(tensor)) && tensor > 0;
            if !new || named < saved {
                named += usize::from(new);
                layer.ops[op].saves.insert(tensor);
            }
        }
    }
    layer
}

/// Bytes, host bytes and added time by the words of the format's description; `None` if not allowed.
pub fn naive(layer: &Parts, plan: &LayerPlan, allow: Collectives) -> Option<(u64, u64, u64)> {
    let (mut bytes, mut host, mut ns) = (0, 0, 0);
    let saved = |t: usize| layer.ops.iter().any(|op| op.saves.contains(t));
    let mut run = vec![false; layer.ops.len()];
    for (t, tensor) in layer.tensors.iter().enumerate() {
        if tensor.block_input || !saved(t) {
            bytes += if tensor.block_input { tensor.bytes } else { 0 };
            if plan.strategy(t) != Strategy::Keep {
                return None;
            }
            continue;
        }
        match plan.strategy(t) {
            Strategy::Keep => bytes += tensor.bytes,
            Strategy::Offload => {
                host += tensor.bytes;
                ns += tensor.copy?.out_ns + tensor.copy?.in_ns;
            }
            Strategy::Quantize => {
                bytes += tensor.cast?.bytes;
                ns += tensor.cast?.cast_ns + tensor.cast?.uncast_ns;
            }
            Strategy::Recompute => remake(layer, plan, allow, t, &mut run)?,
        }
    }
    ns += layer.ops.iter().zip(&run).filter(|(_, run)| **run).map(|(op, _)| op.forward_ns).sum::<u64>();
    Some((bytes, host, ns))
}

fn remake(layer: &Parts, plan: &LayerPlan, allow: Collectives, t: usize, run: &mut [bool]) -> Option<()> {
    let op = layer.ops.iter().position(|op| op.makes.contains(t))?;
    if std::mem::replace(&mut run[op], true) {
        return Some(());
    }
    if !allow.allow(layer.ops[op].collective) {
        return None;
    }
    for read in 0..layer.tensors.len() {
        let saved = layer.ops.iter().any(|op| op.saves.contains(read));
        let there = layer.tensors[read].block_input || saved && plan.strategy(read) != Strategy::Recompute;
        if layer.ops[op].reads.contains(read) && !there {
            remake(layer, plan, allow, read, run)?;
        }
    }
    Some(())
}

/// Every plan of a layer, allowed or not, over its saved tensors.
pub fn plans(layer: &Parts) -> Vec<LayerPlan> {
    const STRATEGIES: [Strategy; 4] =
        [Strategy::Keep, Strategy::Recompute, Strategy::Offload, Strategy::Quantize];
    let mut all = vec![LayerPlan::KEEP];
    for (t, tensor) in layer.tensors.iter().enumerate() {
        if tensor.block_input || !layer.ops.iter().any(|op| op.saves.contains(t)) {
            continue;
        }
        let extend = |plan: &LayerPlan| {
            STRATEGIES.map(|strategy| {
                let mut plan = *plan;
                plan.assign(t, strategy);
                plan
            })
        };
        all = all.iter().flat_map(extend).collect();
    }
    all
}
