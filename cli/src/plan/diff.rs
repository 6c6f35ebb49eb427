//! `bagualu plan --diff A B`: the settings in which two runs differ, and what that changes.

use std::path::Path;

use bagualu_model::MODELS;
use serde::Serialize;

use super::load::LoadFactor;
use super::rank::{LoadPlan, RankPlan};
use super::report::{self, Report};
use super::{Plan, Verdict, worst};
use crate::Error;
use crate::input::{Input, Loaded};

pub(super) mod settings;
mod table;

use settings::{Setting, settings};
pub use table::describe;

/// Version of the format: changes where a field changes its meaning or goes.
const VERSION: u32 = 1;

/// Two plans, and where they differ.
#[derive(Serialize)]
pub struct Diff<'a> {
    version: u32,
    a: Report<'a>,
    b: Report<'a>,
    settings: Vec<Setting>,
    /// The ranks compared, where the pipelines differ in length: those that come closest to their device's
    /// memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    worst_ranks: Option<WorstRanks>,
    differences: Vec<Difference>,
}

/// The rank of each pipeline that comes closest to its device's memory, or passes it.
#[derive(Clone, Copy, Serialize)]
struct WorstRanks {
    a: u32,
    b: u32,
}

/// A quantity that differs.
#[derive(Serialize)]
struct Difference {
    #[serde(flatten)]
    place: Place,
    #[serde(serialize_with = "load_number")]
    load: Option<LoadFactor>,
    #[serde(serialize_with = "Quantity::json")]
    quantity: Quantity,
    a: Option<Amount>,
    b: Option<Amount>,
    /// B − A, where both are numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    difference: Option<i128>,
}

/// Of what a quantity is.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "of", rename_all = "snake_case")]
enum Place {
    /// The whole run.
    Run,
    /// A pipeline rank.
    Rank { rank: u32 },
    /// The worst rank of each, where the pipelines differ in length.
    WorstRanks,
}

/// What is compared: its name in JSON and in the table, and its unit.
#[derive(Clone, Copy)]
struct Quantity {
    json: &'static str,
    text: &'static str,
    unit: Unit,
}

#[derive(Clone, Copy)]
enum Unit {
    Bytes,
    Ns,
    Count,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(untagged)]
enum Amount {
    Number(u64),
    Verdict(Verdict),
}

impl Quantity {
    const fn new(json: &'static str, text: &'static str, unit: Unit) -> Self {
        Self { json, text, unit }
    }

    fn json<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.json)
    }
}

/// Reads one of the two inputs: a preset's name, or a path that the ordinary input takes.
pub fn load(input: &Input, which: &'static str, what: &str) -> Result<Loaded, Error> {
    let field = || format!("--diff {which} ({what})");
    let preset = MODELS.contains(&what);
    if !preset && what != "-" && !Path::new(what).exists() {
        let fix = format!("give a launch script, a config.json, or a preset: {}", MODELS.join(", "));
        return Err(Error::bad_input(field(), "there is no such file", fix));
    }
    match input.instead(what, preset).load() {
        Err(Error::BadInput { field: named, problem, fix }) if named == what => {
            Err(Error::bad_input(field(), problem, fix))
        }
        loaded => loaded,
    }
}

impl<'a> Diff<'a> {
    /// Compares two plans at the same loads.
    pub fn new(a: &'a Plan, b: &'a Plan) -> Result<Self, Error> {
        let mut list = List::default();
        list.compare(Place::Run, None, totals(a)?, totals(b)?);
        let longest = a.ranks.iter().chain(&b.ranks).flat_map(|rank| &rank.loads);
        let mut loads: Vec<LoadFactor> = Vec::new();
        for load in longest.map(|load| load.load) {
            if !loads.contains(&load) {
                loads.push(load);
            }
        }
        for &load in &loads {
            list.compare(Place::Run, Some(load), slowest(a, load), slowest(b, load));
        }
        let mut worst_ranks = None;
        if a.ranks.len() == b.ranks.len() {
            for (one, other) in a.ranks.iter().zip(&b.ranks) {
                list.ranks(Place::Rank { rank: one.rank }, one, other, &loads);
            }
        } else if let (Some(one), Some(other)) = (worst(&a.ranks), worst(&b.ranks)) {
            worst_ranks = Some(WorstRanks { a: one.rank, b: other.rank });
            list.ranks(Place::WorstRanks, one, other, &loads);
        }
        Ok(Self {
            version: VERSION,
            a: report::report(a, None)?,
            b: report::report(b, None)?,
            settings: settings(a, b),
            worst_ranks,
            differences: list.0,
        })
    }
}

type Quantities = Vec<(Quantity, Option<Amount>)>;

