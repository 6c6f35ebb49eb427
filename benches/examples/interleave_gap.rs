//! How far the paper's program and a priority list are from the optimum on layer tables of real models: the
//! table of `docs/paper-gap.md`.

use bagualu_benches::windows::{Window, of_model};
use bagualu_core::interleave::{
    Config, Exact, ExactSlot, List, Op, PaperDp, PaperSlot, Scheduler, Solution, Span, Step, compact,
};
use bagualu_core::layer::Resource;
use bagualu_model::{Device, Model, Preset};

const MODELS: [&str; 4] = ["mixtral-8x7b", "qwen3-30b-a3b", "glm-188b-a20b", "glm-423b-a30b"];
/// MoE layers of a window: the virtual stages of Table II have one or two.
const LAYERS: usize = 2;
const LOADS: [u32; 4] = [1_000, 1_200, 1_800, 2_600];

struct Solvers {
    nodes: Vec<ExactSlot>,
    states: Vec<PaperSlot>,
}

fn main() {
    let device = Device::named("h100-80g").expect("a device");
    let mut solvers =
        Solvers { nodes: vec![ExactSlot::default(); 1 << 20], states: vec![PaperSlot::default(); 1 << 20] };
    println!(
        "| model | λ | operators → stages of F, B, O, R | capacity | optimum, ms | serial | list | paper | paper's F |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for name in MODELS {
        let preset = Preset::named(name, None).expect("a preset");
        let model = Model::new(&preset.config, &preset.parallelism, &device).expect("a model");
        for load in LOADS {
            let window = of_model(&model, LAYERS, load).expect("a window");
            let least = window.least_bytes(None).expect("a problem");
            let peak = solvers.exact(&window, u64::MAX).peak_bytes;
            for (label, capacity) in [("any", u64::MAX), ("halfway", least + (peak - least) / 2)] {
                solvers.row(name, load, &window, label, capacity);
            }
        }
    }
}

impl Solvers {
    fn exact(&mut self, window: &Window, capacity: u64) -> Solution {
        let config = Config { node_limit: 1 << 19 };
        solve(&mut Exact::new(&mut self.nodes, config), window, capacity).expect("an order")
    }

    fn row(&mut self, name: &str, load: u32, window: &Window, label: &str, capacity: u64) {
        let exact = self.exact(window, capacity);
        let above = |ns: u64| format!("+{:.1} %", (ns as f64 / exact.makespan_ns as f64 - 1.0) * 100.0);
        let list = solve(&mut List, window, capacity).expect("an order");
        let mut paper = PaperDp::new(&mut self.states);
        let found = solve(&mut paper, window, capacity);
        let (replayed, barriers) = match found {
            Some(solution) => (above(solution.makespan_ns), above(paper.barrier_ns())),
            None => ("too large".to_owned(), String::new()),
        };
        println!(
            "| {name} | {:.1} | {} | {label} | {:.3}{} | {} | {} | {replayed} | {barriers} |",
            f64::from(load) / 1e3,
            window
                .chains
                .iter()
                .map(|ops| format!("{}→{}", ops.len(), count(ops)))
                .collect::<Vec<_>>()
                .join(", "),
            exact.makespan_ns as f64 / 1e6,
            if exact.optimal { "" } else { " (not proven)" },
            above(window.serial_ns()),
            above(list.makespan_ns),
        );
    }
}

fn solve(scheduler: &mut impl Scheduler, window: &Window, capacity: u64) -> Option<Solution> {
    let problem = window.problem(capacity, None).expect("a problem");
    scheduler.schedule(&problem, &mut vec![Step::default(); problem.op_count()]).ok()
}

/// Stages of a chain.
fn count(ops: &[Op]) -> usize {
    let none = Op { resource: Resource::Compute, ns: 0, alloc_bytes: 0, free_bytes: 0 };
    compact(ops, &mut vec![none; ops.len()], &mut vec![Span::default(); ops.len()]).expect("room for all")
}
