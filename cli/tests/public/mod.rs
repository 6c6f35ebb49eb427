//! Public runs, their plans, and the rows that compare them.

pub mod offload_ratio;

use std::io::Write;
use std::process::{Command, Stdio};

use bagualu_model::{Device, Model, script};
use serde::Deserialize;
use serde_json::Value;

const DOCUMENT: &str = include_str!("../../../docs/predictions.md");

/// A run of Megatron-LM's functional tests.
#[derive(Deserialize)]
pub struct MegatronRun {
    /// Its folder under `tests/functional_tests/test_cases`.
    pub run: String,
    /// The flags of it that say something about memory.
    pub flags: String,
    /// Devices.
    pub gpus: u32,
    /// `mem-allocated-bytes`: the median over iterations.
    pub allocated_bytes: u64,
    /// `mem-max-allocated-bytes`: the largest over iterations.
    pub peak_bytes: u64,
    /// Whether the number of nodes is published; without it optimizer state is unknown.
    pub nodes_known: bool,
    /// What the error of the activations stays below, in thousandths.
    pub activations_permille: i64,
    /// What is allocated beyond weights, gradients and optimizer, at most.
    pub libraries_mib: u64,
}

/// The runs, from `cli/tests/data`.
pub fn megatron_runs() -> Vec<MegatronRun> {
    serde_json::from_str(include_str!("../data/megatron-runs.json")).expect("a list of runs")
}

/// A measured and a predicted number of bytes.
pub struct Compared {
    pub measured: u64,
    pub predicted: u64,
}

impl Compared {
    /// The error, in thousandths of what is measured.
    pub fn permille(&self) -> i64 {
        let difference = i128::from(self.predicted) - i128::from(self.measured);
        i64::try_from(difference * 1_000 / i128::from(self.measured)).expect("a small error")
    }

    /// Measured, predicted and error.
    pub fn cells(&self) -> [String; 3] {
        let error = self.permille();
        let mib = |bytes: u64| (bytes + (1 << 19)) >> 20;
        let sign = if error < 0 { '−' } else { '+' };
        [
            mib(self.measured).to_string(),
            mib(self.predicted).to_string(),
            format!("{sign}{}.{} %", error.abs() / 10, error.abs() % 10),
        ]
    }
}

/// Rows of a table of the document.
#[derive(Default)]
pub struct Rows(Vec<String>);

impl Rows {
    /// Adds and prints a row.
    pub fn add(&mut self, names: &[&str], compared: &[&Compared]) {
        let names = names.iter().map(|&name| name.to_owned());
        let cells: Vec<_> = names.chain(compared.iter().flat_map(|compared| compared.cells())).collect();
        let row = format!("| {} |", cells.join(" | "));
        println!("{row}");
        self.0.push(row);
    }

    /// The document must have them all.
    pub fn are_documented(&self) {
        let lacks: Vec<_> = self.0.iter().filter(|row| !DOCUMENT.lines().any(|line| line == *row)).collect();
        assert!(lacks.is_empty(), "docs/predictions.md lacks rows that are computed: {lacks:#?}");
    }
}

/// A pipeline rank of a plan.
pub struct Rank {
    /// Static bytes.
    pub fixed: u64,
    /// The peak of the iteration above them, everything kept.
    pub activations: u64,
}

impl Rank {
    /// The most bytes on the device.
    pub fn peak(&self) -> u64 {
        self.fixed + self.activations
    }
}

/// The answer of `bagualu plan`.
pub struct Plan {
    pub ranks: Vec<Rank>,
}

impl Plan {
    /// The last pipeline rank, the one whose memory Megatron logs.
    pub fn last(&self) -> &Rank {
        self.ranks.last().expect("a rank")
    }
}

/// Plans a launch with Megatron's `flags` at balanced load on a device that has room for everything.
pub fn planned(flags: &str, gpus: u32, options: &[&str]) -> Plan {
    let script = launcher(flags, gpus);
    let mut child = Command::new(env!("CARGO_BIN_EXE_bagualu"))
        .args(["plan", "-", "--device", "h100-80g", "--memory", "400", "--load", "1", "--json"])
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command runs");
    child.stdin.take().expect("a pipe").write_all(script.as_bytes()).expect("the script is read");
    let output = child.wait_with_output().expect("the command ends");
    assert!(output.status.success(), "{flags}");
    let answer: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    let bytes = |value: &Value| value.as_u64().expect("a whole number");
    let rank = |rank: &Value| Rank {
        fixed: rank["static_bytes"].as_object().expect("parts").values().map(bytes).sum(),
        activations: bytes(&rank["loads"][0]["unmitigated_bytes"]),
    };
    Plan { ranks: answer["ranks"].as_array().expect("ranks").iter().map(rank).collect() }
}

/// The model that `flags` describe, on `gpus` devices.
pub fn model(flags: &str, gpus: u32) -> Model {
    let launch = script::parse(launcher(flags, gpus).as_bytes()).expect("a launch script");
    let device = Device::named("h100-80g").expect("a device");
    Model::new(&launch.config, &launch.parallelism, &device).unwrap_or_else(|error| panic!("{error}"))
}

fn launcher(flags: &str, gpus: u32) -> String {
    format!("torchrun --nproc_per_node {gpus} pretrain_gpt.py {flags}\n")
}
