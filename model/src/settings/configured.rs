//! An iteration of a pipeline rank as Megatron's settings have it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use bagualu_core::curve::{CurveError, OpCost, Point};
use bagualu_core::layer::LayerPlan;
use bagualu_core::schedule::{Pipeline, ScheduleError};

use super::curve::{ChunkCurve, LayerOffload, Setting};
use super::left_behind::left_behind;
use super::offload::{Chooser, Layers, UnitOffload};
use super::overlap::{Nodes, Part, Step, Turn, merge, steps};
use super::recompute::{Recomputed, full_units};
use super::{ActivationSettings, Method, Recompute};
use crate::{LayerRef, LayerType, Model, ModelError, Stage};

/// What settings make of an iteration in which the experts of every layer receive equally many rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Configured {
    /// The strategies of each layer of each chunk, as in the chunk's last unit: Megatron offloads somewhat
    /// less of the first ones that come back. Block inputs may be among the recomputed and the offloaded.
    pub plans: Vec<Vec<LayerPlan>>,
    /// Bytes of activations that are held between forwards and backwards, at their highest.
    pub held_bytes: u64,
    /// The most bytes on the device beside static ones: work, what runs again, and what it leaves behind included.
    pub peak_bytes: u64,
    /// Bytes in host memory at their highest.
    pub host_bytes: u64,
    /// Time of operators in forward and backward, ns.
    pub compute_ns: u64,
    /// Time that the settings add if nothing hides it, ns.
    pub added_ns: u64,
}

impl Configured {
    /// The iteration of `stage` at `rows`; the settings are checked against the model first.
    pub fn new(
        settings: &ActivationSettings,
        model: &Model,
        stage: &Stage,
        rows: u32,
    ) -> Result<Self, SettingsError> {
        Iteration::with(settings, model, stage, rows, |iteration| iteration.run())
    }
}

/// What recomputation makes of each layer of a chunk.
fn set_layers<'t>(
    settings: &ActivationSettings,
    model: &Model,
    types: &'t [LayerType],
    layers: &[LayerRef],
) -> Layers<'t> {
    let units = units(settings, model.config.layers, layers);
    let layers = layers.iter().enumerate().map(|(at, layer)| {
        let layer = &types[layer.layer_type];
        let unit = units.get(&at).cloned();
        let recomputed = match (&settings.recompute, &unit) {
            (Recompute::Selective(modules), _) => {
                Recomputed::selective(layer, modules, model.parallelism.libraries.transformer_engine)
            }
            (_, Some(unit)) => Recomputed::full(layer, unit.start == at),
            _ => Recomputed::default(),
        };
        Setting { layer, recomputed, unit }
    });
    layers.collect()
}

/// The unit of full recomputation of each layer that has one, by position in the chunk. Embedding and output
/// are outside Megatron's `TransformerBlock`; a depth of multi-token prediction is a unit of its own with
/// `uniform`, joint included, and has none with `block` (`multi_token_prediction.py`).
fn units(settings: &ActivationSettings, depth: u32, layers: &[LayerRef]) -> BTreeMap<usize, Range<usize>> {
    let of_model = |layer: &&LayerRef| layer.number.is_some_and(|number| number < depth);
    let first = layers.iter().position(|layer| of_model(&layer)).unwrap_or(0);
    let count = layers.iter().filter(of_model).count();
    let mut units: Vec<_> =
        full_units(settings, count).into_iter().map(|u| u.start + first..u.end + first).collect();
    if matches!(settings.recompute, Recompute::Full { method: Method::Uniform, .. }) {
        let predicted =
            layers.iter().enumerate().filter(|(_, layer)| layer.number.is_some_and(|n| n >= depth));
        units.extend(predicted.map(|(at, _)| at.saturating_sub(1)..at + 1));
    }
    units.into_iter().flat_map(|unit| unit.clone().map(move |at| (at, unit.clone()))).collect()
}

struct Iteration<'a> {
    pipeline: &'a Pipeline,
    steps: &'a [Step],
    chunks: &'a [Layers<'a>],
    /// Of each chunk.
    nodes: Vec<Nodes>,
    units: &'a [UnitOffload],
    rows: u32,
    /// Time of the operators themselves, ns.
    compute_ns: u64,
}

