//! The JSON of `bagualu plan` (`docs/formats.md`).

use bagualu_core::layer::Strategy;
use serde::Serialize;

use super::advise::Advice;
use super::configured;
use super::iteration::Carried;
use super::rank::{LoadPlan, RankPlan, Shortage};
use super::{Plan, Verdict};
use crate::Error;

/// Version of the format: changes where a field changes its meaning or goes.
const VERSION: u32 = 1;

#[derive(Serialize)]
pub struct Report<'a> {
    version: u32,
    source: &'a str,
    device: Device<'a>,
    model: Model,
    parallelism: Parallelism,
    /// The load that is provided for.
    spike: f64,
    ranks: Vec<Rank<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    infeasible: Option<Infeasible>,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<&'a Advice>,
    configured: Option<String>,
    replaced_flags: &'a [String],
    ignored_flags: &'a [String],
    warnings: &'a [String],
}

#[derive(Serialize)]
struct Device<'a> {
    name: &'a str,
    memory_bytes: u64,
    margin_bytes: u64,
    host_bytes: u64,
}

#[derive(Serialize)]
struct Model {
    parameters: u64,
    active_parameters: u64,
    layers: u32,
    hidden_size: u64,
    experts: u64,
    top_k: u64,
    sequence_length: u64,
}

#[derive(Serialize)]
struct Parallelism {
    gpus: u64,
    tensor: u64,
    pipeline: u32,
    chunks: u32,
    expert: u64,
    expert_tensor: u64,
    data: u64,
    expert_data: u64,
    micro_batch_size: u64,
    micro_batches: u32,
    tokens: u32,
    balanced_rows: u32,
}

#[derive(Serialize)]
struct Rank<'a> {
    rank: u32,
    layers: &'a [Vec<Option<u32>>],
    static_bytes: Static,
    optimizer_host_bytes: u64,
    device_bytes: u64,
    host_bytes: u64,
    in_flight: usize,
    floor_bytes: u64,
    verdict: Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    thresholds: Option<Thresholds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    infeasible: Option<Infeasible>,
    loads: Vec<Load<'a>>,
}

#[derive(Serialize)]
struct Static {
    weights: u64,
    fp8_weights: u64,
    gradients: u64,
    placeholders: u64,
    optimizer: u64,
    buffers: u64,
    workspaces: u64,
}

#[derive(Serialize)]
struct Thresholds {
    static_recompute: bool,
    row_threshold: u32,
    dispatch_threshold: u32,
    work_bytes: u64,
    capacity_bytes: u64,
}

#[derive(Clone, Serialize)]
pub(super) struct Infeasible {
    part: &'static str,
    needed_bytes: u64,
    available_bytes: u64,
}

#[derive(Serialize)]
struct Load<'a> {
    load: f64,
    rows: u32,
    unmitigated_bytes: u64,
    #[serde(flatten)]
    configured: Option<AsConfigured>,
    verdict: Verdict,
    #[serde(flatten)]
    outcome: Outcome<'a>,
}

/// The script's own settings.
#[derive(Serialize)]
struct AsConfigured {
    configured_held_bytes: u64,
    configured_bytes: u64,
    configured_host_bytes: u64,
    configured_added_ns: u64,
    configured_verdict: configured::Verdict,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Outcome<'a> {
    Carried {
        held_bytes: u64,
        peak_bytes: u64,
        compute_ns: u64,
        added_ns: u64,
        layers: u64,
        whole_moe_layers: u64,
        split_layers: u64,
        strategies: Vec<Chosen<'a>>,
    },
    Infeasible {
        infeasible: Infeasible,
    },
}

#[derive(Serialize)]
struct Chosen<'a> {
    layer_type: &'a str,
    tensor: &'a str,
    strategy: Strategy,
    layers: u64,
}

