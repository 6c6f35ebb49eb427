//! Windows to interleave: from the layer tables of real models, and synthetic ones of any size.

use bagualu_core::cost::LayerStorage;
use bagualu_core::interleave::{Chain, InterleaveError, List, Op, Problem, Scheduler, Step};
use bagualu_core::layer::{CopyTimes, Layer, Resource};
use bagualu_core::set::Set;
use bagualu_model::{LayerType, Model};

/// The four chains of a scheduling point.
#[derive(Clone, Debug)]
pub struct Window {
    /// F, B, O, R.
    pub chains: [Vec<Op>; 4],
    /// What B and O give back is in use before.
    pub base_bytes: u64,
}

impl Window {
    fn new(chains: [Vec<Op>; 4]) -> Self {
        let given =
            |ops: &[Op]| ops.iter().map(|op| op.free_bytes.saturating_sub(op.alloc_bytes)).sum::<u64>();
        let base_bytes = given(&chains[Chain::Backward as usize]) + given(&chains[Chain::Offload as usize]);
        Self { chains, base_bytes }
    }

    /// The problem at a capacity.
    pub fn problem<'a>(
        &'a self,
        capacity_bytes: u64,
        merge: Option<&'a [Chain]>,
    ) -> Result<Problem<'a>, InterleaveError> {
        Problem::new(self.chains.each_ref().map(Vec::as_slice), self.base_bytes, capacity_bytes, merge)
    }

    /// The smallest capacity that does.
    pub fn least_bytes(&self, merge: Option<&[Chain]>) -> Result<u64, InterleaveError> {
        let problem = self.problem(0, merge)?;
        match List.schedule(&problem, &mut vec![Step::default(); problem.op_count()]) {
            Err(InterleaveError::Infeasible { needed_bytes, .. }) => Ok(needed_bytes),
            other => other.map(|solution| solution.peak_bytes),
        }
    }

    /// F and B in turn, as long as both have operators.
    pub fn alternating(&self) -> Vec<Chain> {
        let [forwards, backwards, ..] = self.chains.each_ref().map(Vec::len);
        let turn = |place: usize| {
            let chains = [(Chain::Forward, forwards), (Chain::Backward, backwards)];
            chains.into_iter().filter(move |&(_, length)| place < length).map(|(chain, _)| chain)
        };
        (0..forwards.max(backwards)).flat_map(turn).collect()
    }

    /// Run time of all operators one after another, ns.
    pub fn serial_ns(&self) -> u64 {
        self.chains.iter().flatten().map(|op| op.ns).sum()
    }
}

/// The window of `layers` MoE layers at a load in thousandths of the balanced rows, the same for all four
/// micro-batches. Saved tensors are taken by falling size, offloaded and recomputed in turn (offloaded
/// where recomputing takes more than one operator or a collective), until half of the bytes are left.
///
/// `None` where the model has no MoE layer or a number does not fit.
pub fn of_model(model: &Model, layers: usize, load_permille: u32) -> Option<Window> {
    let kind = model.types.iter().find(|kind| kind.routed)?;
    let rows = model.rows_at(load_permille);
    let mut storage = LayerStorage::new();
    let layer = kind.model().at(rows, &model.device.rooflines(), &mut storage).ok()?;
    let (offload, recompute) = halve(kind, &layer);

    let mut chains: [Vec<Op>; 4] = Default::default();
    for (place, op) in kind.ops.iter().enumerate() {
        let made = layer.bytes(op.makes & layer.saved());
        let work = op.forward_work.at(rows)?;
        let (resource, ns) = (op.resource, op.forward.at(rows)?);
        chains[0].push(Op { resource, ns, alloc_bytes: made + work, free_bytes: work });

        // Backward runs from the end: a tensor's first consumer is the last to need it.
        let earlier = kind.ops[..place].iter().fold(Set::EMPTY, |set, op| set | op.saves);
        let done = layer.bytes((op.saves & layer.saved()) - earlier);
        let work = op.backward_work.at(rows)?;
        let ns = op.backward.at(rows)?;
        chains[1].insert(0, Op { resource, ns, alloc_bytes: work, free_bytes: work + done });
    }
    for tensor in offload.iter() {
        let CopyTimes { out_ns, in_ns } = layer.tensors()[tensor].copy?;
        let bytes = layer.tensors()[tensor].bytes;
        chains[2].push(Op { resource: Resource::CopyOut, ns: out_ns, alloc_bytes: 0, free_bytes: bytes });
        chains[3].insert(0, Op { resource: Resource::CopyIn, ns: in_ns, alloc_bytes: bytes, free_bytes: 0 });
    }
    for tensor in recompute.iter() {
        let op = layer.ops()[layer.producer(tensor)?];
        let bytes = layer.tensors()[tensor].bytes;
        chains[3].push(Op {
            resource: Resource::Compute,
            ns: op.forward_ns,
            alloc_bytes: bytes,
            free_bytes: 0,
        });
    }
    Some(Window::new(chains.map(|ops| ops.repeat(layers))))
}

