//! One pipeline rank: what it holds whatever happens, its static decisions, and its loads.

use bagualu_core::budget::{Unit, floor_peak};
use bagualu_core::cost::{LayerModel, LayerStorage};
use bagualu_core::provision::{Aim, Part, Provision, ProvisionError};
use bagualu_core::schedule::{Event, Pipeline, most_in_flight};
use bagualu_core::stage::{Recompute, StageModel};
use bagualu_model::settings::{ActivationSettings, Configured};
use bagualu_model::{Model, Stage, StaticBytes};

use super::Verdict;
use super::iteration::{self, Carried};
use super::load::LoadFactor;

/// The plan of one pipeline rank.
pub struct RankPlan {
    /// The pipeline rank.
    pub rank: u32,
    /// Transformer layers, and whether embedding and output are on it.
    pub layers: Vec<Vec<Option<u32>>>,
    /// Static bytes by part.
    pub static_bytes: StaticBytes,
    /// D: device bytes less static bytes and margin.
    pub device_bytes: u64,
    /// Host bytes for offloaded activations: the device's share less the optimizer's.
    pub host_bytes: u64,
    /// Most units in flight.
    pub in_flight: usize,
    /// Σ floor at its highest over the schedule.
    pub floor_bytes: u64,
    /// R*, S*, W; or what does not fit.
    pub provision: Result<Provision, Shortage>,
    /// At each load; empty where the rank is infeasible.
    pub loads: Vec<LoadPlan>,
}

/// The rank under one load.
pub struct LoadPlan {
    /// The load.
    pub load: LoadFactor,
    /// Rows of each layer.
    pub rows: u32,
    /// The peak if everything were kept, work included.
    pub unmitigated_bytes: u64,
    /// What the script's own settings make of it, if it has any.
    pub configured: Option<Configured>,
    /// What the controller makes of it.
    pub outcome: Result<Carried, Shortage>,
}

impl LoadPlan {
    /// What the user is told first.
    pub fn verdict(&self) -> Verdict {
        match &self.outcome {
            Ok(carried) if carried.keeps_all() => Verdict::Fits,
            Ok(_) => Verdict::NeedsStrategies,
            Err(_) => Verdict::Infeasible,
        }
    }
}

/// What does not fit, and by how much.
#[derive(Clone, Debug)]
pub struct Shortage {
    /// `weights`, `gradients`, `optimizer`, `buffers`, `optimizer_host`, `floor`, `work`, `host` or
    /// `schedule`.
    pub part: &'static str,
    /// Bytes needed, of device or host memory.
    pub needed: u64,
    /// Bytes there are.
    pub available: u64,
}

impl Shortage {
    /// What needs the bytes, for a sentence.
    pub fn needs(&self) -> &'static str {
        match self.part {
            "weights" => "weights, gradients, optimizer and buffers (weights alone are too large) need",
            "gradients" => "weights, gradients, optimizer and buffers (the gradients do not fit) need",
            "optimizer" => "weights, gradients, optimizer and buffers (the optimizer does not fit) need",
            "buffers" => "weights, gradients, optimizer and buffers need",
            "optimizer_host" => "the optimizer's share on the host needs",
            "floor" => "what full recomputation holds needs",
            "host" => "what must be offloaded to the host needs",
            "work" => "what operators hold and need while they run needs",
            _ => "what the schedule keeps in flight needs",
        }
    }
}

/// A pipeline rank as the core takes it.
pub struct Rank<'a> {
    pub stage: StageModel<'a>,
    pub pipeline: Pipeline,
    pub events: &'a [Event],
}

impl RankPlan {
    /// Plans a pipeline rank; an error is a sentence about the input.
    pub fn new(
        model: &Model,
        stage: &Stage,
        settings: &ActivationSettings,
        loads: &[LoadFactor],
        aim: Aim,
    ) -> Result<Self, String> {
        Rank::with(model, stage, |rank| rank.plan(model, stage, settings, loads, aim))
    }

