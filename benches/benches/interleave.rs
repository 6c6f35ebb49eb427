//! Interleaving: `Exact` beside `PaperDp` and `List` on the same windows.
//!
//! Each measurement goes round a set of windows; the time is that of one, on average.

use std::hint::black_box;

use bagualu_benches::windows::{Random, Window, job_shop, stages};
use bagualu_core::interleave::{
    Chain, Config, Exact, ExactSlot, List, MAX_ORDER, PaperDp, PaperSlot, Scheduler, Solution, Step,
};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const WINDOWS: usize = 64;
const EIGHT: [usize; 4] = [8, 8, 8, 8];

/// A window at a capacity, with or without a merge.
struct Case {
    window: Window,
    capacity: u64,
    merge: Option<Vec<Chain>>,
}

impl Case {
    fn solve(&self, scheduler: &mut impl Scheduler) -> Solution {
        let problem = self.window.problem(self.capacity, self.merge.as_deref()).expect("a problem");
        let mut order = [Step::default(); MAX_ORDER];
        scheduler.schedule(black_box(&problem), &mut order).expect("feasible")
    }
}

fn cases(make: impl Fn(&mut Random) -> Case) -> Vec<Case> {
    let mut random = Random(7);
    (0..WINDOWS).map(|_| make(&mut random)).collect()
}

fn unbound(window: Window) -> Case {
    Case { window, capacity: u64::MAX, merge: None }
}

/// At `percent` more than the smallest capacity that does.
fn bound(window: Window, percent: u64, merged: bool) -> Case {
    let merge = merged.then(|| window.alternating());
    let least = window.least_bytes(merge.as_deref()).expect("a problem");
    Case { capacity: least + least * percent / 100, window, merge }
}

fn merged(window: Window) -> Case {
    Case { merge: Some(window.alternating()), ..unbound(window) }
}

fn exact(criterion: &mut Criterion) {
    let mut storage = vec![ExactSlot::default(); 1 << 16];
    let mut group = criterion.benchmark_group("interleave/exact");
    let sets = [
        ("8-8-8-8", cases(|r| unbound(stages(r, EIGHT)))),
        ("12-12-8-8", cases(|r| unbound(stages(r, [12, 12, 8, 8])))),
        ("16-16-16-16", cases(|r| unbound(stages(r, [16; 4])))),
        ("8-8-8-8 merge", cases(|r| merged(stages(r, EIGHT)))),
        ("8-8-8-8 bytes +10%", cases(|r| bound(stages(r, EIGHT), 10, false))),
        ("8-8-8-8 bytes +2%", cases(|r| bound(stages(r, EIGHT), 2, false))),
        ("8-8-8-8 bytes +2% merge", cases(|r| bound(stages(r, EIGHT), 2, true))),
        ("12-12-8-8 bytes +2%", cases(|r| bound(stages(r, [12, 12, 8, 8]), 2, false))),
        ("16-16-16-16 bytes +2%", cases(|r| bound(stages(r, [16; 4]), 2, false))),
        ("8-8-8-8 job shop", cases(|r| unbound(job_shop(r, EIGHT)))),
    ];
    for (name, cases) in &sets {
        let mut exact = Exact::new(&mut storage, Config::default());
        let proven = cases.iter().filter(|case| case.solve(&mut exact).optimal).count();
        println!("interleave/exact/{name}: optimum proven on {proven} of {}", cases.len());
        let mut turn = cases.iter().cycle();
        group.bench_function(*name, |bencher| bencher.iter(|| turn.next().map(|c| c.solve(&mut exact))));
    }
    group.finish();
}

fn list(criterion: &mut Criterion) {
    let cases = cases(|r| unbound(stages(r, EIGHT)));
    let mut turn = cases.iter().cycle();
    criterion.bench_function("interleave/list/8-8-8-8", |bencher| {
        bencher.iter(|| turn.next().map(|case| case.solve(&mut List)));
    });
}

fn paper(criterion: &mut Criterion) {
    let mut storage = vec![PaperSlot::default(); 13 * 13 * 9 * 9];
    let mut group = criterion.benchmark_group("interleave/paper");
    group.sample_size(10);
    for (name, lengths) in [("8-8-8-8", EIGHT), ("12-12-8-8", [12, 12, 8, 8])] {
        let cases = cases(|r| unbound(stages(r, lengths)));
        let mut paper = PaperDp::new(&mut storage);
        cases[0].solve(&mut paper);
        group.throughput(Throughput::Elements(paper.transitions()));
        let mut turn = cases.iter().cycle();
        group.bench_function(name, |bencher| bencher.iter(|| turn.next().map(|c| c.solve(&mut paper))));
    }
    group.finish();
}

criterion_group!(benches, exact, list, paper);
criterion_main!(benches);
