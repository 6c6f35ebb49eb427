//! Algorithm 2 on a stage of four MoE layers at loads from 1 to 2.6.
//!
//! Each measurement walks through 80 instances (4 draws of loads × 20 limits between the fewest bytes and
//! all), so its time is the mean of a selection.

use std::hint::black_box;

use bagualu_benches::selection::{Stage, loads};
use bagualu_core::layer::{Collectives, LayerPlan};
use bagualu_core::mitigate::{
    ChooseScratch, Class, Config, Exact, ExactStorage, FrontPoint, FrontScratch, Limits, PaperGreedy,
    RatioGreedy, Selector, choose, front,
};
use bagualu_core::plan_cache::{CacheSlot, PlanCache};
use criterion::{Criterion, criterion_group, criterion_main};

const MODELS: [(&str, &str); 3] =
    [("glm-423b-a30b", "dcu-64g"), ("mixtral-8x7b", "h100-80g"), ("qwen3-30b-a3b", "h100-80g")];

/// Limits of an instance, in thousandths of the way from the fewest bytes to all.
fn limits() -> impl Iterator<Item = u64> {
    (0..20).map(|step| 25 + 50 * step)
}

fn fronts(stage: &Stage, scratch: &mut FrontScratch) -> Vec<Vec<FrontPoint>> {
    let layers = stage.borrow();
    let one = |layer| {
        let mut points = vec![FrontPoint::default(); 1024];
        let len = front(layer, Collectives::NONE, scratch, &mut points).expect("a front");
        points.truncate(len);
        points
    };
    layers.iter().map(one).collect()
}

/// Measures `selector` over all instances of a model.
fn walk(c: &mut Criterion, name: &str, stages: &[Stage], selector: &mut impl Selector) {
    let layers: Vec<_> = stages.iter().map(Stage::borrow).collect();
    let pairs = stages.iter().zip(&layers);
    let instances: Vec<_> =
        pairs.flat_map(|(s, l)| limits().map(move |permille| (s, l, s.limit(permille)))).collect();
    let mut plans = vec![LayerPlan::KEEP; 4];
    let mut turn = instances.iter().cycle();
    c.bench_function(name, |b| {
        b.iter(|| {
            let &(stage, layers, bytes) = turn.next().expect("an instance");
            black_box(stage.problem(layers, bytes, |problem| selector.select(problem, &mut plans)).ok())
        });
    });
}

fn selectors(c: &mut Criterion) {
    let mut storage = Box::new(ExactStorage::new());
    for (model, device) in MODELS {
        let stages: Vec<_> = (0..4).map(|seed| Stage::new(model, device, &loads(seed, 4))).collect();
        walk(
            c,
            &format!("select/exact cold/{model}"),
            &stages,
            &mut Exact::new(&mut storage, Config::default()),
        );
        walk(c, &format!("select/ratio/{model}"), &stages, &mut RatioGreedy);
        walk(c, &format!("select/paper/{model}"), &stages, &mut PaperGreedy);
    }
}

fn halves(c: &mut Criterion) {
    let mut scratch = Box::new(FrontScratch::new());
    let mut choice = Box::new(ChooseScratch::new());
    for (model, device) in MODELS {
        let stages: Vec<_> = (0..4).map(|seed| Stage::new(model, device, &loads(seed, 4))).collect();
        let all: Vec<_> = stages.iter().map(|stage| fronts(stage, &mut scratch)).collect();
        let pairs = stages.iter().zip(&all);
        let instances: Vec<_> =
            pairs.flat_map(|(s, f)| limits().map(move |permille| (f, s.limit(permille)))).collect();
        let (mut picks, mut turn) = ([0; 4], instances.iter().cycle());
        c.bench_function(&format!("select/exact warm/{model}"), |b| {
            b.iter(|| {
                let &(fronts, bytes) = turn.next().expect("an instance");
                let class = |points| Class { points, least_bytes: 0 };
                let classes = [class(&fronts[0]), class(&fronts[1]), class(&fronts[2]), class(&fronts[3])];
                let limits = Limits { bytes, host_bytes: u64::MAX };
                black_box(choose(&classes, limits, &Config::default(), &mut choice, &mut picks).ok())
            });
        });
        let layers = stages[0].borrow();
        let mut points = vec![FrontPoint::default(); 1024];
        c.bench_function(&format!("select/front of a layer/{model}"), |b| {
            b.iter(|| front(black_box(&layers[0]), Collectives::NONE, &mut scratch, &mut points));
        });
    }
}

fn cache(c: &mut Criterion) {
    let mut slots = vec![CacheSlot::default(); 4096];
    let mut cache: PlanCache<'_, (u64, u64, u32), [LayerPlan; 4]> = PlanCache::new(&mut slots);
    let keys: Vec<_> = (0..1_000u32).map(|n| (u64::from(n) << 20, u64::MAX, n * 64)).collect();
    for &key in &keys {
        cache.store(key, [LayerPlan::KEEP; 4]);
    }
    let known: Vec<_> = keys.iter().copied().filter(|key| cache.find(key).is_some()).collect();
    let mut turn = known.iter().cycle();
    c.bench_function("select/cache hit", |b| {
        b.iter(|| black_box(cache.find(turn.next().expect("a key"))).is_some());
    });
}

criterion_group!(benches, selectors, halves, cache);
criterion_main!(benches);
