//! `bagualu plan --advise`: the smallest changes of Megatron's flags with which a run fits.
//!
//! Every candidate is planned as a whole, at the loads asked for, and its flags are read back behind the
//! run's own before they are shown: what is advised is what `bagualu plan` answers with those flags.

use bagualu_core::provision::Aim;
use bagualu_model::Model;
use bagualu_model::settings::ActivationSettings;
use rayon::prelude::*;
use serde::Serialize;

use super::load::LoadFactor;
use super::rank::RankPlan;
use super::{Plan, Verdict, loads_for, rank};
use crate::Error;
use crate::input::Input;
use crate::progress::Progress;

mod change;
mod flags;
mod outcome;
mod table;

use change::{CHANGES, Change};
use outcome::Outcome;
pub use table::describe;

/// Plans tried at most.
const MOST_PLANS: usize = 1_000;
/// Largest memory tried, GiB.
const MOST_GIB: u64 = 4_096;

/// What would make the run fit.
#[derive(Serialize)]
pub struct Advice {
    /// The run as given.
    given: Outcome,
    /// Whether the strategies that the plan chooses are enough.
    strategies_are_enough: bool,
    /// The least device memory with which the run fits as given, in whole GiB; absent where it fits already
    /// or none was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_gib: Option<u64>,
    /// How many changes a candidate was allowed.
    changes_tried: usize,
    /// Distributions planned.
    plans_tried: usize,
    /// What fits: everything kept before what needs strategies, the same devices before more, then the fewest
    /// changes, then the least time.
    candidates: Vec<Candidate>,
    /// Where nothing fits: what comes closest.
    #[serde(skip_serializing_if = "Option::is_none")]
    closest: Option<Candidate>,
}

/// Flags to give, and what they lead to.
#[derive(Serialize)]
struct Candidate {
    /// The flags to add to those of the run, or to change in it.
    flags: Vec<String>,
    /// Devices, with those flags.
    gpus: u64,
    /// How many settings change; flags that only keep the others as they are do not count.
    changes: usize,
    #[serde(flatten)]
    outcome: Outcome,
    /// Its iteration's time over that of the run as given, in thousandths.
    iteration_permille: u64,
    /// What the figures do not show.
    notes: Vec<&'static str>,
}

impl Advice {
    /// Looks for changes: alone, and in pairs where none does alone.
    pub fn new(input: &Input, plan: &Plan, loads: Option<&[LoadFactor]>) -> Result<Self, Error> {
        let model = &plan.loaded.model;
        let refused = |problem: String| Error::bad_input(&plan.loaded.source, problem, "");
        let given = Outcome::new(model, &plan.ranks, loads_for(loads, model)?).map_err(refused)?;
        let settings = &plan.loaded.settings;
        let mut search =
            Search { input, model, settings, loads, aim: plan.aim, given: given.clone(), tried: Vec::new() };
        let (mut found, mut changes_tried) = (Vec::new(), 0);
        if given.verdict != Verdict::Fits {
            changes_tried = 1;
            found = search.singles();
        }
        // More devices are no small change: two others may do without.
        let no_more = |target: &Target| target.parallelism.gpus == model.parallelism.gpus;
        if given.verdict == Verdict::Infeasible && !found.iter().any(no_more) {
            changes_tried = 2;
            found.append(&mut search.pairs());
        }
        let closest =
            if given.verdict == Verdict::Infeasible && found.is_empty() { search.closest() } else { None };
        let mut candidates: Vec<Candidate> =
            found.iter().filter_map(|target| search.candidate(&given, target)).collect();
        candidates.sort_by(|a, b| a.order().cmp(&b.order()));
        Ok(Self {
            strategies_are_enough: given.verdict == Verdict::NeedsStrategies,
            memory_gib: (given.verdict == Verdict::Infeasible).then(|| search.enough_memory()).flatten(),
            changes_tried,
            plans_tried: search.tried.len(),
            candidates,
            closest: closest.and_then(|target| search.candidate(&given, &target)),
            given,
        })
    }
}

impl Candidate {
    fn order(&self) -> (Verdict, u64, usize, u64, &[String]) {
        (self.outcome.verdict, self.gpus, self.changes, self.outcome.iteration_ns, &self.flags)
    }
}

/// A distribution to plan, and the changes that lead to it.
#[derive(Clone)]
struct Target {
    parallelism: bagualu_model::Parallelism,
    changes: Vec<&'static Change>,
}

