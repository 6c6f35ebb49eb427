//! The answer of `bagualu explain`, as its JSON is (`docs/formats.md`); people get it as text.

use bagualu_core::controller::LayerRecord;
use bagualu_core::cost::LayerStorage;
use bagualu_core::layer::{Collectives, Group, Layer};
use bagualu_core::mitigate::{FrontPoint, evaluate};
use bagualu_core::provision::Aim;
use bagualu_core::set::Set;
use bagualu_core::stage::Recompute;
use bagualu_model::{LayerRef, LayerType, Stage};
use serde::Serialize;

use super::observe::Observed;
use super::tensor::{Room, Tensor};
use crate::Error;
use crate::input::Loaded;
use crate::plan::iteration::Decided;
use crate::plan::load::LoadFactor;
use crate::plan::rank::Rank;
use crate::spike::reserve;

/// Version of the format: changes where a field changes its meaning or goes.
const VERSION: u32 = 1;

/// One micro-batch of one pipeline rank, explained.
#[derive(Serialize)]
pub struct Answer<'a> {
    version: u32,
    pub source: &'a str,
    pub device: String,
    pub rank: u32,
    pub chunk: u32,
    pub micro_batch: u32,
    /// Whether the micro-batch is the one in whose forward or backward the device is fullest.
    pub at_peak: bool,
    pub load: f64,
    pub rows: u32,
    /// Whether everything is kept.
    pub keeps_all: bool,
    /// D, and the most on the device while the unit's own operators ran.
    pub device_bytes: u64,
    pub fullest_bytes: u64,
    pub fullest_in_forward: bool,
    pub bounds: Bounds,
    pub row_threshold: u32,
    pub dispatch_threshold: u32,
    /// W, set aside for work, and the load that is aimed at.
    pub work_bytes: u64,
    pub spike: f64,
    /// The same in words.
    #[serde(skip)]
    pub reserve: String,
    /// Of all layers of the chunk.
    #[serde(flatten)]
    pub totals: Totals,
    pub groups: Vec<LayerGroup<'a>>,
}

/// What the controller let the unit hold.
#[derive(Serialize)]
pub struct Bounds {
    pub quota_bytes: u64,
    pub limit_bytes: u64,
    pub host_limit_bytes: u64,
}

/// What layers hold between forward and backward, and what that costs.
#[derive(Serialize, Clone, Copy, Default)]
pub struct Totals {
    /// Device bytes if everything were kept.
    pub full_bytes: u64,
    pub held_bytes: u64,
    pub offloaded_bytes: u64,
    pub added_ns: u64,
}

impl Totals {
    fn plus(self, one: Self, times: u64) -> Self {
        let add = |sum: u64, one: u64| sum.saturating_add(one.saturating_mul(times));
        Self {
            full_bytes: add(self.full_bytes, one.full_bytes),
            held_bytes: add(self.held_bytes, one.held_bytes),
            offloaded_bytes: add(self.offloaded_bytes, one.offloaded_bytes),
            added_ns: add(self.added_ns, one.added_ns),
        }
    }
}

/// Neighbouring layers of one type that are treated alike; every number is of one of them.
#[derive(Serialize)]
pub struct LayerGroup<'a> {
    /// Numbers of the transformer layers, from 0; `null` for embedding and output.
    pub layers: Vec<Option<u32>>,
    pub layer_type: &'static str,
    pub rows: u32,
    #[serde(serialize_with = "recompute_name")]
    pub recompute: Recompute,
    pub dispatch_chunks: u32,
    pub expert_chunks: u32,
    /// Whether the real rows changed the plan made before the forward.
    pub replanned: bool,
    /// What the unit may hold beyond what it was to hold when the layer was decided: of the tightest layer.
    pub room: Room,
    #[serde(flatten)]
    pub totals: Totals,
    pub tensors: Vec<Tensor<'a>>,
    pub ops: Vec<Op>,
}