/// (offloaded, recomputed) tensors.
fn halve(kind: &LayerType, layer: &Layer<'_>) -> (Set, Set) {
    let mut saved: Vec<usize> = layer.saved().iter().collect();
    saved.sort_by_key(|&tensor| std::cmp::Reverse(layer.tensors()[tensor].bytes));
    let (mut offload, mut recompute) = (Set::EMPTY, Set::EMPTY);
    let mut offload_next = true;
    for tensor in saved {
        let dropped = layer.bytes(offload | recompute);
        if 2 * dropped >= layer.bytes(layer.saved()) {
            break;
        }
        let here = (layer.saved() | layer.block_inputs()) - recompute;
        let local = layer.producer(tensor).is_some_and(|op| {
            kind.ops[op].resource == Resource::Compute
                && kind.ops[op].collective.is_none()
                && kind.ops[op].reads.is_subset(here)
        });
        match (offload_next || !local, layer.tensors()[tensor].copy) {
            (true, Some(_)) => offload.insert(tensor),
            _ if local => recompute.insert(tensor),
            _ => continue,
        }
        offload_next = recompute.contains(tensor);
    }
    (offload, recompute)
}

/// SplitMix64: the same instances everywhere.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// At least `low` and at most `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        low + (z ^ (z >> 31)) % (high - low + 1)
    }
}

/// Stages of the given numbers: computation and communication in turn in F and B, copies in O, copies and
/// recomputation in R. Times in the range of an MoE layer's.
pub fn stages(random: &mut Random, lengths: [usize; 4]) -> Window {
    let mut op = |resource, ns: (u64, u64), alloc: (u64, u64), free: (u64, u64)| Op {
        resource,
        ns: random.between(ns.0, ns.1),
        alloc_bytes: random.between(alloc.0, alloc.1),
        free_bytes: random.between(free.0, free.1),
    };
    let exchange = (200_000, 900_000);
    let forward = |place| match place % 2 {
        0 => op(Resource::Compute, (300_000, 900_000), (20, 60), (0, 10)),
        _ => op(Resource::Communication, exchange, (0, 20), (0, 10)),
    };
    let forward = (0..lengths[0]).map(forward).collect();
    let backward = |place| match place % 2 {
        0 => op(Resource::Communication, exchange, (0, 20), (0, 20)),
        _ => op(Resource::Compute, (600_000, 1_800_000), (0, 20), (20, 80)),
    };
    let backward = (0..lengths[1]).map(backward).collect();
    let offload =
        (0..lengths[2]).map(|_| op(Resource::CopyOut, (100_000, 900_000), (0, 0), (10, 50))).collect();
    let recover = |place| match place % 3 {
        1 => op(Resource::Compute, (50_000, 400_000), (10, 50), (0, 0)),
        _ => op(Resource::CopyIn, (100_000, 900_000), (10, 50), (0, 0)),
    };
    Window::new([forward, backward, offload, (0..lengths[3]).map(recover).collect()])
}

/// Operators with everything at random: a job shop of four jobs on four machines.
pub fn job_shop(random: &mut Random, lengths: [usize; 4]) -> Window {
    const RESOURCES: [Resource; 4] =
        [Resource::Compute, Resource::Communication, Resource::CopyOut, Resource::CopyIn];
    let chains = lengths.map(|length| {
        (0..length)
            .map(|_| Op {
                resource: RESOURCES[random.between(0, 3) as usize],
                ns: random.between(1, 1_000),
                alloc_bytes: random.between(0, 40),
                free_bytes: random.between(0, 40),
            })
            .collect()
    });
    Window::new(chains)
}
