//! Public runs, their plans, and the rows that compare them.

pub mod offload_ratio;

use bagualu_model::script::{self, Given};
use bagualu_model::settings::{ActivationSettings, Configured};
use bagualu_model::{Device, Model};
use serde::Deserialize;

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
}

impl MegatronRun {
    /// Bytes of a peak from which on what is allocated beside what is modelled weighs little.
    const LARGE: u64 = 4 << 30;

    /// Bytes at the peak that are gone between iterations.
    pub fn activations(&self) -> u64 {
        self.peak_bytes - self.allocated_bytes
    }

    /// Whether what is not modelled weighs little.
    pub fn is_large(&self) -> bool {
        self.peak_bytes > Self::LARGE
    }
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

/// Rows of a table of the document, and what is said of them.
#[derive(Default)]
pub struct Rows(Vec<String>, Vec<String>);

impl Rows {
    /// Adds and prints a row.
    pub fn add(&mut self, names: &[&str], compared: &[&Compared]) {
        let names = names.iter().map(|&name| name.to_owned());
        let cells: Vec<_> = names.chain(compared.iter().flat_map(|compared| compared.cells())).collect();
        let row = format!("| {} |", cells.join(" | "));
        println!("{row}");
        self.0.push(row);
    }

    /// Adds and prints what the text below the table says.
    pub fn sentence(&mut self, sentence: String) {
        println!("{sentence}");
        self.1.push(sentence);
    }

    /// The document must have them all.
    pub fn are_documented(&self) {
        let lacks_row = |row: &&String| !DOCUMENT.lines().any(|line| line == *row);
        let sentences = self.1.iter().filter(|sentence| !DOCUMENT.contains(sentence.as_str()));
        let lacks: Vec<_> = self.0.iter().filter(lacks_row).chain(sentences).collect();
        assert!(lacks.is_empty(), "docs/predictions.md lacks rows that are computed: {lacks:#?}");
    }
}

/// A launch, planned as its own settings have it.
pub struct Planned {
    pub model: Model,
    settings: ActivationSettings,
}

impl Planned {
    /// The launch that `flags` describe, on `gpus` devices.
    pub fn new(flags: &str, gpus: u32) -> Self {
        let launch = format!("torchrun --nproc_per_node {gpus} pretrain_gpt.py {flags}\n");
        Self::script(launch.as_bytes(), "")
    }

    /// A launch script, with `flags` behind its own.
    pub fn script(script: &[u8], flags: &str) -> Self {
        let flags = flags.split_whitespace().map(str::to_owned).collect();
        let launch =
            script::parse_with(script, &Given { flags, ..Given::default() }).expect("a launch script");
        let device = Device::named("h100-80g").expect("a device");
        let model =
            Model::new(&launch.config, &launch.parallelism, &device).unwrap_or_else(|e| panic!("{e}"));
        Self { model, settings: launch.settings }
    }

    /// The pipeline rank whose memory Megatron logs.
    pub fn last(&self) -> Rank {
        self.rank(self.model.stages.len() - 1)
    }

    /// Pipeline rank `rank` at balanced load.
    pub fn rank(&self, rank: usize) -> Rank {
        let stage = &self.model.stages[rank];
        let configured = Configured::new(&self.settings, &self.model, stage, self.model.balanced_rows);
        let activations = configured.expect("the settings are possible").peak_bytes;
        Rank { fixed: stage.static_bytes.total(), activations }
    }

    /// The most bytes on any rank.
    pub fn peak(&self) -> u64 {
        (0..self.model.stages.len()).map(|rank| self.rank(rank).peak()).max().expect("a rank")
    }
}

/// Device bytes of a pipeline rank.
pub struct Rank {
    /// Static bytes.
    pub fixed: u64,
    /// The peak of the iteration above them.
    pub activations: u64,
}

impl Rank {
    /// The most bytes on the device.
    pub fn peak(&self) -> u64 {
        self.fixed + self.activations
    }
}
