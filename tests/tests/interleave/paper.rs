//! The paper's program as it is written: memoised, each segment run from scratch.

use std::collections::BTreeMap;

use bagualu_core::interleave::{Chain, Op};
use bagualu_core::layer::Resource;

use crate::instances::Instance;

type Place = [usize; 4];
type Lanes = [Vec<(Chain, Op)>; 4];

/// F of the whole window: the shortest time with barriers between segments.
pub fn direct(instance: &Instance) -> u64 {
    let plain = lanes(instance);
    let stages = plain.clone().map(compact);
    let solve = |lanes: &Lanes| {
        f(lanes.each_ref().map(Vec::len), lanes, instance.base, instance.capacity, &mut BTreeMap::new())
    };
    solve(&stages).or_else(|| solve(&plain)).expect("feasible")
}

fn lanes(instance: &Instance) -> Lanes {
    let mut lanes: Lanes = Default::default();
    for (lane, chain) in Chain::ALL.into_iter().enumerate() {
        lanes[lane] = instance.chains[lane].iter().map(|op| (chain, *op)).collect();
    }
    if let Some(merge) = &instance.merge {
        let mut sources = [lanes[0].clone().into_iter(), lanes[1].clone().into_iter()];
        lanes[0] = merge.iter().map(|&chain| sources[chain as usize].next().expect("an operator")).collect();
        lanes[1].clear();
    }
    lanes
}

/// Runs of computation as one operator that takes the most it ever holds and gives back the rest.
fn compact(lane: Vec<(Chain, Op)>) -> Vec<(Chain, Op)> {
    lane.chunk_by(|a, b| a.0 == b.0 && a.1.resource == Resource::Compute && b.1.resource == Resource::Compute)
        .map(|run| {
            let (mut held, mut most) = (0i64, 0i64);
            for (_, op) in run {
                most = most.max(held + op.alloc_bytes as i64);
                held += op.alloc_bytes as i64 - op.free_bytes as i64;
            }
            let ns = run.iter().map(|(_, op)| op.ns).sum();
            let resource = run[0].1.resource;
            (run[0].0, Op { resource, ns, alloc_bytes: most as u64, free_bytes: (most - held) as u64 })
        })
        .collect()
}

fn f(
    to: Place,
    lanes: &Lanes,
    base: u64,
    capacity: u64,
    memo: &mut BTreeMap<Place, Option<u64>>,
) -> Option<u64> {
    if to == [0; 4] {
        return Some(0);
    }
    if let Some(&known) = memo.get(&to) {
        return known;
    }
    let mut best = None;
    for w in 0..=to[0] {
        for x in 0..=to[1] {
            for y in 0..=to[2] {
                for z in 0..=to[3] {
                    let from = [w, x, y, z];
                    if from == to || !fits(from, to, lanes, base, capacity) {
                        continue;
                    }
                    if let Some(before) = f(from, lanes, base, capacity, memo) {
                        let ns = before + t(from, to, lanes);
                        best = Some(best.map_or(ns, |b: u64| b.min(ns)));
                    }
                }
            }
        }
    }
    memo.insert(to, best);
    best
}

/// All that the segment takes, on top of what is in use before it.
fn fits(from: Place, to: Place, lanes: &Lanes, base: u64, capacity: u64) -> bool {
    let mut bytes = i128::from(base);
    for (lane, items) in lanes.iter().enumerate() {
        for (_, op) in &items[..from[lane]] {
            bytes += i128::from(op.alloc_bytes) - i128::from(op.free_bytes);
        }
        bytes += items[from[lane]..to[lane]].iter().map(|(_, op)| i128::from(op.alloc_bytes)).sum::<i128>();
    }
    bytes <= i128::from(capacity)
}

/// T: the segment's operators in rounds, one of each lane in turn.
fn t(from: Place, to: Place, lanes: &Lanes) -> u64 {
    let mut chains: BTreeMap<Chain, u64> = BTreeMap::new();
    let mut resources: BTreeMap<Resource, u64> = BTreeMap::new();
    for round in 0.. {
        let mut issued = false;
        for lane in 0..4 {
            let Some((chain, op)) = lanes[lane][from[lane]..to[lane]].get(round) else { continue };
            let ready = chains.get(chain).max(resources.get(&op.resource)).copied().unwrap_or(0);
            chains.insert(*chain, ready + op.ns);
            resources.insert(op.resource, ready + op.ns);
            issued = true;
        }
        if !issued {
            break;
        }
    }
    chains.into_values().max().unwrap_or(0)
}
