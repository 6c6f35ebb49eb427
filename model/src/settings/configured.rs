//! An iteration of a pipeline rank as Megatron's settings have it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use bagualu_core::curve::{CurveError, peak, triangle_peak};
use bagualu_core::layer::LayerPlan;
use bagualu_core::schedule::{Event, Pipeline, ScheduleError};
use bagualu_core::set::Set;

use super::curve::{ChunkCurve, Setting};
use super::left_behind::left_behind;
use super::offload::{Chooser, Layers, UnitOffload};
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
        settings.check(&model.config, &model.parallelism)?;
        let pipeline = model.pipeline(stage.rank);
        let mut events = vec![Event::Forward(0); 2 * pipeline.units()? as usize];
        pipeline.events(&mut events)?;
        let types = settings.layer_types(model);
        let chunks: Vec<Layers<'_>> = stage
            .chunks
            .iter()
            .map(|layers| set_layers(settings, &types, model.config.layers, layers))
            .collect();
        let units = match &settings.offload {
            Some(offload) => {
                let pipeline = &pipeline;
                Chooser { settings, offload, model, chunks: &chunks, pipeline, rows }.choose(&events)
            }
            None => {
                let none = |chunk: usize| UnitOffload {
                    tensors: vec![Set::EMPTY; chunks[chunk].len()],
                    ..UnitOffload::default()
                };
                (0..events.len() as u32 / 2).map(|unit| none(pipeline.parts(unit).1 as usize)).collect()
            }
        };
        let compute_ns = model.compute_ns(stage, rows).map_err(CurveError::from)?;
        let (pipeline, events) = (&pipeline, &events);
        Iteration { pipeline, events, chunks: &chunks, units: &units, rows, compute_ns }.run()
    }
}

/// What recomputation makes of each layer of a chunk.
fn set_layers<'t>(
    settings: &ActivationSettings,
    types: &'t [LayerType],
    depth: u32,
    layers: &[LayerRef],
) -> Layers<'t> {
    let units = units(settings, depth, layers);
    let layers = layers.iter().enumerate().map(|(at, layer)| {
        let layer = &types[layer.layer_type];
        let unit = units.get(&at).cloned();
        let recomputed = match (&settings.recompute, &unit) {
            (Recompute::Selective(modules), _) => {
                Recomputed::selective(layer, modules, settings.transformer_engine)
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
    events: &'a [Event],
    chunks: &'a [Layers<'a>],
    units: &'a [UnitOffload],
    rows: u32,
    /// Time of the operators themselves, ns.
    compute_ns: u64,
}

impl Iteration<'_> {
    fn run(&self) -> Result<Configured, SettingsError> {
        let (curves, of_unit) = self.curves()?;
        let costs = |event| {
            let (unit, forward) = match event {
                Event::Forward(unit) => (unit, true),
                Event::Backward(unit) => (unit, false),
            };
            let curve: &ChunkCurve = &curves[of_unit[unit as usize]];
            if forward { &curve.forward[..] } else { &curve.backward[..] }
        };
        let again = of_unit.iter().map(|&curve| curves[curve].again_ns);
        let copies = self.units.iter().map(|unit| unit.copies_ns);
        Ok(Configured {
            plans: self.plans(),
            held_bytes: triangle_peak(self.events, costs)?,
            peak_bytes: peak(self.events, costs)?.bytes.saturating_add(left_behind(self.chunks)),
            host_bytes: self.host_bytes(),
            compute_ns: self.compute_ns,
            added_ns: again.chain(copies).fold(0, u64::saturating_add),
        })
    }

    /// The different curves of units, and which is each unit's.
    fn curves(&self) -> Result<(Vec<ChunkCurve>, Vec<usize>), SettingsError> {
        let (mut curves, mut known) = (Vec::new(), BTreeMap::new());
        let mut of_unit = Vec::with_capacity(self.units.len());
        for (unit, offload) in self.units.iter().enumerate() {
            let chunk = self.chunk(unit);
            let bits: Vec<u64> = offload.tensors.iter().map(|set| set.bits()).collect();
            let next = curves.len();
            let index = *known.entry((chunk, bits)).or_insert(next);
            if index == next {
                curves.push(ChunkCurve::new(&self.chunks[chunk], &offload.tensors, self.rows)?);
            }
            of_unit.push(index);
        }
        Ok((curves, of_unit))
    }

    /// The plans of each chunk's last unit.
    fn plans(&self) -> Vec<Vec<LayerPlan>> {
        let last = |chunk| self.pipeline.unit(self.pipeline.micro_batches - 1, chunk) as usize;
        let plan = |(chunk, layers): (usize, &Layers<'_>)| {
            let offload = &self.units[last(chunk as u32)].tensors;
            layers.iter().zip(offload).map(|(layer, &offload)| layer.plan(offload)).collect()
        };
        self.chunks.iter().enumerate().map(plan).collect()
    }

    fn host_bytes(&self) -> u64 {
        let (mut now, mut most) = (0u64, 0);
        for event in self.events {
            match *event {
                Event::Forward(unit) => now = now.saturating_add(self.units[unit as usize].host_bytes),
                Event::Backward(unit) => now = now.saturating_sub(self.units[unit as usize].host_bytes),
            }
            most = most.max(now);
        }
        most
    }

    fn chunk(&self, unit: usize) -> usize {
        self.pipeline.parts(unit as u32).1 as usize
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