    /// The worst verdict of its loads.
    pub fn verdict(&self) -> Verdict {
        match &self.provision {
            Ok(_) => self.loads.iter().map(LoadPlan::verdict).max().unwrap_or(Verdict::Fits),
            Err(_) => Verdict::Infeasible,
        }
    }

    /// Whether recomputation with collectives is a static setting of this rank.
    pub fn recomputes_statically(&self) -> bool {
        self.provision.as_ref().is_ok_and(|provision| provision.recompute == Recompute::Full)
    }

    /// The first thing that does not fit on this rank.
    pub fn shortage(&self) -> Option<&Shortage> {
        let at_load = self.loads.iter().find_map(|load| load.outcome.as_ref().err());
        self.provision.as_ref().err().or(at_load)
    }
}

impl<'a> Rank<'a> {
    /// Calls `f` with a pipeline rank; an error is a sentence about the input.
    pub fn with<T>(
        model: &Model,
        stage: &Stage,
        f: impl FnOnce(&Rank<'_>) -> Result<T, String>,
    ) -> Result<T, String> {
        let pipeline = model.pipeline(stage.rank);
        let units = pipeline.units().map_err(|e| e.to_string())? as usize;
        let mut events = vec![Event::Forward(0); 2 * units];
        pipeline.events(&mut events).map_err(|e| e.to_string())?;
        let types: Vec<LayerModel<'_>> = model.types.iter().map(|t| t.model()).collect();
        let kinds: Vec<Vec<u16>> =
            stage.chunks.iter().map(|layers| layers.iter().map(|l| l.layer_type as u16).collect()).collect();
        let chunks: Vec<&[u16]> = kinds.iter().map(Vec::as_slice).collect();
        f(&Rank {
            stage: StageModel {
                types: &types,
                chunks: &chunks,
                rooflines: model.device.rooflines(),
                // A dense model has no rows: any number does.
                balanced_rows: model.rows_at(1_000).max(1),
                device_bytes: model.room(stage),
                host_bytes: model.host_room(stage),
                fused: model.parallelism.overlap_ep,
            },
            pipeline,
            events: &events,
        })
    }

    /// The layer types of a unit's chunk.
    pub fn kinds(&self, unit: u32) -> &'a [u16] {
        self.stage.chunks[self.pipeline.parts(unit).1 as usize]
    }

    fn plan(
        &self,
        model: &Model,
        stage: &Stage,
        settings: &ActivationSettings,
        loads: &[LoadFactor],
        aim: Aim,
    ) -> Result<RankPlan, String> {
        let mut storage = LayerStorage::new();
        let mut units = vec![Unit::default(); self.events.len() / 2];
        let floor_bytes = self.floor(&mut units, &mut storage)?;
        let provision = self.provisioned(model, stage, aim)?;
        let mut planned = Vec::new();
        if let Ok(provision) = &provision {
            for &load in loads {
                let rows = model.rows_at(load.0);
                let unmitigated_bytes = unmitigated(model, stage, rows)?;
                let mut outcome = iteration::carry(self, provision, rows)?;
                if let Ok(carried) = &mut outcome
                    && carried.keeps_all()
                {
                    // The ledger counts a layer's work beside all that it keeps; the curve knows the order.
                    carried.peak_bytes = carried.peak_bytes.min(unmitigated_bytes);
                }
                let configured = configured(model, stage, settings, rows)?;
                planned.push(LoadPlan { load, rows, unmitigated_bytes, configured, outcome });
            }
        }
        Ok(RankPlan {
            rank: stage.rank,
            layers: stage.chunks.iter().map(|layers| layers.iter().map(|l| l.number).collect()).collect(),
            static_bytes: stage.static_bytes,
            device_bytes: self.stage.device_bytes,
            host_bytes: self.stage.host_bytes,
            in_flight: most_in_flight(self.events),
            floor_bytes,
            provision,
            loads: planned,
        })
    }

