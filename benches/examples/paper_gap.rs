//! How far `PaperGreedy` and `RatioGreedy` are from the optimum on real layer tables:
//! `cargo run --release -p bagualu-benches --example paper_gap`. Prints the table of `docs/paper-gap.md`.

use bagualu_benches::selection::Stage;
use bagualu_core::mitigate::{Config, Exact, ExactStorage, PaperGreedy, RatioGreedy};

/// The models of the table.
const MODELS: [&str; 9] = [
    "glm-188b-a20b",
    "glm-319b-a30b",
    "glm-423b-a30b",
    "glm-629b-a30b",
    "glm-783b-a35b",
    "glm-835b-a30b",
    "glm-1041b-a35b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
];
const LOADS: [u32; 5] = [1_000, 1_200, 1_600, 2_000, 2_600];
const LIMITS: [u64; 5] = [100, 300, 500, 700, 900];

fn main() {
    let mut storage = Box::new(ExactStorage::new());
    println!("| model | λ | {} |", LIMITS.map(|l| format!("{} %", l / 10)).join(" | "));
    println!("| --- | --- |{}", " --- |".repeat(LIMITS.len()));
    let (mut paper, mut ratio, mut proven) = (Vec::new(), Vec::new(), 0);
    for model in MODELS {
        for load in LOADS {
            let stage = Stage::new(model, "dcu-64g", &[load; 4]);
            let cells = LIMITS.map(|permille| {
                let bytes = stage.limit(permille);
                let best = stage.select(&mut Exact::new(&mut storage, Config::default()), bytes);
                let best = best.expect("the limit is above the fewest bytes");
                proven += u32::from(best.optimal);
                let over = |selector: &mut dyn FnMut() -> Option<u64>| {
                    selector().map(|ns| (ns as f64 / best.added_ns as f64 - 1.0) * 100.0)
                };
                let p = over(&mut || stage.select(&mut PaperGreedy, bytes).ok().map(|s| s.added_ns));
                let r = over(&mut || stage.select(&mut RatioGreedy, bytes).ok().map(|s| s.added_ns));
                paper.extend(p);
                ratio.extend(r);
                let text = |over: Option<f64>| over.map_or("fails".into(), |over| format!("{over:.1}"));
                format!("{} / {}", text(p), text(r))
            });
            println!("| {model} | {:.1} | {} |", f64::from(load) / 1e3, cells.join(" | "));
        }
    }
    let all = MODELS.len() * LOADS.len() * LIMITS.len();
    let mean = |over: &[f64]| over.iter().sum::<f64>() / over.len() as f64;
    let most = |over: &[f64]| over.iter().copied().fold(0.0, f64::max);
    println!();
    println!("{all} instances, optimum proven on {proven}.");
    println!(
        "PaperGreedy: {} answers, {:.1} % above the optimum on average, {:.1} % at most.",
        paper.len(),
        mean(&paper),
        most(&paper)
    );
    println!(
        "RatioGreedy: {} answers, {:.1} % above the optimum on average, {:.1} % at most.",
        ratio.len(),
        mean(&ratio),
        most(&ratio)
    );
}
