//! Algorithm 2 against exhaustive search.

mod conflicts;
mod instances;
mod milp;

use bagualu_core::layer::{Collectives, Group, Layer, LayerPlan};
use bagualu_core::mitigate::{
    ChooseScratch, Class, Config, Exact, ExactStorage, FrontPoint, FrontScratch, Limits, MitigateError,
    PaperGreedy, Problem, RatioGreedy, Selection, Selector, choose, evaluate, front,
};
use instances::{Dice, Parts, naive, plans, random};

struct Instance {
    layers: Vec<Parts>,
    limits: Limits,
    allow: Collectives,
    /// (bytes, host bytes, added ns) of every allowed configuration of all layers.
    all: Vec<(u64, u64, u64)>,
}

fn instance(seed: u64) -> Instance {
    let mut dice = Dice::new(seed);
    let most = [4, 12, 1_000_000_000][dice.below(3) as usize];
    let allow =
        [Collectives::NONE, Collectives::NONE.with(Group::Ep), Collectives::ALL][dice.below(3) as usize];
    let layers: Vec<Parts> = match dice.below(3) {
        0 => vec![random(&mut dice, 6, most)],
        1 => (0..2).map(|_| random(&mut dice, 3, most)).collect(),
        _ => (0..3).map(|_| random(&mut dice, 2, most)).collect(),
    };
    let mut all = vec![(0, 0, 0)];
    for layer in &layers {
        let own: Vec<_> = plans(layer).iter().filter_map(|plan| naive(layer, plan, allow)).collect();
        let join = |a: &(u64, u64, u64)| {
            let a = *a;
            own.iter().map(move |b| (a.0 + b.0, a.1 + b.1, a.2 + b.2)).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(join).collect();
    }
    let full = all.iter().map(|c| c.0).max().unwrap_or(0);
    let host = all.iter().map(|c| c.1).max().unwrap_or(0);
    let limits = Limits {
        bytes: dice.below(full + 2),
        host_bytes: if dice.chance(40) { u64::MAX } else { dice.below(host / 4 + 1) },
    };
    Instance { layers, limits, allow, all }
}

impl Instance {
    fn best(&self) -> Option<(u64, u64)> {
        let fits = |c: &&(u64, u64, u64)| c.0 <= self.limits.bytes && c.1 <= self.limits.host_bytes;
        self.all.iter().filter(fits).map(|c| (c.2, c.0)).min()
    }

    fn with<T>(&self, run: impl FnOnce(&Problem<'_>) -> T) -> T {
        let layers: Vec<Layer<'_>> =
            self.layers.iter().map(|l| Layer::new(&l.tensors, &l.ops).expect("a layer")).collect();
        run(&Problem { layers: &layers, limits: self.limits, allow: self.allow })
    }

    /// The plans are allowed, within the limits, and hold and cost what the selection says.
    fn check(&self, selection: &Selection, plans: &[LayerPlan], seed: u64) {
        let parts = self.layers.iter().zip(plans);
        let sums = parts.map(|(layer, plan)| naive(layer, plan, self.allow).expect("an allowed plan"));
        let sum = sums.fold((0, 0, 0), |a, b| (a.0 + b.0, a.1 + b.1, a.2 + b.2));
        assert_eq!(sum, (selection.bytes, selection.host_bytes, selection.added_ns), "seed {seed}");
        assert!(sum.0 <= self.limits.bytes && sum.1 <= self.limits.host_bytes, "seed {seed}");
    }
}

#[test]
fn exact_equals_exhaustive_search() {
    let mut storage = Box::new(ExactStorage::new());
    let (mut feasible, mut host_bound) = (0, 0);
    for seed in 0..6_000 {
        let instance = instance(seed);
        let mut plans = vec![LayerPlan::KEEP; instance.layers.len()];
        let found =
            instance.with(|problem| Exact::new(&mut storage, Config::default()).select(problem, &mut plans));
        let least = instance.all.iter().map(|c| c.0).min().expect("keeping everything is allowed");
        match (found, instance.best()) {
            (Ok(found), Some(best)) => {
                instance.check(&found, &plans, seed);
                assert_eq!((found.added_ns, found.bytes), best, "seed {seed}");
                assert!(found.optimal && found.gap_ns == 0, "seed {seed}");
                feasible += 1;
                let free = instance.all.iter().filter(|c| c.0 <= instance.limits.bytes).map(|c| c.2).min();
                host_bound += u32::from(free != Some(best.0));
            }
            (Err(MitigateError::Infeasible { least: told, limit }), None) => {
                assert_eq!((told, limit), (least, instance.limits.bytes), "seed {seed}");
                assert!(least > limit);
            }
            (Err(MitigateError::HostInfeasible { least: told, limit }), None) => {
                let within = instance.all.iter().filter(|c| c.0 <= instance.limits.bytes);
                assert_eq!(Some(told), within.map(|c| c.1).min(), "seed {seed}");
                assert_eq!(limit, instance.limits.host_bytes);
            }
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    assert!(feasible > 3_000 && host_bound > 200, "{feasible} feasible, host bound in {host_bound}");
}

#[test]
fn greedy_selections_are_valid_and_no_better_than_the_optimum() {
    let (mut found, mut worse) = ([0; 2], [0; 2]);
    for seed in 0..6_000 {
        let instance = instance(seed);
        let mut plans = vec![LayerPlan::KEEP; instance.layers.len()];
        for rule in 0..2 {
            let result = instance.with(|problem| match rule {
                0 => PaperGreedy.select(problem, &mut plans),
                _ => RatioGreedy.select(problem, &mut plans),
            });
            match (result, instance.best()) {
                (Ok(selection), Some(best)) => {
                    instance.check(&selection, &plans, seed);
                    assert!(selection.added_ns >= best.0 && selection.added_ns - selection.gap_ns <= best.0);
                    found[rule] += 1;
                    worse[rule] += u32::from(selection.added_ns > best.0);
                }
                (Err(MitigateError::OutOfCandidates { reached, limit }), _) => assert!(reached > limit),
                (Err(MitigateError::Infeasible { least, limit }), None) => {
                    assert_eq!(Some(least), instance.all.iter().map(|c| c.0).min(), "seed {seed}");
                    assert!(least > limit);
                }
                other => panic!("seed {seed}, rule {rule}: {other:?}"),
            }
        }
    }
    assert!(found[0] > 1_000 && found[1] > 3_000, "answers: {found:?}");
    // A greedy rule that is never worse than the optimum would be a second exact search by mistake.
    assert!(worse[0] > 100 && worse[1] > 50, "worse than the optimum: {worse:?}");
}

#[test]
fn evaluation_equals_the_words_of_the_format() {
    let (mut allowed, mut refused) = (0u64, 0u64);
    for seed in 0..2_000 {
        let instance = instance(seed);
        for parts in &instance.layers {
            let layer = Layer::new(&parts.tensors, &parts.ops).expect("a layer");
            for plan in plans(parts) {
                let own = evaluate(&layer, &plan, instance.allow);
                let expected = naive(parts, &plan, instance.allow);
                assert_eq!(own.ok().map(|p| (p.bytes, p.host_bytes, p.added_ns)), expected, "seed {seed}");
                *if expected.is_some() { &mut allowed } else { &mut refused } += 1;
            }
        }
    }
    assert!(allowed > 50_000 && refused > 50_000, "{allowed} allowed, {refused} refused");
}

#[test]
fn fronts_are_complete_and_minimal() {
    let mut scratch = Box::new(FrontScratch::new());
    let mut points = vec![FrontPoint::default(); 2048];
    for seed in 0..3_000 {
        let instance = instance(seed);
        for parts in &instance.layers {
            let layer = Layer::new(&parts.tensors, &parts.ops).expect("a layer");
            let len = front(&layer, instance.allow, &mut scratch, &mut points).expect("a front");
            let mut all: Vec<_> =
                plans(parts).iter().filter_map(|plan| naive(parts, plan, instance.allow)).collect();
            all.sort_unstable_by_key(|c| (c.0, c.2));
            let mut expected: Vec<(u64, u64)> = Vec::new();
            for (bytes, _, ns) in all {
                if expected.last().is_none_or(|last| ns < last.1) {
                    expected.push((bytes, ns));
                }
            }
            let own: Vec<_> = points[..len].iter().map(|p| (p.bytes, p.added_ns)).collect();
            assert_eq!(own, expected, "seed {seed}");
            for point in &points[..len] {
                let told = (point.bytes, point.host_bytes, point.added_ns);
                assert_eq!(naive(parts, &point.plan, instance.allow), Some(told), "seed {seed}");
                assert_eq!(point.slack_ns, 0);
            }
        }
    }
}

#[test]
fn a_thinned_front_states_what_it_lost() {
    let mut scratch = Box::new(FrontScratch::new());
    let (mut exact, mut thin) = (vec![FrontPoint::default(); 2048], vec![FrontPoint::default(); 2048]);
    let mut thinned = 0;
    for seed in 0..2_000 {
        let mut dice = Dice::new(seed);
        let parts = random(&mut dice, 8, 1_000_000);
        let layer = Layer::new(&parts.tensors, &parts.ops).expect("a layer");
        let len = front(&layer, Collectives::ALL, &mut scratch, &mut exact).expect("a front");
        let room = 1 + dice.below(len as u64) as usize;
        let few = front(&layer, Collectives::ALL, &mut scratch, &mut thin[..room]).expect("a front");
        assert!(few <= room);
        for point in &exact[..len] {
            // Whatever was left out, a point of no more bytes is slower by at most its slack.
            let near = thin[..few].iter().filter(|p| p.bytes <= point.bytes).map(|p| p.added_ns - p.slack_ns);
            assert!(near.min().is_some_and(|ns| ns <= point.added_ns), "seed {seed}");
        }
        thinned += u32::from(few < len);
    }
    assert!(thinned > 1_000);
}

#[test]
fn choosing_from_fronts_equals_exhaustive_search() {
    let mut scratch = Box::new(FrontScratch::new());
    let mut choice = Box::new(ChooseScratch::new());
    let mut met = 0;
    for seed in 0..6_000 {
        let instance = instance(seed);
        let mut dice = Dice::new(seed ^ 0x5eed);
        let fronts: Vec<Vec<FrontPoint>> = instance.with(|problem| {
            let mut all = Vec::new();
            for layer in problem.layers {
                let mut points = vec![FrontPoint::default(); 2048];
                let len = front(layer, problem.allow, &mut scratch, &mut points).expect("a front");
                points.truncate(len);
                all.push(points);
            }
            all
        });
        let least = |points: &Vec<FrontPoint>, dice: &mut Dice| {
            let most = points.last().expect("a point").bytes;
            if dice.chance(50) { 0 } else { dice.below(most + 1) }
        };
        let classes: Vec<Class<'_>> =
            fronts.iter().map(|p| Class { points: p, least_bytes: least(p, &mut dice) }).collect();
        let mut all = vec![(0, 0)];
        for class in &classes {
            let join = |a: &(u64, u64)| {
                let a = *a;
                let own = class.points.iter();
                own.map(move |p| (a.0 + p.added_ns, a.1 + p.bytes.max(class.least_bytes))).collect::<Vec<_>>()
            };
            all = all.iter().flat_map(join).collect();
        }
        let best = all.iter().filter(|c| c.1 <= instance.limits.bytes).min();
        let limits = Limits { host_bytes: u64::MAX, ..instance.limits };
        let mut picks = vec![0; classes.len()];
        match choose(&classes, limits, &Config::default(), &mut choice, &mut picks) {
            Ok(found) => {
                assert_eq!(Some(&(found.added_ns, found.bytes)), best, "seed {seed}");
                assert!(found.optimal);
                let ns = classes.iter().zip(&picks).map(|(c, &pick)| c.points[pick as usize].added_ns);
                assert_eq!(ns.sum::<u64>(), found.added_ns, "seed {seed}");
                met += 1;
            }
            Err(MitigateError::Infeasible { least, .. }) => {
                assert_eq!(best, None, "seed {seed}");
                assert_eq!(Some(least), all.iter().map(|c| c.1).min(), "seed {seed}");
            }
            Err(other) => panic!("seed {seed}: {other}"),
        }
    }
    assert!(met > 3_000, "{met}");
}

#[test]
fn a_search_cut_short_states_a_gap_that_holds() {
    let mut storage = Box::new(ExactStorage::new());
    let mut cut = 0;
    for seed in 0..6_000 {
        let instance = instance(seed);
        let mut plans = vec![LayerPlan::KEEP; instance.layers.len()];
        let config = Config { node_limit: 1, ..Config::default() };
        let found = instance.with(|problem| Exact::new(&mut storage, config).select(problem, &mut plans));
        if let (Ok(found), Some((ns, bytes))) = (found, instance.best()) {
            instance.check(&found, &plans, seed);
            assert!(found.added_ns - found.gap_ns <= ns, "seed {seed}: {found:?}, optimum {ns}");
            assert!(!found.optimal || (found.added_ns, found.bytes) == (ns, bytes), "seed {seed}");
            cut += u32::from(!found.optimal);
        }
    }
    assert!(cut > 30, "{cut}");
}
