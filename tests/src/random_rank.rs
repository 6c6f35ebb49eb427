//! Random pipeline ranks: layer types with random bytes, a schedule, a device. Seeded, the same everywhere.

use bagualu_core::controller::{Controller, Settings};
use bagualu_core::cost::{Bytes, LayerModel, OpModel, Rooflines, TensorModel, Time};
use bagualu_core::layer::{Group, Resource};
use bagualu_core::provision::{Aim, Provision, ProvisionError};
use bagualu_core::roofline::Knee;
use bagualu_core::schedule::{Event, Pipeline};
use bagualu_core::set::Set;
use bagualu_core::stage::StageModel;
use bagualu_model::{Buffers, Memory};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

const KNEE: Knee = Knee { size_bytes: 10, bytes_per_s: 1_000_000_000 };

/// A seeded source of numbers.
#[derive(Debug)]
pub struct Random(ChaCha8Rng);

impl Random {
    /// The source of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0.next_u64() % n
    }

    /// A number below 2^e, for a random e in `from..to`.
    pub fn magnitude(&mut self, from: u64, to: u64) -> u64 {
        let exponent = from + self.below(to - from);
        self.below(1 << exponent)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// An owned layer type.
#[derive(Clone, Debug)]
pub struct LayerKind {
    /// Its tensors.
    pub tensors: Vec<TensorModel>,
    /// Its operators.
    pub ops: Vec<OpModel>,
    /// Tensors that exist because of routed rows.
    pub moe: Set,
    /// The experts' operators.
    pub experts: Set,
    /// Whether a router gives its rows.
    pub routed: bool,
}

impl LayerKind {
    /// The type as the core takes it.
    pub fn model(&self) -> LayerModel<'_> {
        LayerModel {
            tensors: &self.tensors,
            ops: &self.ops,
            moe: self.moe,
            experts: self.experts,
            routed: self.routed,
        }
    }

    /// Tensors that some operator saves.
    pub fn saved(&self) -> Set {
        self.ops.iter().fold(Set::EMPTY, |set, op| set | op.saves)
    }
}

fn op(reads: Set, makes: Set, saves: Set, collective: Option<Group>, random: &mut Random) -> OpModel {
    let time = |r: &mut Random| Time { fixed_ns: 1 + r.below(50), per_row_ps: r.below(2_000) };
    let work = |r: &mut Random| Bytes { fixed: r.below(40), per_row: r.below(4) };
    OpModel {
        reads,
        makes,
        saves,
        forward: time(random),
        backward: time(random),
        resource: Resource::Compute,
        collective,
        forward_work: work(random),
        backward_work: work(random),
    }
}

/// norm → attention (some behind a Tp collective) → dispatch (Ep) → fc1 → act → fc2, with random bytes.
fn moe_layer(random: &mut Random) -> LayerKind {
    let one = Set::one;
    let dense = |r: &mut Random| TensorModel {
        bytes: Bytes::fixed(1 + r.below(200)),
        offload: !r.one_in(4),
        quantized: r.one_in(2).then(|| Bytes::fixed(1 + r.below(150))),
        ..Default::default()
    };
    let routed = |r: &mut Random| TensorModel {
        bytes: Bytes::per_row(1 + r.below(6)),
        offload: !r.one_in(4),
        quantized: r.one_in(2).then(|| Bytes::per_row(1 + r.below(4))),
        ..Default::default()
    };
    let input =
        TensorModel { bytes: Bytes::fixed(1 + random.below(100)), block_input: true, ..Default::default() };
    let tensors = vec![
        input,
        dense(random),
        dense(random),
        routed(random),
        routed(random),
        routed(random),
        routed(random),
    ];
    let tp = random.one_in(3).then_some(Group::Tp);
    let ops = vec![
        op(one(0), one(1), Set::EMPTY, None, random),
        op(one(1), one(2), one(1), tp, random),
        op(one(2), one(3), one(2), Some(Group::Ep), random),
        op(one(3), one(4), one(3), None, random),
        op(one(4), one(5), one(4), None, random),
        op(one(5), one(6), one(5), None, random),
        op(one(6), Set::EMPTY, if random.one_in(2) { one(6) } else { Set::EMPTY }, Some(Group::Ep), random),
    ];
    let experts = [3usize, 4, 5].into_iter().collect();
    LayerKind { tensors, ops, moe: [3usize, 4, 5, 6].into_iter().collect(), experts, routed: true }
}