/// An operator, by the names of its tensors.
#[derive(Serialize)]
pub struct Op {
    name: &'static str,
    reads: Vec<&'static str>,
    makes: Vec<&'static str>,
    saves: Vec<&'static str>,
    forward_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    collective: Option<Group>,
}

impl<'a> Answer<'a> {
    /// Explains what was observed; an error is a sentence about the input.
    pub fn new(
        loaded: &'a Loaded,
        rank: &Rank<'_>,
        stage: &Stage,
        load: LoadFactor,
        aim: Aim,
        observed: &Observed,
    ) -> Result<Self, String> {
        let model = &loaded.model;
        let layers = &stage.chunks[observed.chunk as usize];
        let first = observed.layers.first().ok_or("the chunk has no layers")?;
        let groups = alike(rank, layers, &observed.layers)
            .into_iter()
            .map(|alike| LayerGroup::new(&model.types[alike.kind], rank, alike))
            .collect::<Result<Vec<_>, _>>()?;
        let sum = |sum: Totals, g: &LayerGroup<'_>| sum.plus(g.totals, g.layers.len() as u64);
        Ok(Self {
            version: VERSION,
            source: &loaded.source,
            device: model.device.name.to_string(),
            rank: stage.rank,
            chunk: observed.chunk,
            micro_batch: observed.micro_batch,
            at_peak: observed.at_peak,
            load: f64::from(load.0) / 1_000.0,
            rows: model.rows_at(load.0),
            keeps_all: observed.layers.iter().all(keeps_all),
            device_bytes: rank.stage.device_bytes,
            fullest_bytes: observed.fullest.bytes,
            fullest_in_forward: observed.fullest.in_forward,
            bounds: Bounds {
                quota_bytes: first.device.quota,
                limit_bytes: first.device.limit,
                host_limit_bytes: first.host.limit,
            },
            row_threshold: observed.provision.row_threshold,
            dispatch_threshold: observed.provision.dispatch_threshold,
            work_bytes: observed.provision.work_bytes,
            spike: f64::from(aim.spike) / 1_000.0,
            reserve: reserve(model, &observed.provision, aim),
            totals: groups.iter().fold(Totals::default(), sum),
            groups,
        })
    }

    /// Leaves the groups that the user asks for; totals stay those of the chunk.
    pub fn only(&mut self, layer: Option<u32>, layer_type: Option<&str>) -> Result<(), Error> {
        if let Some(number) = layer {
            let there: Vec<_> = self.groups.iter().flat_map(|g| &g.layers).flatten().copied().collect();
            self.groups.retain(|group| group.layers.contains(&Some(number)));
            if self.groups.is_empty() {
                let fix = match (there.first(), there.last()) {
                    (Some(first), Some(last)) => {
                        format!("give one from {first} to {last}, or another --chunk or --rank")
                    }
                    _ => "it has none".to_owned(),
                };
                return Err(Error::bad_input(
                    "--layer",
                    format!("there is no layer {number} in the chunk"),
                    fix,
                ));
            }
        }
        if let Some(name) = layer_type {
            let mut there: Vec<_> = self.groups.iter().map(|group| group.layer_type).collect();
            self.groups.retain(|group| group.layer_type == name);
            if self.groups.is_empty() {
                there.dedup();
                let problem = format!("{name:?} is no layer type of the chunk");
                return Err(Error::bad_input(
                    "--layer-type",
                    problem,
                    format!("give one of {}", there.join(", ")),
                ));
            }
        }
        Ok(())
    }
}

/// Neighbouring layers for which the same was decided.
struct Alike<'o> {
    kind: usize,
    numbers: Vec<Option<u32>>,
    decided: &'o Decided,
    room: Room,
}

