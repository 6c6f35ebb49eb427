//! Selection for the layers of a micro-batch that have not run, from cached fronts.
//!
//! A front depends on a layer's type, its rows and its recompute mode alone, not on the budget. Rows are
//! rounded *up* to a granule, so that few fronts serve a run and none promises fewer bytes than its layer
//! will hold.

use core::fmt;

use crate::cost::LayerStorage;
use crate::layer::{Collectives, LayerPlan};
use crate::limits::MAX_LAYERS;
use crate::mitigate::{
    ChooseScratch, Class, Config, FrontPoint, FrontScratch, Limits, MitigateError, Selection, choose,
    evaluate, front,
};
use crate::plan_cache::CacheStatistics;
use crate::set::Set;
use crate::stage::{Recompute, StageError, StageModel};

/// A layer as the planner sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Demand {
    /// Its rows: real where its gate has run, expected otherwise.
    pub rows: u32,
    /// What is recomputed whatever the budget.
    pub recompute: Recompute,
    /// It is never planned below this many bytes (g at R* for a layer whose gate has not run).
    pub least_bytes: u64,
}

/// What is to be planned.
#[derive(Clone, Copy, Debug)]
pub struct Request<'r> {
    /// The types of the layers.
    pub kinds: &'r [u16],
    /// What is known of each layer.
    pub demands: &'r [Demand],
    /// What they may hold together.
    pub limits: Limits,
    /// What the first of them may hold; `u64::MAX` for no limit of its own.
    pub first_bytes: u64,
}

/// One cached front.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrontSlot {
    key: Option<FrontKey>,
    len: u16,
    /// Time and tensors of what is recomputed whatever the budget.
    forced_ns: u64,
    forced: Set,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FrontKey {
    kind: u16,
    rows: u32,
    recompute: Recompute,
    /// Whether offloading is among the strategies.
    offload: bool,
}

/// The planner's storage, all of it the caller's.
#[derive(Debug)]
pub struct PlannerStorage<'a> {
    /// Cached fronts: at least two per layer type; more keep more row counts.
    pub fronts: &'a mut [FrontSlot],
    /// Points of the fronts, shared out evenly.
    pub points: &'a mut [FrontPoint],
    /// Scratch of the front search.
    pub front: &'a mut FrontScratch,
    /// Scratch of the knapsack.
    pub choose: &'a mut ChooseScratch,
    /// Scratch of the layer evaluation.
    pub layer: &'a mut LayerStorage,
}

/// Plans layers against limits.
#[derive(Debug)]
pub struct Planner<'a> {
    storage: PlannerStorage<'a>,
    config: Config,
    granule: u32,
    next: usize,
    statistics: CacheStatistics,
}

impl<'a> Planner<'a> {
    /// A planner that rounds rows up to a multiple of `granule`.
    pub fn new(storage: PlannerStorage<'a>, config: Config, granule: u32) -> Result<Self, PlannerError> {
        let slots = storage.fronts.len();
        if slots == 0 || storage.points.len() / slots == 0 {
            return Err(PlannerError::NoStorage { fronts: slots, points: storage.points.len() });
        }
        storage.fronts.fill(FrontSlot::default());
        Ok(Self { storage, config, granule: granule.max(1), next: 0, statistics: CacheStatistics::default() })
    }

    /// Rows rounded up to the granule.
    pub fn round_up(&self, rows: u32) -> u32 {
        round_rows(rows, self.granule)
    }

    /// Plans the layers of a request, one plan each.
    ///
    /// Rows are rounded up, or taken as they are where that leaves no plan.
    pub fn plan(
        &mut self,
        stage: &StageModel<'_>,
        request: &Request<'_>,
        plans: &mut [LayerPlan],
    ) -> Result<Selection, PlannerError> {
        let count = request.kinds.len();
        if count > MAX_LAYERS {
            return Err(MitigateError::TooManyLayers { count }.into());
        }
        if request.demands.len() < count || plans.len() < count {
            return Err(MitigateError::PlansTooShort { plans: plans.len(), layers: count }.into());
        }
        let rounded = self.granule;
        match self.plan_in(rounded, stage, request, plans) {
            Err(error) if error.is_infeasible() && rounded > 1 => self.plan_in(1, stage, request, plans),
            planned => planned,
        }
    }