fn dense_layer(random: &mut Random) -> LayerKind {
    let mut layer = moe_layer(random);
    layer.tensors.truncate(3);
    layer.ops.truncate(2);
    layer.ops.push(op(Set::one(2), Set::EMPTY, Set::one(2), None, random));
    LayerKind { moe: Set::EMPTY, experts: Set::EMPTY, routed: false, ..layer }
}

/// One random pipeline rank.
#[derive(Clone, Debug)]
pub struct RandomRank {
    /// Its layer types: one with experts, one without.
    pub kinds: Vec<LayerKind>,
    /// The type of each layer of each chunk.
    pub chunks: Vec<Vec<u16>>,
    /// Its place.
    pub pipeline: Pipeline,
    /// Its schedule.
    pub events: Vec<Event>,
    /// N when balanced.
    pub balanced_rows: u32,
    /// D.
    pub device_bytes: u64,
    /// The host pool.
    pub host_bytes: u64,
    /// Whether forwards and backwards run together.
    pub fused: bool,
}

impl RandomRank {
    /// The next rank of `random`.
    pub fn new(random: &mut Random) -> Self {
        let kinds = vec![moe_layer(random), dense_layer(random)];
        let v = 1 + random.below(2) as u32;
        let layers = |r: &mut Random| (0..1 + r.below(3)).map(|_| u16::from(r.one_in(4))).collect();
        let chunks: Vec<Vec<u16>> = (0..v).map(|_| layers(random)).collect();
        let ranks = 1 + random.below(4) as u32;
        let (rank, groups) = (random.below(ranks.into()) as u32, 1 + random.below(4) as u32);
        let pipeline = Pipeline::new(ranks, rank, ranks * groups).interleaved(v);
        let mut events = vec![Event::Forward(0); 2 * pipeline.units().expect("few") as usize];
        pipeline.events(&mut events).expect("a multiple of the ranks");
        Self {
            kinds,
            chunks,
            pipeline,
            events,
            balanced_rows: 1 + random.below(40) as u32,
            device_bytes: 200 + random.magnitude(8, 15),
            host_bytes: random.magnitude(0, 16),
            fused: random.one_in(2),
        }
    }

    /// The layer types as the core takes them.
    pub fn types(&self) -> Vec<LayerModel<'_>> {
        self.kinds.iter().map(LayerKind::model).collect()
    }

    /// The chunks as the core takes them.
    pub fn slices(&self) -> Vec<&[u16]> {
        self.chunks.iter().map(Vec::as_slice).collect()
    }

    /// The stage, from [`types`](Self::types) and [`slices`](Self::slices).
    pub fn stage<'a>(&self, types: &'a [LayerModel<'a>], chunks: &'a [&'a [u16]]) -> StageModel<'a> {
        StageModel {
            types,
            chunks,
            rooflines: Rooflines { copy_out: KNEE, copy_in: KNEE, cast: KNEE, uncast: KNEE },
            balanced_rows: self.balanced_rows,
            device_bytes: self.device_bytes,
            host_bytes: self.host_bytes,
            fused: self.fused,
        }
    }
}

/// Buffers that are soon made: thousands of ranks are tried.
pub fn buffers(stage: &StageModel<'_>, rank: &RandomRank) -> Buffers {
    Buffers::remembering(stage, rank.events.len() / 2, Memory { fronts: 16, points: 256, plans: 64 })
}

/// The rank's static decisions.
pub fn provision(
    buffers: &mut Buffers,
    stage: &StageModel<'_>,
    rank: &RandomRank,
) -> Result<Provision, ProvisionError> {
    let (units, layer) = buffers.scratch();
    Provision::solve(stage, &rank.pipeline, &rank.events, Aim::default(), units, layer)
}

/// A controller of the rank.
pub fn controller<'a>(
    buffers: &'a mut Buffers,
    stage: StageModel<'a>,
    rank: &'a RandomRank,
    provision: Provision,
) -> Controller<'a> {
    let settings = Settings::default();
    Controller::new(stage, rank.pipeline, &rank.events, provision, settings, buffers.storage())
        .expect("provisioned, so it can be controlled")
}