impl Iteration<'_> {
    /// Calls `f` with an iteration of `stage`.
    fn with<T>(
        settings: &ActivationSettings,
        model: &Model,
        stage: &Stage,
        rows: u32,
        f: impl FnOnce(&Iteration<'_>) -> Result<T, SettingsError>,
    ) -> Result<T, SettingsError> {
        settings.check(&model.config, &model.parallelism)?;
        let pipeline = model.pipeline(stage.rank);
        let steps = steps(&pipeline)?;
        let types = settings.layer_types(model);
        let chunks: Vec<Layers<'_>> =
            stage.chunks.iter().map(|layers| set_layers(settings, model, &types, layers)).collect();
        let units = match &settings.offload {
            Some(offload) => {
                let pipeline = &pipeline;
                Chooser { settings, offload, model, chunks: &chunks, pipeline, rows }.choose(&steps)
            }
            None => {
                let none = |chunk: usize| UnitOffload {
                    layers: vec![LayerOffload::default(); chunks[chunk].len()],
                    ..UnitOffload::default()
                };
                (0..pipeline.units()?).map(|unit| none(pipeline.parts(unit).1 as usize)).collect()
            }
        };
        let nodes = stage.chunks.iter().map(|layers| Nodes::new(&types, layers)).collect();
        let compute_ns = model.compute_ns(stage, rows).map_err(CurveError::from)?;
        let (pipeline, steps, chunks, units) = (&pipeline, &steps, &chunks, &units);
        f(&Iteration { pipeline, steps, chunks, nodes, units, rows, compute_ns })
    }

    fn run(&self) -> Result<Configured, SettingsError> {
        let (curves, of_unit) = self.curves()?;
        let walk = self.walk(&curves, &of_unit)?;
        let again = of_unit.iter().map(|&curve| curves[curve].again_ns);
        let copies = self.units.iter().map(|unit| unit.copies_ns);
        Ok(Configured {
            plans: self.plans(),
            held_bytes: walk.held,
            peak_bytes: walk.peak.saturating_add(left_behind(self.chunks)),
            host_bytes: self.host_bytes(),
            compute_ns: self.compute_ns,
            added_ns: again.chain(copies).fold(0, u64::saturating_add),
        })
    }

    fn walk(&self, curves: &[ChunkCurve], of_unit: &[usize]) -> Result<Walk, CurveError> {
        let curve = |unit: u32| &curves[of_unit[unit as usize]];
        let mut merged = BTreeMap::new();
        let mut walk = Walk::default();
        for &step in self.steps {
            match step {
                Step::Forward(unit) => walk.through(&curve(unit).forward, 0)?,
                Step::Backward(unit) => walk.through(&curve(unit).backward, 0)?,
                Step::Both { forward, backward } => {
                    let chunks = [forward, backward].map(|unit| self.chunk(unit as usize));
                    let turns: &Vec<Turn> = merged
                        .entry(chunks)
                        .or_insert_with(|| merge(&self.nodes[chunks[0]], &self.nodes[chunks[1]]));
                    let of = |part: &Part| match part {
                        Part::Forward(ops) => &curve(forward).forward[ops.clone()],
                        Part::Backward(ops) => curve(backward).backward_of(ops),
                    };
                    for Turn { part, beside } in turns {
                        let beside = beside.iter().flat_map(of).map(|op| op.work).max();
                        walk.through(of(part), beside.unwrap_or(0))?;
                    }
                }
            }
            walk.held = walk.held.max(walk.now.bytes);
            walk.step += 1;
        }
        Ok(walk)
    }

    /// The different curves of units, and which is each unit's.
    fn curves(&self) -> Result<(Vec<ChunkCurve>, Vec<usize>), SettingsError> {
        let (mut curves, mut known) = (Vec::new(), BTreeMap::new());
        let mut of_unit = Vec::with_capacity(self.units.len());
        for (unit, offload) in self.units.iter().enumerate() {
            let chunk = self.chunk(unit);
            let next = curves.len();
            let index = *known.entry((chunk, &offload.layers)).or_insert(next);
            if index == next {
                curves.push(ChunkCurve::new(&self.chunks[chunk], &offload.layers, self.rows)?);
            }
            of_unit.push(index);
        }
        Ok((curves, of_unit))
    }

    /// The plans of each chunk's last unit.
    fn plans(&self) -> Vec<Vec<LayerPlan>> {
        let last = |chunk| self.pipeline.unit(self.pipeline.micro_batches - 1, chunk) as usize;
        let plan = |(chunk, layers): (usize, &Layers<'_>)| {
            let offload = &self.units[last(chunk as u32)].layers;
            layers.iter().zip(offload).map(|(layer, offload)| layer.plan(offload.tensors())).collect()
        };
        self.chunks.iter().enumerate().map(plan).collect()
    }

    fn host_bytes(&self) -> u64 {
        let (mut now, mut most) = (0u64, 0);
        let of = |unit: Option<u32>| unit.map_or(0, |unit| self.units[unit as usize].host_bytes);
        for step in self.steps {
            now = now.saturating_add(of(step.forward()));
            most = most.max(now);
            now = now.saturating_sub(of(step.backward()));
        }
        most
    }

    fn chunk(&self, unit: usize) -> usize {
        self.pipeline.parts(unit as u32).1 as usize
    }
}

