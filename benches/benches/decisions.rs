//! What a rank decides in one iteration: budget steps, cache look-ups, and the controller as a whole.
//!
//! `cargo bench -p bagualu-benches --bench decisions`

use std::hint::black_box;
use std::time::{Duration, Instant};

use bagualu_core::budget::{Budget, Share, Unit};
use bagualu_core::controller::{Controller, Gate, Settings};
use bagualu_core::cost::LayerModel;
use bagualu_core::group::{GroupRows, RowThreshold};
use bagualu_core::layer::LayerPlan;
use bagualu_core::ledger::Admission;
use bagualu_core::limits::MAX_LAYERS;
use bagualu_core::plan_cache::{CacheSlot, PlanCache, SelectionKey};
use bagualu_core::provision::{Aim, Provision};
use bagualu_core::schedule::{Event, Pipeline};
use bagualu_core::stage::{Recompute, StageModel};
use bagualu_model::{Buffers, Device, Model, Preset};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const LAYERS: usize = 8;
const MICRO_BATCHES: u32 = 64;

fn schedule(pipeline: Pipeline) -> Vec<Event> {
    let mut events = vec![Event::Forward(0); 2 * pipeline.units().expect("few") as usize];
    pipeline.events(&mut events).expect("a schedule");
    events
}

fn budget(c: &mut Criterion) {
    let mut group = c.benchmark_group("budget");
    for in_flight in [8, 40, 512] {
        let events = schedule(Pipeline::new(in_flight, 0, 2 * in_flight));
        let mut units = vec![Unit::new(10); 2 * in_flight as usize];
        let capacity = 40 * u64::from(in_flight);
        let mut budget = Budget::new(capacity, Share::Even, &events, &mut units).expect("feasible");
        group.throughput(Throughput::Elements(2 * u64::from(in_flight)));
        group.bench_function(BenchmarkId::new("iteration, per forward in flight", in_flight), |b| {
            b.iter(|| {
                budget.restart();
                for event in &events {
                    if let Event::Forward(_) = event {
                        let allowance = budget.forward().expect("in order");
                        budget.launch(black_box(allowance.quota)).expect("in order");
                    } else {
                        budget.release().expect("in order");
                    }
                }
            });
        });
    }
}

fn cache(c: &mut Criterion) {
    let key = |n: u64| SelectionKey {
        chunk: 0,
        first: (n % 8) as u16,
        gated: true,
        rows: 12_288,
        recompute: Recompute::Local,
        bytes: n << 20,
        host_bytes: 1 << 40,
    };
    let mut storage = vec![CacheSlot::default(); 1_024];
    let mut cache = PlanCache::new(&mut storage);
    for n in 0..512 {
        cache.store(key(n), [LayerPlan::KEEP; MAX_LAYERS]);
    }
    let mut n = 0;
    c.bench_function("cache/hit", |b| {
        b.iter(|| {
            n = (n + 97) % 512;
            black_box(cache.find(&key(n)).is_some())
        });
    });
}

/// A stage of eight MoE layers of GLM-423B on the first of eight ranks, with room for two thirds of what
/// balanced loads would hold.
struct Rank {
    model: Model,
    kinds: Vec<u16>,
    pipeline: Pipeline,
    events: Vec<Event>,
    /// Rows of each micro-batch and layer: below 1.2×, a spike of up to 2.6× in 2.9 % of them.
    rows: Vec<[u32; LAYERS]>,
}