    fn plan_in(
        &mut self,
        granule: u32,
        stage: &StageModel<'_>,
        request: &Request<'_>,
        plans: &mut [LayerPlan],
    ) -> Result<Selection, PlannerError> {
        match self.plan_with(granule, true, stage, request, plans) {
            // A front keeps the fewest bytes for a time, whatever they take of the host.
            Err(error) if error.is_short_of_host() => self.plan_with(granule, false, stage, request, plans),
            planned => planned,
        }
    }

    fn plan_with(
        &mut self,
        granule: u32,
        offload: bool,
        stage: &StageModel<'_>,
        request: &Request<'_>,
        plans: &mut [LayerPlan],
    ) -> Result<Selection, PlannerError> {
        let &Request { kinds, demands, limits, first_bytes } = request;
        let without = StageModel { rooflines: stage.rooflines.without_copies(), ..*stage };
        let stage = if offload { stage } else { &without };
        let mut slots = [0usize; MAX_LAYERS];
        for (layer, (&kind, demand)) in kinds.iter().zip(demands).enumerate() {
            let rows = round_rows(demand.rows, granule);
            let key = FrontKey { kind, rows, recompute: demand.recompute, offload };
            slots[layer] = self.front(stage, key, &slots[..layer])?;
        }
        let slots = &slots[..kinds.len()];
        let mut picks = [0u16; MAX_LAYERS];
        let mut selection = self.choose(slots, demands, limits, first_bytes, &mut picks)?;
        for (layer, &slot) in slots.iter().enumerate() {
            let (front, points) = self.slot(slot);
            plans[layer] = points[picks[layer] as usize].plan;
            plans[layer].recompute |= front.forced;
            selection.added_ns = selection.added_ns.saturating_add(front.forced_ns);
        }
        Ok(selection)
    }

    /// How often a layer's front was known.
    pub fn statistics(&self) -> CacheStatistics {
        self.statistics
    }

    /// Storage for evaluating a layer between plans.
    pub fn layer_storage(&mut self) -> &mut LayerStorage {
        self.storage.layer
    }

    fn choose(
        &mut self,
        slots: &[usize],
        demands: &[Demand],
        limits: Limits,
        first_bytes: u64,
        picks: &mut [u16; MAX_LAYERS],
    ) -> Result<Selection, PlannerError> {
        let per_slot = self.storage.points.len() / self.storage.fronts.len();
        let mut classes = [Class { points: &[], least_bytes: 0 }; MAX_LAYERS];
        for (layer, (&slot, demand)) in slots.iter().zip(demands).enumerate() {
            let len = self.storage.fronts[slot].len as usize;
            let mut points = &self.storage.points[slot * per_slot..][..len];
            if layer == 0 {
                points = &points[..points.partition_point(|p| p.bytes <= first_bytes)];
            }
            classes[layer] = Class { points, least_bytes: demand.least_bytes };
        }
        let classes = &classes[..slots.len()];
        if let Some(Class { points: [], .. }) = classes.first() {
            let least = self.slot(slots[0]).1.first().map_or(0, |p| p.bytes);
            return Err(MitigateError::Infeasible { least, limit: first_bytes }.into());
        }
        let picks = &mut picks[..slots.len()];
        Ok(choose(classes, limits, &self.config, self.storage.choose, picks)?)
    }

    /// The slot of a layer's front, computed if need be. Slots in `taken` stay.
    fn front(
        &mut self,
        stage: &StageModel<'_>,
        key: FrontKey,
        taken: &[usize],
    ) -> Result<usize, PlannerError> {
        if let Some(slot) = self.storage.fronts.iter().position(|s| s.key == Some(key)) {
            self.statistics.hits += 1;
            return Ok(slot);
        }
        self.statistics.misses += 1;
        let slot = self.free_slot(taken)?;
        self.fill(stage, key, slot)?;
        Ok(slot)
    }

