//! How often the controller refuses, and how often memory runs out, beside full recompute.
//!
//! `cargo run --release --package bagualu-tests --example refusals -- ITERATIONS [MEMORY_MIB [PEAK_PERMILLE]]`: for
//! each generated load, memory size and highest load, the iterations in which full recompute runs out of memory,
//! in which the controller does, and which it refuses; and the share of gates at which the group recomputes
//! the whole MoE module, and splits the dispatch.

use std::process::ExitCode;

use bagualu_sim::controlled::{Controlled, Counts, Setup, outcomes, refused_iterations, replay_controlled};
use bagualu_sim::job::Job;
use bagualu_sim::policy::Static;
use bagualu_sim::replay::{excess_iterations, replay_static};
use bagualu_sim::workload::{Kind, Workload};
use bagualu_tests::pipeline;

/// Device memory, MiB: from ample to what full recompute needs at balanced load.
const MEMORIES: [u32; 3] = [17_000, 13_560, 13_360];
/// Highest loads in thousandths; 8 ranks cannot have more than the last.
const PEAKS: [u32; 4] = [1_200, 2_600, 5_000, 8_000];

fn main() -> ExitCode {
    let numbers: Result<Vec<u32>, _> = std::env::args().skip(1).map(|text| text.parse()).collect();
    let (iterations, memories, peaks) = match numbers.as_deref() {
        Ok(&[iterations]) => (iterations, MEMORIES.to_vec(), PEAKS.to_vec()),
        Ok(&[iterations, memory]) => (iterations, vec![memory], PEAKS.to_vec()),
        Ok(&[iterations, memory, peak]) => (iterations, vec![memory], vec![peak]),
        _ => {
            eprintln!("give ITERATIONS [MEMORY_MIB [PEAK_PERMILLE]], whole numbers");
            return ExitCode::from(2);
        }
    };
    println!(
        "| memory, MiB | load | peak | full: out of memory | bagualu: out of memory | refused | whole-MoE | split |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    let mut broken = false;
    for memory in memories {
        let model = pipeline::small(memory.into());
        let job = Job::new(&model).expect("the pipeline has experts");
        for kind in Kind::ALL {
            // The peak means nothing to a balanced load.
            for &peak in if kind == Kind::Balanced { &peaks[..1] } else { &peaks[..] } {
                broken |= row(&job, memory, kind, peak, iterations);
            }
        }
    }
    // A failure is to refuse where full recompute fits, or ever to run out of memory.
    if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Prints a row; whether the controller failed where full recompute did not.
fn row(job: &Job<'_>, memory: u32, kind: Kind, peak: u32, iterations: u32) -> bool {
    let load = Workload::new(kind, *job.shape(), 1, peak).expect("a peak of at least 1");
    let full = excess_iterations(&replay_static(job, &load, Static::Full, iterations, &|| {}));
    let name = kind.name();
    let peak = format!("{}.{}", peak / 1_000, peak % 1_000 / 100);
    let devices = match replay_controlled(job, &load, &Setup::default(), iterations, &|| {}) {
        Ok(devices) => devices,
        Err(error) => {
            println!("| {memory} | {name} | {peak} | {full} | {error} | all | | |");
            return full == 0;
        }
    };
    let excess = excess_iterations(&outcomes(&devices));
    let refused = refused_iterations(&devices);
    let counts = devices.iter().fold(Counts::default(), |sum, device: &Controlled| sum.plus(&device.counts));
    let percent =
        |n: u64| format!("{}.{} %", n * 100 / counts.gates.max(1), n * 1_000 / counts.gates.max(1) % 10);
    let (whole, split) = (percent(counts.whole_moe), percent(counts.split));
    println!("| {memory} | {name} | {peak} | {full} | {excess} | {refused} | {whole} | {split} |");
    excess > 0 || (full == 0 && refused > 0)
}