impl Rank {
    fn new() -> Self {
        let preset = Preset::named("glm-423b-a30b", None).expect("a preset");
        let device = Device::named("dcu-64g").expect("a device");
        let model = Model::new(&preset.config, &preset.parallelism, &device).expect("a model");
        let moe = model.types.iter().position(|t| t.routed).expect("a MoE layer") as u16;
        let pipeline = Pipeline::new(8, 0, MICRO_BATCHES);
        let mut x = 1u64;
        let mut below = |n: u64| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 33) % n
        };
        let mut load = || match below(1_000) {
            0..29 => 1_200 + below(1_400),
            _ => 800 + below(400),
        };
        let rows = (0..MICRO_BATCHES).map(|_| [0; LAYERS].map(|_| model.rows_at(load() as u32))).collect();
        Self { kinds: vec![moe; LAYERS], pipeline, events: schedule(pipeline), rows, model }
    }

    /// All calls of one iteration; copies end as soon as somebody waits for them.
    fn iterate(&self, controller: &mut Controller<'_>, rule: RowThreshold) {
        for event in &self.events {
            match *event {
                Event::Forward(unit) => {
                    controller.handle_forward(unit).expect("in order");
                    for layer in 0..LAYERS {
                        let rows = self.rows[unit as usize][layer];
                        let group = rule.decide(&GroupRows::new(&[rows]).expect("a group"));
                        let gate = Gate { rows, group, granted: None };
                        black_box(controller.handle_layer(layer, gate).expect("in order"));
                        wait(controller, |c| c.poll_layer().expect("it fits"));
                        controller.handle_layer_done().expect("in order");
                    }
                    controller.handle_forward_done(None).expect("in order");
                }
                Event::Backward(unit) => {
                    controller.handle_backward(unit).expect("in order");
                    for layer in (0..LAYERS).rev() {
                        wait(controller, |c| c.poll_recovery(layer).expect("it fits"));
                        controller.handle_recovery_done().expect("in order");
                    }
                    controller.handle_backward_done().expect("in order");
                }
            }
        }
    }
}

fn wait(controller: &mut Controller<'_>, mut poll: impl FnMut(&mut Controller<'_>) -> Admission) {
    while let Admission::Wait { .. } = poll(controller) {
        for unit in 0..MICRO_BATCHES {
            let pending = controller.ledger().pending_of(unit);
            if pending > 0 {
                controller.handle_copied_out(unit, pending).expect("pending");
            }
        }
    }
}

fn iteration(c: &mut Criterion) {
    let rank = Rank::new();
    let types: Vec<LayerModel<'_>> = rank.model.types.iter().map(|t| t.model()).collect();
    let chunks = [&rank.kinds[..]];
    let mut stage = StageModel {
        types: &types,
        chunks: &chunks,
        rooflines: rank.model.device.rooflines(),
        balanced_rows: rank.model.balanced_rows,
        device_bytes: 0,
        host_bytes: rank.model.device.host_bytes,
        fused: false,
    };
    let mut buffers = Buffers::new(&stage, rank.events.len() / 2);
    let (units, layer) = buffers.scratch();
    let full = stage.full(0, stage.balanced_rows, layer).expect("a stage");
    let work = stage.work(rank.model.rows_at(2_600), layer).expect("a stage");
    stage.device_bytes = 8 * full * 2 / 3 + work;
    let provision = Provision::solve(&stage, &rank.pipeline, &rank.events, Aim::default(), units, layer)
        .expect("feasible");
    let rule = RowThreshold::new(&provision);
    let mut group = c.benchmark_group("iteration of 64 micro-batches of 8 layers");
    group.bench_function("cold", |b| {
        b.iter_custom(|times| {
            let mut spent = Duration::ZERO;
            for _ in 0..times {
                let mut controller = rank.controller(stage, provision, &mut buffers);
                let start = Instant::now();
                rank.iterate(&mut controller, rule);
                spent += start.elapsed();
            }
            spent
        });
    });
    let mut controller = rank.controller(stage, provision, &mut buffers);
    rank.iterate(&mut controller, rule);
    group.bench_function("warm", |b| {
        b.iter(|| {
            controller.restart().expect("the last iteration ended");
            rank.iterate(&mut controller, rule);
        });
    });
    let plans = controller.plan_statistics();
    println!("plans known: {} of {}", plans.hits, plans.hits + plans.misses);
}

impl Rank {
    fn controller<'a>(
        &'a self,
        stage: StageModel<'a>,
        provision: Provision,
        buffers: &'a mut Buffers,
    ) -> Controller<'a> {
        let settings = Settings::default();
        Controller::new(stage, self.pipeline, &self.events, provision, settings, buffers.storage())
            .expect("provisioned, so it can be controlled")
    }
}

criterion_group!(benches, budget, cache, iteration);
criterion_main!(benches);