    /// The next slot in turn that is not in use.
    fn free_slot(&mut self, taken: &[usize]) -> Result<usize, PlannerError> {
        let slots = self.storage.fronts.len();
        for _ in 0..slots {
            let slot = self.next;
            self.next = (self.next + 1) % slots;
            if !taken.contains(&slot) {
                return Ok(slot);
            }
        }
        Err(PlannerError::NoStorage { fronts: slots, points: self.storage.points.len() })
    }

    fn fill(&mut self, stage: &StageModel<'_>, key: FrontKey, slot: usize) -> Result<(), PlannerError> {
        let forced = stage.forced(key.kind, key.recompute, self.storage.layer)?;
        let forced_ns = self.forced_ns(stage, key, forced)?;
        let layer = stage.layer(key.kind, key.rows, key.recompute, self.storage.layer)?;
        let per_slot = self.storage.points.len() / self.storage.fronts.len();
        let points = &mut self.storage.points[slot * per_slot..][..per_slot];
        // A slot half filled by an error must not be found.
        self.storage.fronts[slot] = FrontSlot::default();
        let len = front(&layer, Collectives::NONE, self.storage.front, points)?;
        let len = u16::try_from(len).unwrap_or(u16::MAX);
        self.storage.fronts[slot] = FrontSlot { key: Some(key), len, forced_ns, forced };
        Ok(())
    }

    /// Time of re-running what makes the `forced` tensors. A local choice that re-runs the same operator
    /// counts it again: the sum is an upper bound.
    fn forced_ns(&mut self, stage: &StageModel<'_>, key: FrontKey, forced: Set) -> Result<u64, PlannerError> {
        if forced.is_empty() {
            return Ok(0);
        }
        let layer = stage.layer(key.kind, key.rows, Recompute::Local, self.storage.layer)?;
        let plan = LayerPlan { recompute: forced, ..LayerPlan::KEEP };
        let point = evaluate(&layer, &plan, Collectives::ALL)
            .map_err(|refused| MitigateError::Refused { layer: 0, refused })?;
        Ok(point.added_ns)
    }

    fn slot(&self, slot: usize) -> (&FrontSlot, &[FrontPoint]) {
        let per_slot = self.storage.points.len() / self.storage.fronts.len();
        let front = &self.storage.fronts[slot];
        (front, &self.storage.points[slot * per_slot..][..front.len as usize])
    }
}

fn round_rows(rows: u32, granule: u32) -> u32 {
    rows.div_ceil(granule).saturating_mul(granule)
}

/// Why nothing could be planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PlannerError {
    /// The caller's storage holds no front, or fewer than one selection needs.
    NoStorage {
        /// Front slots given.
        fronts: usize,
        /// Points given.
        points: usize,
    },
    /// The selection failed.
    Mitigate(MitigateError),
    /// The stage is refused.
    Stage(StageError),
}

impl PlannerError {
    /// Whether no plan exists within the limits, rather than something being wrong.
    pub fn is_infeasible(&self) -> bool {
        self.is_short_of_host() || matches!(self, Self::Mitigate(MitigateError::Infeasible { .. }))
    }

    /// Whether it is the host limit within which no plan was found.
    fn is_short_of_host(&self) -> bool {
        use MitigateError::{HostInfeasible, HostUndecided};
        matches!(self, Self::Mitigate(HostInfeasible { .. } | HostUndecided { .. }))
    }
}

impl From<MitigateError> for PlannerError {
    fn from(error: MitigateError) -> Self {
        Self::Mitigate(error)
    }
}

impl From<StageError> for PlannerError {
    fn from(error: StageError) -> Self {
        Self::Stage(error)
    }
}

impl fmt::Display for PlannerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStorage { fronts, points } => write!(
                f,
                "{fronts} front slots with {points} points are too few for one selection; give two slots per \
                 layer type and some hundred points each"
            ),
            Self::Mitigate(error) => error.fmt(f),
            Self::Stage(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for PlannerError {}
