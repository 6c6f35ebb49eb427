//! The exact selector: a knapsack over the independent parts of all layers.

use super::choose::{within_host, without_host};
use super::front::{Labels, Parts};
use super::{
    ChooseScratch, Class, Config, FrontPoint, FrontScratch, MitigateError, Problem, Selection, Selector,
};
use crate::layer::LayerPlan;
use crate::limits::{MAX_CLASSES, MAX_POINTS};

/// Working storage of [`Exact`].
#[derive(Clone, Debug)]
pub struct ExactStorage {
    front: FrontScratch,
    choose: ChooseScratch,
    points: [FrontPoint; MAX_POINTS],
    picks: [u16; MAX_CLASSES],
}

impl ExactStorage {
    /// Empty storage.
    pub const fn new() -> Self {
        const POINT: FrontPoint =
            FrontPoint { bytes: 0, host_bytes: 0, added_ns: 0, slack_ns: 0, plan: LayerPlan::KEEP };
        Self {
            front: FrontScratch::new(),
            choose: ChooseScratch::new(),
            points: [POINT; MAX_POINTS],
            picks: [0; MAX_CLASSES],
        }
    }
}

impl Default for ExactStorage {
    fn default() -> Self {
        Self::new()
    }
}

/// The default selector: the least added time, proven (design §7).
///
/// Layers fall apart into parts that do not influence each other; the parts' fronts are short, and a
/// multiple-choice knapsack over them is exact.
#[derive(Debug)]
pub struct Exact<'s> {
    storage: &'s mut ExactStorage,
    config: Config,
}

impl<'s> Exact<'s> {
    /// A selector that works in `storage`.
    pub fn new(storage: &'s mut ExactStorage, config: Config) -> Self {
        Self { storage, config }
    }
}

impl Selector for Exact<'_> {
    fn select(&mut self, problem: &Problem<'_>, plans: &mut [LayerPlan]) -> Result<Selection, MitigateError> {
        problem.start(plans)?;
        let limits = problem.limits;
        let ExactStorage { front, choose, points, picks } = &mut *self.storage;
        let mut fronts = Fronts::new(problem, false, front, points)?;
        let mut selection = without_host(&fronts.classes(), limits.bytes, &self.config, choose, picks)?;
        if selection.host_bytes > limits.host_bytes {
            fronts = Fronts::new(problem, true, front, points)?;
            selection = within_host(&fronts.classes(), limits, &self.config, choose, picks)?;
        }
        fronts.write(picks, plans);
        Ok(selection)
    }
}

/// The fronts of all parts of all layers.
struct Fronts<'s> {
    points: &'s [FrontPoint],
    /// For each part its layer and the end of its points.
    parts: heapless::Vec<(u8, u16), MAX_CLASSES>,
}

impl<'s> Fronts<'s> {
    fn new(
        problem: &Problem<'_>,
        host: bool,
        scratch: &mut FrontScratch,
        points: &'s mut [FrontPoint],
    ) -> Result<Self, MitigateError> {
        let mut parts = heapless::Vec::new();
        let mut end = 0;
        let mut labels = Labels::new(scratch, host);
        for (index, layer) in problem.layers.iter().enumerate() {
            let taken = Parts::new(layer, problem.allow);
            // Each layer an equal share of the room, each part of it at most half of what is left of that:
            // a front that is long enough to be thinned leaves room for the others.
            let mut room = (points.len() - end) / (problem.layers.len() - index);
            let mut base = layer.bytes(layer.block_inputs());
            for part in taken.iter().map(Some).chain((taken.len() == 0).then_some(None)) {
                labels.start(core::mem::take(&mut base));
                if let Some(part) = part {
                    taken.decide(part, &mut labels);
                }
                let share = room.min((room / 2).max(4));
                let len = labels.write(&mut points[end..end + share])?;
                (end, room) = (end + len, room - len);
                let full = MitigateError::TooManyClasses { count: MAX_CLASSES + 1 };
                parts.push((index as u8, end as u16)).map_err(|_| full)?;
            }
        }
        Ok(Self { points, parts })
    }

    fn classes(&self) -> heapless::Vec<Class<'s>, MAX_CLASSES> {
        let starts = core::iter::once(0).chain(self.parts.iter().map(|part| part.1));
        let ranges = starts.zip(&self.parts);
        ranges
            .map(|(start, &(_, end))| Class {
                points: &self.points[usize::from(start)..usize::from(end)],
                least_bytes: 0,
            })
            .collect()
    }

    /// Joins the picked configurations of each layer's parts.
    fn write(&self, picks: &[u16], plans: &mut [LayerPlan]) {
        for ((&(layer, _), class), &pick) in self.parts.iter().zip(&self.classes()).zip(picks) {
            let part = &class.points[usize::from(pick)].plan;
            let plan = &mut plans[usize::from(layer)];
            plan.recompute |= part.recompute;
            plan.offload |= part.offload;
            plan.quantize |= part.quantize;
        }
    }
}