/// The curve of an iteration so far.
#[derive(Default)]
struct Walk {
    now: Point,
    step: usize,
    /// The most at a corner.
    peak: u64,
    /// The most between two steps.
    held: u64,
}

impl Walk {
    /// Operators one after another, beside so many bytes of others' work.
    fn through(&mut self, ops: &[OpCost], beside: u64) -> Result<(), CurveError> {
        for op in ops {
            let overflow = CurveError::Overflow { at: self.step };
            let work = op.work.checked_add(beside).ok_or(overflow)?;
            let (highest, end) = self.now.through(&OpCost { work, ..*op }, self.step)?;
            (self.now, self.peak) = (end, self.peak.max(highest.bytes));
        }
        Ok(())
    }
}

/// Why settings make no iteration.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SettingsError {
    /// They break a rule.
    Model(ModelError),
    /// The pipeline has no schedule.
    Schedule(ScheduleError),
    /// Bytes or times cannot be counted.
    Curve(CurveError),
}

impl From<ModelError> for SettingsError {
    fn from(error: ModelError) -> Self {
        Self::Model(error)
    }
}

impl From<ScheduleError> for SettingsError {
    fn from(error: ScheduleError) -> Self {
        Self::Schedule(error)
    }
}

impl From<CurveError> for SettingsError {
    fn from(error: CurveError) -> Self {
        Self::Curve(error)
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model(error) => error.fmt(f),
            Self::Schedule(error) => error.fmt(f),
            Self::Curve(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SettingsError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Offload, OffloadModule, RecomputeModule};
    use crate::{Device, Preset};

    /// Whatever is offloaded, recomputed and overlapped, each unit's bytes are free once all backwards are done.
    #[test]
    fn nothing_is_left_at_the_end() {
        let preset = Preset::named("glm-188b-a20b", None).expect("a preset");
        let device = Device::named("dcu-64g").expect("a preset");
        let modules = [
            vec![OffloadModule::MoeAct],
            vec![OffloadModule::CoreAttn, OffloadModule::AttnProj],
            OffloadModule::ALL[..7].to_vec(),
        ];
        let recomputes = [
            Recompute::None,
            Recompute::Selective(vec![RecomputeModule::MoeAct, RecomputeModule::Layernorm]),
        ];
        let offloads = modules.map(|modules| Some(Offload { modules, ..Offload::default() }));
        for (overlap_ep, recompute) in
            [false, true].iter().flat_map(|o| recomputes.iter().map(move |r| (o, r)))
        {
            let parallelism = crate::Parallelism { overlap_ep: *overlap_ep, ..preset.parallelism.clone() };
            let model = Model::new(&preset.config, &parallelism, &device).expect("a model");
            for offload in offloads.iter().chain([&None]) {
                let settings = ActivationSettings { recompute: recompute.clone(), offload: offload.clone() };
                for stage in &model.stages {
                    let end = Iteration::with(&settings, &model, stage, model.balanced_rows, |iteration| {
                        let (curves, of_unit) = iteration.curves()?;
                        Ok(iteration.walk(&curves, &of_unit)?.now.bytes)
                    });
                    assert_eq!(end, Ok(0), "{settings:?}, overlap {overlap_ep}, rank {}", stage.rank);
                }
            }
        }
    }
}