fn alike<'o>(rank: &Rank<'_>, layers: &[LayerRef], decided: &'o [Decided]) -> Vec<Alike<'o>> {
    let offloaded = decided.iter().fold(0u64, |sum, d| sum.saturating_add(d.record.offload_bytes));
    let mut all: Vec<Alike<'o>> = Vec::new();
    for (layer, decided) in layers.iter().zip(decided) {
        let routed = rank.stage.types[layer.layer_type].routed;
        let room = Room::new(decided, offloaded, if routed { rank.stage.balanced_rows } else { 0 });
        let same = |a: &Alike<'_>| {
            a.kind == layer.layer_type
                && a.decided.record == decided.record
                && a.decided.replanned == decided.replanned
        };
        match all.last_mut().filter(|last| same(last)) {
            Some(last) => {
                last.numbers.push(layer.number);
                last.room = last.room.tighter(room);
            }
            None => {
                let (kind, numbers) = (layer.layer_type, vec![layer.number]);
                all.push(Alike { kind, numbers, decided, room });
            }
        }
    }
    all
}

fn keeps_all(decided: &Decided) -> bool {
    let plan = decided.record.plan;
    (plan.recompute | plan.offload | plan.quantize).is_empty()
}

impl<'a> LayerGroup<'a> {
    fn new(kind: &'a LayerType, rank: &Rank<'_>, alike: Alike<'_>) -> Result<Self, String> {
        let Alike { kind: index, numbers, decided, room } = alike;
        let (record, stage, index) = (&decided.record, &rank.stage, index as u16);
        let (mut whole, mut local) = (LayerStorage::new(), LayerStorage::new());
        let forced = stage.forced(index, record.recompute, &mut local).map_err(|e| e.to_string())?;
        let local =
            stage.layer(index, record.rows, record.recompute, &mut local).map_err(|e| e.to_string())?;
        let whole = kind.model().at(record.rows, &stage.rooflines, &mut whole).map_err(|e| e.to_string())?;
        let chosen = evaluate(&whole, &record.plan, Collectives::ALL).map_err(|e| e.to_string())?;
        let view = View {
            kind,
            whole: &whole,
            local: &local,
            forced,
            chosen,
            record,
            replanned: decided.replanned,
            room,
        };
        let saved = whole.saved() | whole.block_inputs();
        Ok(Self {
            layers: numbers,
            layer_type: kind.name,
            rows: record.rows,
            recompute: record.recompute,
            dispatch_chunks: record.dispatch_chunks,
            expert_chunks: record.expert_chunks,
            replanned: decided.replanned,
            room,
            totals: Totals {
                full_bytes: whole.full_bytes(),
                held_bytes: chosen.bytes,
                offloaded_bytes: chosen.host_bytes,
                added_ns: chosen.added_ns,
            },
            tensors: saved.iter().map(|t| Tensor::new(&view, t)).collect::<Result<_, _>>()?,
            ops: (0..whole.ops().len()).map(|op| view.op(op)).collect(),
        })
    }
}

/// A layer as it was decided.
pub struct View<'v, 'a> {
    pub kind: &'a LayerType,
    /// With everything saved.
    pub whole: &'v Layer<'v>,
    /// As the rank's own selection saw it.
    pub local: &'v Layer<'v>,
    /// Tensors that are recomputed whatever the budget.
    pub forced: Set,
    /// The plan, and what it holds and costs.
    pub chosen: FrontPoint,
    pub record: &'v LayerRecord,
    /// Whether the real rows changed the plan made before the forward.
    pub replanned: bool,
    pub room: Room,
}

impl View<'_, '_> {
    /// Names of operators.
    pub fn ops(&self, of: impl Fn(usize) -> bool) -> Vec<&'static str> {
        (0..self.whole.ops().len()).filter(|&op| of(op)).map(|op| self.kind.op_names[op]).collect()
    }

    fn op(&self, index: usize) -> Op {
        let op = &self.whole.ops()[index];
        let names = |set: Set| set.iter().map(|t| self.kind.tensor_names[t]).collect();
        Op {
            name: self.kind.op_names[index],
            reads: names(op.reads),
            makes: names(op.makes),
            saves: names(op.saves),
            forward_ns: op.forward_ns,
            collective: op.collective,
        }
    }
}

fn recompute_name<S: serde::Serializer>(recompute: &Recompute, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(match recompute {
        Recompute::Local => "local",
        Recompute::WholeMoe => "whole_moe",
        Recompute::Full => "full",
    })
}