/// Of the whole run.
fn totals(plan: &Plan) -> Result<Quantities, Error> {
    use Unit::Count;
    let loaded = &plan.loaded;
    let count = loaded.model.config.parameters();
    let count = count.map_err(|error| Error::bad_input(&loaded.source, error.to_string(), ""))?;
    let in_flight = plan.ranks.iter().map(|rank| rank.in_flight).max().unwrap_or(0);
    let number = |n: u64| Some(Amount::Number(n));
    Ok(vec![
        (Quantity::new("parameters", "parameters", Count), number(count.total)),
        (Quantity::new("active_parameters", "active parameters", Count), number(count.active)),
        (Quantity::new("micro_batches", "micro-batches", Count), number(loaded.model.micro_batches.into())),
        (Quantity::new("in_flight", "in flight", Count), number(in_flight as u64)),
    ])
}

/// The longest time of operators over the ranks, if all of them can be carried.
fn slowest(plan: &Plan, load: LoadFactor) -> Quantities {
    let of = |rank: &RankPlan| Some(at(rank, load)?.outcome.as_ref().ok()?.compute_ns);
    let times: Option<Vec<u64>> = plan.ranks.iter().map(of).collect();
    let slowest = times.and_then(|times| times.into_iter().max()).map(Amount::Number);
    vec![(COMPUTE, slowest)]
}

const COMPUTE: Quantity = Quantity::new("compute_ns", "compute time", Unit::Ns);

fn at(rank: &RankPlan, load: LoadFactor) -> Option<&LoadPlan> {
    rank.loads.iter().find(|plan| plan.load == load)
}

/// Of a rank, whatever the load.
fn of_rank(rank: &RankPlan) -> Quantities {
    use Unit::{Bytes, Count};
    let number = |n: u64| Some(Amount::Number(n));
    vec![
        (Quantity::new("static_bytes", "static", Bytes), number(rank.static_bytes.total())),
        (Quantity::new("device_bytes", "available", Bytes), number(rank.device_bytes)),
        (Quantity::new("in_flight", "in flight", Count), number(rank.in_flight as u64)),
        (Quantity::new("floor_bytes", "floor", Bytes), number(rank.floor_bytes)),
    ]
}

/// Of a rank at a load; a rank that nothing fits on has none but a verdict.
fn at_load(rank: &RankPlan, load: LoadFactor) -> Quantities {
    use Unit::{Bytes, Count, Ns};
    let plan = at(rank, load);
    let carried = plan.and_then(|plan| plan.outcome.as_ref().ok());
    let configured = plan.and_then(|plan| plan.configured.as_ref());
    let number = |n: Option<u64>| n.map(Amount::Number);
    let verdict = plan.map_or(Verdict::Infeasible, LoadPlan::verdict);
    vec![
        (
            Quantity::new("unmitigated_bytes", "kept whole", Bytes),
            number(plan.map(|plan| plan.unmitigated_bytes)),
        ),
        (
            Quantity::new("configured_held_bytes", "configured: held", Bytes),
            number(configured.map(|c| c.held_bytes)),
        ),
        (
            Quantity::new("configured_bytes", "configured: peak", Bytes),
            number(configured.map(|c| c.peak_bytes)),
        ),
        (
            Quantity::new("configured_host_bytes", "configured: on the host", Bytes),
            number(configured.map(|c| c.host_bytes)),
        ),
        (
            Quantity::new("configured_added_ns", "configured: added time", Ns),
            number(configured.map(|c| c.added_ns)),
        ),
        (Quantity::new("held_bytes", "held", Bytes), number(carried.map(|c| c.held_bytes))),
        (Quantity::new("peak_bytes", "peak", Bytes), number(carried.map(|c| c.peak_bytes))),
        (COMPUTE, number(carried.map(|c| c.compute_ns))),
        (Quantity::new("added_ns", "added time", Ns), number(carried.map(|c| c.added_ns))),
        (Quantity::new("verdict", "verdict", Count), Some(Amount::Verdict(verdict))),
    ]
}

/// Collects what differs.
#[derive(Default)]
struct List(Vec<Difference>);

impl List {
    fn ranks(&mut self, place: Place, a: &RankPlan, b: &RankPlan, loads: &[LoadFactor]) {
        self.compare(place, None, of_rank(a), of_rank(b));
        for &load in loads {
            self.compare(place, Some(load), at_load(a, load), at_load(b, load));
        }
    }

    fn compare(&mut self, place: Place, load: Option<LoadFactor>, a: Quantities, b: Quantities) {
        for ((quantity, a), (_, b)) in a.into_iter().zip(b).filter(|(a, b)| a.1 != b.1) {
            let difference = match (a, b) {
                (Some(Amount::Number(a)), Some(Amount::Number(b))) => Some(i128::from(b) - i128::from(a)),
                _ => None,
            };
            self.0.push(Difference { place, load, quantity, a, b, difference });
        }
    }
}

fn load_number<S: serde::Serializer>(load: &Option<LoadFactor>, serializer: S) -> Result<S::Ok, S::Error> {
    load.map(|load| f64::from(load.0) / 1_000.0).serialize(serializer)
}
