//! The conflict check against copies that are counted one by one.

use std::collections::BTreeSet;

use bagualu_core::conflict::{Choices, Consumers};
use bagualu_core::layer::{Collectives, Layer, Strategy};
use bagualu_core::mitigate::evaluate;
use bagualu_core::set::Set;

use crate::instances::{Dice, Parts, random};

const STRATEGIES: [Strategy; 4] =
    [Strategy::Keep, Strategy::Recompute, Strategy::Offload, Strategy::Quantize];

/// Where one operator holds one tensor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Place {
    Device,
    DeviceNarrow,
    Host,
    Nowhere,
}

/// The copies that operators ask for: (source, tensor, place).
fn copies(layer: &Parts, choices: &[Strategy], recomputable: &BTreeSet<usize>) -> Vec<(usize, usize, Place)> {
    let mut all = Vec::new();
    for (op, strategy) in layer.ops.iter().zip(choices) {
        for t in op.saves.iter() {
            let tensor = &layer.tensors[t];
            let mut source = t;
            while let Some(from) = layer.tensors[source].source {
                source = from.into();
            }
            let place = match strategy {
                Strategy::Recompute if !tensor.block_input && recomputable.contains(&t) => Place::Nowhere,
                Strategy::Offload if !tensor.block_input && tensor.copy.is_some() => Place::Host,
                Strategy::Quantize if !tensor.block_input && tensor.cast.is_some() => Place::DeviceNarrow,
                _ => Place::Device,
            };
            all.push((source, t, place));
        }
    }
    all
}

#[test]
fn the_check_agrees_with_counted_copies() {
    let (mut clean, mut conflicts, mut wasted) = (0, 0, 0);
    for seed in 0..4_000 {
        let mut dice = Dice::new(seed ^ 0xc0f1);
        let mut parts = random(&mut dice, 6, 1_000);
        for t in 1..parts.tensors.len() {
            if dice.chance(25) {
                parts.tensors[t].source = Some(dice.below(t as u64) as u8);
            }
        }
        let layer = Layer::new(&parts.tensors, &parts.ops).expect("a layer");
        let consumers = Consumers::new(&layer, Collectives::ALL);
        let alone = |t: usize| {
            let mut plan = bagualu_core::layer::LayerPlan::KEEP;
            plan.assign(t, Strategy::Recompute);
            evaluate(&layer, &plan, Collectives::ALL).is_ok()
        };
        let recomputable: BTreeSet<usize> = (0..parts.tensors.len()).filter(|&t| alone(t)).collect();
        for _ in 0..8 {
            let asked: Vec<Strategy> = parts.ops.iter().map(|_| STRATEGIES[dice.below(4) as usize]).collect();
            let pairs = asked.iter().enumerate();
            let choices = pairs.fold(Choices::KEEP, |c, (op, &s)| c.with(Set::one(op), s));
            let copies = copies(&parts, &asked, &recomputable);
            // One tensor in two places, or two held copies of a source that do not agree.
            let disagree = copies.iter().any(|a| {
                copies.iter().any(|b| {
                    let held = a.2 != Place::Nowhere && b.2 != Place::Nowhere;
                    a.2 != b.2 && (a.1 == b.1 || a.0 == b.0 && held)
                })
            });
            let found = consumers.conflict(&choices);
            assert_eq!(found.is_some(), disagree, "seed {seed}: {found:?}");
            // Each distinct copy on the device counts once.
            let distinct: BTreeSet<_> = copies.iter().copied().collect();
            let bytes = |t: usize, place: Place| match place {
                Place::Device => parts.tensors[t].bytes,
                Place::DeviceNarrow => parts.tensors[t].cast.expect("a cast").bytes,
                Place::Host | Place::Nowhere => 0,
            };
            let counted: u64 = distinct.iter().map(|&(_, t, place)| bytes(t, place)).sum();
            let own: u64 = (0..parts.tensors.len()).map(|t| consumers.device_bytes(&choices, t)).sum();
            assert_eq!(own, counted, "seed {seed}");
            let plan = consumers.plan(&choices);
            if let (None, Ok(point)) = (found, evaluate(&layer, &plan, Collectives::ALL)) {
                // Block inputs that nobody saves are kept all the same.
                let saved = parts.ops.iter().fold(Set::EMPTY, |all, op| all | op.saves);
                assert_eq!(point.bytes, counted + layer.bytes(layer.block_inputs() - saved), "seed {seed}");
                clean += 1;
            } else {
                conflicts += 1;
                let nominal: BTreeSet<_> = copies.iter().map(|c| c.1).collect();
                let least = |t: usize| copies.iter().filter(|c| c.1 == t).map(|c| bytes(t, c.2)).min();
                wasted += u32::from(counted > nominal.iter().filter_map(|&t| least(t)).sum());
            }
        }
    }
    assert!(clean > 1_000 && conflicts > 1_000 && wasted > 500, "{clean}, {conflicts}, {wasted}");
}

#[test]
fn joint_operators_share_nothing_with_the_others() {
    let mut shared = 0;
    for seed in 0..2_000 {
        let mut dice = Dice::new(seed ^ 0x101);
        let parts = random(&mut dice, 7, 100);
        let layer = Layer::new(&parts.tensors, &parts.ops).expect("a layer");
        let consumers = Consumers::new(&layer, Collectives::ALL);
        for op in 0..parts.ops.len() {
            let joint = consumers.joint(op);
            let saves = joint.iter().fold(Set::EMPTY, |all, op| all | parts.ops[op].saves);
            assert!(joint.contains(op));
            for other in (0..parts.ops.len()).filter(|&other| !joint.contains(other)) {
                assert!((parts.ops[other].saves & saves).is_empty(), "seed {seed}");
            }
            shared += u32::from(joint.len() > 1);
        }
    }
    assert!(shared > 1_000);
}