/// The answer as JSON.
pub fn report<'a>(plan: &'a Plan, advice: Option<&'a Advice>) -> Result<Report<'a>, Error> {
    let loaded = &plan.loaded;
    let model = &loaded.model;
    let (config, parallelism, device) = (&model.config, &model.parallelism, &model.device);
    let count =
        config.parameters().map_err(|error| Error::bad_input(&loaded.source, error.to_string(), ""))?;
    Ok(Report {
        version: VERSION,
        source: &loaded.source,
        device: Device {
            name: &device.name,
            memory_bytes: device.memory_bytes,
            margin_bytes: device.margin_bytes,
            host_bytes: device.host_bytes,
        },
        model: Model {
            parameters: count.total,
            active_parameters: count.active,
            layers: config.layers,
            hidden_size: config.hidden,
            experts: config.moe.as_ref().map_or(0, |moe| moe.experts),
            top_k: config.moe.as_ref().map_or(0, |moe| moe.top_k),
            sequence_length: config.seq,
        },
        parallelism: Parallelism {
            gpus: parallelism.gpus,
            tensor: parallelism.tp,
            pipeline: parallelism.pp,
            chunks: parallelism.chunks,
            expert: parallelism.ep,
            expert_tensor: parallelism.etp,
            data: parallelism.dp(),
            expert_data: parallelism.expert_dp(),
            micro_batch_size: parallelism.micro_batch,
            micro_batches: model.micro_batches,
            tokens: model.tokens,
            balanced_rows: model.balanced_rows,
        },
        spike: f64::from(plan.aim.spike) / 1_000.0,
        ranks: plan.ranks.iter().map(|rank| rank_report(plan, rank)).collect(),
        infeasible: plan.shortage().map(|(_, shortage)| shortage.into()),
        advice,
        configured: (!loaded.settings.keeps_all()).then(|| loaded.settings.to_string()),
        replaced_flags: &loaded.replaced,
        ignored_flags: &loaded.ignored,
        warnings: &loaded.warnings,
    })
}

fn rank_report<'a>(plan: &'a Plan, rank: &'a RankPlan) -> Rank<'a> {
    let bytes = rank.static_bytes;
    Rank {
        rank: rank.rank,
        layers: &rank.layers,
        static_bytes: Static {
            weights: bytes.weights,
            fp8_weights: bytes.fp8_weights,
            gradients: bytes.gradients,
            placeholders: bytes.placeholders,
            optimizer: bytes.optimizer,
            buffers: bytes.buffers,
            workspaces: bytes.workspaces,
        },
        optimizer_host_bytes: bytes.optimizer_host,
        device_bytes: rank.device_bytes,
        host_bytes: rank.host_bytes,
        in_flight: rank.in_flight,
        floor_bytes: rank.floor_bytes,
        verdict: rank.verdict(),
        thresholds: rank.provision.as_ref().ok().map(|provision| Thresholds {
            static_recompute: rank.recomputes_statically(),
            row_threshold: provision.row_threshold,
            dispatch_threshold: provision.dispatch_threshold,
            work_bytes: provision.work_bytes,
            capacity_bytes: provision.capacity_bytes,
        }),
        infeasible: rank.provision.as_ref().err().map(Into::into),
        loads: rank.loads.iter().map(|load| load_report(plan, rank, load)).collect(),
    }
}

fn load_report<'a>(plan: &'a Plan, rank: &RankPlan, load: &'a LoadPlan) -> Load<'a> {
    Load {
        load: f64::from(load.load.0) / 1_000.0,
        rows: load.rows,
        unmitigated_bytes: load.unmitigated_bytes,
        configured: load.configured.as_ref().map(|configured| AsConfigured {
            configured_held_bytes: configured.held_bytes,
            configured_bytes: configured.peak_bytes,
            configured_host_bytes: configured.host_bytes,
            configured_added_ns: configured.added_ns,
            configured_verdict: configured::Verdict::new(rank, configured),
        }),
        verdict: load.verdict(),
        outcome: match &load.outcome {
            Ok(carried) => carried_report(plan, carried),
            Err(shortage) => Outcome::Infeasible { infeasible: shortage.into() },
        },
    }
}

fn carried_report<'a>(plan: &'a Plan, carried: &Carried) -> Outcome<'a> {
    let types = &plan.loaded.model.types;
    let chosen = |(&(kind, tensor, strategy), &layers): (&(usize, usize, Strategy), &u64)| Chosen {
        layer_type: types[kind].name,
        tensor: types[kind].tensor_names[tensor],
        strategy,
        layers,
    };
    Outcome::Carried {
        held_bytes: carried.held_bytes,
        peak_bytes: carried.peak_bytes,
        compute_ns: carried.compute_ns,
        added_ns: carried.added_ns,
        layers: carried.layers,
        whole_moe_layers: carried.whole_moe,
        split_layers: carried.split,
        strategies: carried.strategies.iter().map(chosen).collect(),
    }
}

impl Infeasible {
    /// The first part that does not fit.
    pub fn part(&self) -> &'static str {
        self.part
    }

    /// Bytes that are lacking.
    pub fn missing_bytes(&self) -> u64 {
        self.needed_bytes.saturating_sub(self.available_bytes)
    }
}

impl From<&Shortage> for Infeasible {
    fn from(shortage: &Shortage) -> Self {
        Self { part: shortage.part, needed_bytes: shortage.needed, available_bytes: shortage.available }
    }
}