    /// R*, S* and W; or what does not fit.
    pub fn provisioned(
        &self,
        model: &Model,
        stage: &Stage,
        aim: Aim,
    ) -> Result<Result<Provision, Shortage>, String> {
        match static_shortage(model, stage) {
            Some(shortage) => Ok(Err(shortage)),
            None => {
                let mut units = vec![Unit::default(); self.events.len() / 2];
                self.provision(aim, &mut units, &mut LayerStorage::new())
            }
        }
    }

    fn floor(&self, units: &mut [Unit], storage: &mut LayerStorage) -> Result<u64, String> {
        for chunk in 0..self.stage.chunks.len() {
            let floor = self.stage.floor(chunk, storage).map_err(|e| e.to_string())?;
            for micro_batch in 0..self.pipeline.micro_batches {
                units[self.pipeline.unit(micro_batch, chunk as u32) as usize] = Unit::new(floor);
            }
        }
        floor_peak(self.events, units).map_err(|e| e.to_string())
    }

    fn provision(
        &self,
        aim: Aim,
        units: &mut [Unit],
        storage: &mut LayerStorage,
    ) -> Result<Result<Provision, Shortage>, String> {
        match Provision::solve(&self.stage, &self.pipeline, self.events, aim, units, storage) {
            Ok(provision) => Ok(Ok(provision)),
            Err(ProvisionError::Infeasible { part, needed, available }) => {
                let part = match part {
                    Part::Floor => "floor",
                    Part::Work => "work",
                    Part::Host => "host",
                };
                Ok(Err(Shortage { part, needed, available }))
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

/// What lacks for static bytes and floor, whatever the load; found without planning.
pub fn shortage_of_floor(model: &Model, stage: &Stage) -> Option<Shortage> {
    static_shortage(model, stage).or_else(|| {
        let units = |rank: &Rank<'_>| vec![Unit::default(); rank.events.len() / 2];
        let floor = Rank::with(model, stage, |rank| rank.floor(&mut units(rank), &mut LayerStorage::new()));
        let (needed, available) = (floor.ok()?, model.room(stage));
        (needed > available).then_some(Shortage { part: "floor", needed, available })
    })
}

/// The peak of an iteration's curve if everything is kept.
pub fn unmitigated(model: &Model, stage: &Stage, rows: u32) -> Result<u64, String> {
    price(model, stage, &ActivationSettings::default(), rows).map(|configured| configured.peak_bytes)
}

/// What the script's own settings make of an iteration, if it has any.
fn configured(
    model: &Model,
    stage: &Stage,
    settings: &ActivationSettings,
    rows: u32,
) -> Result<Option<Configured>, String> {
    if settings.keeps_all() {
        return Ok(None);
    }
    price(model, stage, settings, rows).map(Some)
}

fn price(
    model: &Model,
    stage: &Stage,
    settings: &ActivationSettings,
    rows: u32,
) -> Result<Configured, String> {
    Configured::new(settings, model, stage, rows).map_err(|error| error.to_string())
}

/// The first static part that passes the device's memory.
fn static_shortage(model: &Model, stage: &Stage) -> Option<Shortage> {
    let StaticBytes {
        weights,
        fp8_weights,
        gradients,
        placeholders,
        optimizer,
        buffers,
        workspaces,
        optimizer_host,
    } = stage.static_bytes;
    if optimizer_host > model.device.host_bytes {
        let available = model.device.host_bytes;
        return Some(Shortage { part: "optimizer_host", needed: optimizer_host, available });
    }
    let weights = weights.saturating_add(fp8_weights);
    let gradients = gradients.saturating_add(placeholders);
    let buffers = buffers.saturating_add(workspaces);
    let available = model.device.memory_bytes.saturating_sub(model.device.margin_bytes);
    let mut sum = 0u64;
    for (part, bytes) in
        [("weights", weights), ("gradients", gradients), ("optimizer", optimizer), ("buffers", buffers)]
    {
        sum = sum.saturating_add(bytes);
        if sum > available {
            return Some(Shortage { part, needed: stage.static_bytes.total(), available });
        }
    }
    None
}