/// What was planned, each distribution once.
struct Search<'a> {
    input: &'a Input,
    model: &'a Model,
    /// The run's own: Megatron must take them with whatever is tried.
    settings: &'a ActivationSettings,
    loads: Option<&'a [LoadFactor]>,
    aim: Aim,
    /// The run as given, which is to be bettered.
    given: Outcome,
    tried: Vec<(Target, Option<Tried>)>,
}

/// What is known of a distribution.
enum Tried {
    /// Some rank has no room even for its static bytes and floor: nothing more was planned.
    Hopeless {
        /// Bytes that the worst of them lacks.
        missing_bytes: u64,
    },
    /// The whole of it.
    Planned(Outcome),
}

impl Search<'_> {
    /// Of each setting the first steps that are better than the run as given.
    fn singles(&mut self) -> Vec<Target> {
        let progress = Progress::new("advise", CHANGES.len() as u64, "settings");
        let mut found = Vec::new();
        for change in &CHANGES {
            let steps = change.steps(&self.model.parallelism, &self.model.config);
            let targets = steps.map(|parallelism| Target { parallelism, changes: vec![change] });
            found.extend(self.first_steps(targets.collect()));
            progress.step();
        }
        found
    }

    /// The first step that is better, and where strategies carry the run as given, the first that needs none.
    fn first_steps(&mut self, steps: Vec<Target>) -> Vec<Target> {
        if self.given.verdict == Verdict::Infeasible {
            return steps.into_iter().find(|target| self.is_better(target)).into_iter().collect();
        }
        // Planning takes long: later steps are worth it only where they plainly have room for everything.
        let half = steps.first().filter(|target| self.is_better(target)).cloned();
        let fits = steps.into_iter().find(|target| self.keeps_all(target) && self.is_better(target));
        let fits =
            fits.filter(|target| half.as_ref().is_none_or(|half| half.parallelism != target.parallelism));
        half.into_iter().chain(fits).collect()
    }

    /// Of each two settings the fewest steps together that are better than the run as given.
    fn pairs(&mut self) -> Vec<Target> {
        let count = CHANGES.len() * (CHANGES.len() - 1) / 2;
        let progress = Progress::new("advise", count as u64, "pairs of settings");
        let mut found = Vec::new();
        for (index, first) in CHANGES.iter().enumerate() {
            for second in &CHANGES[index + 1..] {
                let mut targets = self.combinations(first, second);
                found.extend(targets.find(|target| self.is_better(target)));
                progress.step();
            }
        }
        found
    }

    /// Steps of one setting and of another, the fewest together first.
    fn combinations(
        &self,
        first: &'static Change,
        second: &'static Change,
    ) -> impl Iterator<Item = Target> + use<> {
        let (from, config) = (&self.model.parallelism, &self.model.config);
        let mut all = Vec::new();
        for (one, between) in first.steps(from, config).enumerate() {
            for (other, parallelism) in second.steps(&between, config).enumerate() {
                all.push((one + other, Target { parallelism, changes: vec![first, second] }));
            }
        }
        all.sort_by_key(|(steps, _)| *steps);
        all.into_iter().map(|(_, target)| target)
    }

    /// Whether the verdict is better, or strategies carry both runs and cost less.
    fn is_better(&mut self, target: &Target) -> bool {
        let given = self.given.clone();
        self.outcome(target).is_some_and(|outcome| match (given.verdict, outcome.verdict) {
            (Verdict::NeedsStrategies, Verdict::NeedsStrategies) => outcome.halves(&given),
            (given, verdict) => verdict < given,
        })
    }

    /// Whether every rank has room for all that it would keep at the highest load.
    fn keeps_all(&self, target: &Target) -> bool {
        let Ok(model) = Model::new(&self.model.config, &target.parallelism, &self.model.device) else {
            return false;
        };
        let Ok(loads) = loads_for(self.loads, &model) else { return false };
        let rows = loads.iter().map(|load| model.rows_at(load.0)).max().unwrap_or(model.balanced_rows);
        model
            .stages
            .iter()
            .all(|stage| rank::unmitigated(&model, stage, rows).is_ok_and(|bytes| bytes <= model.room(stage)))
    }

    /// What planning the target says; none where Megatron refuses it, nothing can fit, or after too many plans.
    fn outcome(&mut self, target: &Target) -> Option<&Outcome> {
        let known = self.tried.iter().position(|(other, _)| other.parallelism == target.parallelism);
        let index = match known {
            Some(index) => index,
            None if self.tried.len() == MOST_PLANS => return None,
            None => {
                self.tried.push((target.clone(), self.plan(target)));
                self.tried.len() - 1
            }
        };
        match self.tried[index].1.as_ref()? {
            Tried::Hopeless { .. } => None,
            Tried::Planned(outcome) => Some(outcome),
        }
    }

    fn plan(&self, target: &Target) -> Option<Tried> {
        let model = Model::new(&self.model.config, &target.parallelism, &self.model.device).ok()?;
        self.settings.check(&model.config, &model.parallelism).ok()?;
        match missing_bytes(&model) {
            Some(missing_bytes) => Some(Tried::Hopeless { missing_bytes }),
            None => self.whole(&model).map(Tried::Planned),
        }
    }

    /// Plans every rank.
    fn whole(&self, model: &Model) -> Option<Outcome> {
        let loads = loads_for(self.loads, model).ok()?;
        Outcome::new(model, &ranks(model, loads, self.aim)?, loads).ok()
    }

    /// The target with its flags; none where no flags lead to it.
    fn candidate(&self, given: &Outcome, target: &Target) -> Option<Candidate> {
        let flags = flags::leading_to(self.input, self.model, &target.parallelism)?;
        let known = self.tried.iter().find(|(other, _)| other.parallelism == target.parallelism)?;
        let outcome = match known.1.as_ref()? {
            Tried::Planned(outcome) => outcome.clone(),
            // Only what comes closest is shown without fitting.
            Tried::Hopeless { .. } => {
                let model = Model::new(&self.model.config, &target.parallelism, &self.model.device).ok()?;
                self.whole(&model)?
            }
        };
        let permille = u128::from(outcome.iteration_ns) * 1_000 / u128::from(given.iteration_ns.max(1));
        Some(Candidate {
            flags,
            gpus: target.parallelism.gpus,
            changes: target.changes.len(),
            iteration_permille: u64::try_from(permille).unwrap_or(u64::MAX),
            notes: target.changes.iter().filter_map(|change| change.note).collect(),
            outcome,
        })
    }

    /// Of what was tried, what lacks the fewest bytes.
    fn closest(&self) -> Option<Target> {
        let missing = |tried: &Tried| match tried {
            Tried::Hopeless { missing_bytes } => *missing_bytes,
            Tried::Planned(outcome) => outcome.missing_bytes(),
        };
        let tried = self.tried.iter().filter_map(|(target, tried)| Some((target, missing(tried.as_ref()?))));
        tried.min_by_key(|(_, missing)| *missing).map(|(target, _)| target.clone())
    }

    /// The least memory that would do, by bisection.
    fn enough_memory(&self) -> Option<u64> {
        let fits = |gib: u64| {
            let mut device = self.model.device.clone();
            device.memory_bytes = gib << 30;
            let plan = || {
                let model = Model::new(&self.model.config, &self.model.parallelism, &device).ok()?;
                if missing_bytes(&model).is_some() {
                    return None;
                }
                ranks(&model, loads_for(self.loads, &model).ok()?, self.aim)
            };
            plan().is_some_and(|ranks| ranks.iter().all(|rank| rank.verdict() != Verdict::Infeasible))
        };
        let mut least = self.model.device.memory_bytes >> 30;
        let mut enough = (least + 1).next_power_of_two();
        while !fits(enough) {
            (least, enough) = (enough, enough * 2);
            if enough > MOST_GIB {
                return None;
            }
        }
        // `least` is too little, `enough` is enough.
        while enough - least > 1 {
            let middle = least + (enough - least) / 2;
            if fits(middle) { enough = middle } else { least = middle }
        }
        Some(enough)
    }
}

/// Bytes that the worst of the ranks lacks for static bytes and floor; none where all have room for them.
fn missing_bytes(model: &Model) -> Option<u64> {
    let missing = |stage| rank::shortage_of_floor(model, stage).map(|short| short.needed - short.available);
    model.stages.par_iter().filter_map(missing).max()
}

/// Plans without what the run's own settings would hold, which no verdict depends on.
fn ranks(model: &Model, loads: &[LoadFactor], aim: Aim) -> Option<Vec<RankPlan>> {
    super::ranks(model, &ActivationSettings::default(), loads, aim, || {}).ok()
}
