//! `bagualu plan`: what a training run holds on every pipeline rank, and what is done about it.

use bagualu_core::provision::Aim;
use bagualu_model::Model;
use bagualu_model::settings::ActivationSettings;
use rayon::prelude::*;

use crate::input::{Input, Loaded, largest_load};
use crate::progress::Progress;
use crate::spike::Spike;
use crate::{Error, output};

mod advise;
mod configured;
mod diff;
pub(crate) mod iteration;
pub(crate) mod load;
pub(crate) mod rank;
mod report;
mod table;

use advise::Advice;
use load::LoadFactor;
use rank::{LoadPlan, RankPlan, Shortage};

/// Plan a training run: memory of every pipeline rank at several expert loads, and the strategies chosen.
///
/// A load of 1.2 means that the rank's experts receive 1.2 times as many rows as with balanced routing, in
/// every layer of every micro-batch.
///
/// Examples:
///   bagualu plan --model glm-423b-a30b
///   bagualu plan examples/qwen3-30b-a3b.sh --device h100-80g --load 1,2
///   bagualu plan examples/qwen3-30b-a3b.sh --device examples/devices/my-cluster.toml --micro-batch-size 2 --json
///   bagualu plan examples/qwen3-30b-a3b.sh --device h100-80g --micro-batch-size 4 --load 1 --advise
///   bagualu plan --diff glm-423b-a30b glm-629b-a30b --load 1,2.6
#[derive(clap::Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    input: Input,
    /// Loads of the rank's experts, in balanced rows [default: 1,1.2,2.6]
    #[arg(long = "load", value_name = "LOAD,…", value_delimiter = ',')]
    loads: Option<Vec<LoadFactor>>,
    #[command(flatten)]
    spike: Spike,
    /// Compare two runs, each a launch script, a config.json or a preset: the settings that differ, and what
    /// they change; the other options apply to both
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with_all = ["script", "model"])]
    diff: Option<Vec<String>>,
    /// Look for the smallest changes of Megatron's flags with which it fits, each planned as a whole
    #[arg(long, conflicts_with = "diff")]
    advise: bool,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Whether the answer is to be JSON.
    pub fn json(&self) -> bool {
        self.json
    }
}

/// Everything that is planned.
struct Plan {
    loaded: Loaded,
    /// What the static decisions aim at.
    aim: Aim,
    ranks: Vec<RankPlan>,
}

/// What the user is told first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// Everything can be kept.
    Fits,
    /// It fits with the strategies chosen.
    NeedsStrategies,
    /// Nothing fits.
    Infeasible,
}

impl Plan {
    /// Plans a model at the loads that are given, or else at the usual ones.
    fn new(loaded: Loaded, loads: Option<&[LoadFactor]>, spike: Spike) -> Result<Self, Error> {
        let (model, settings) = (&loaded.model, &loaded.settings);
        let aim = spike.aim(model)?;
        let loads = loads_for(loads, model)?;
        let progress = Progress::new("plan", model.stages.len() as u64, "pipeline ranks");
        match ranks(model, settings, loads, aim, || progress.step()) {
            Ok(ranks) => Ok(Self { loaded, aim, ranks }),
            Err(problem) => Err(Error::bad_input(&loaded.source, problem, "")),
        }
    }

    /// The first thing that does not fit, and where.
    fn shortage(&self) -> Option<(&RankPlan, &Shortage)> {
        self.ranks.iter().find_map(|rank| rank.shortage().map(|shortage| (rank, shortage)))
    }
}

/// Runs the command.
pub fn run(args: Args) -> Result<(), Error> {
    if let Some([a, b]) = args.diff.as_deref() {
        return compare(&args, a, b);
    }
    let plan = Plan::new(args.input.load()?, args.loads.as_deref(), args.spike)?;
    let advice = match args.advise {
        true => Some(Advice::new(&args.input, &plan, args.loads.as_deref())?),
        false => None,
    };
    let text = match args.json {
        true => output::json(&report::report(&plan, advice.as_ref())?)?,
        false => table::describe(&plan)? + &advice.as_ref().map(advise::describe).unwrap_or_default(),
    };
    output::print(&text)?;
    match plan.shortage() {
        None => Ok(()),
        Some((rank, shortage)) => {
            let what = format!("on pipeline rank {} {}", rank.rank, shortage.needs());
            Err(Error::infeasible(what, shortage.needed, shortage.available).answered())
        }
    }
}

/// Plans two runs and says in what they differ.
fn compare(args: &Args, a: &str, b: &str) -> Result<(), Error> {
    let plan =
        |which, what| Plan::new(diff::load(&args.input, which, what)?, args.loads.as_deref(), args.spike);
    let (a, b) = (plan("A", a)?, plan("B", b)?);
    let diff = diff::Diff::new(&a, &b)?;
    output::print(&if args.json { output::json(&diff)? } else { diff::describe(&diff, &a, &b) })
}

/// Plans every pipeline rank, on all processors, and tells of each.
fn ranks(
    model: &Model,
    settings: &ActivationSettings,
    loads: &[LoadFactor],
    aim: Aim,
    step: impl Fn() + Sync,
) -> Result<Vec<RankPlan>, String> {
    let rank = |stage| RankPlan::new(model, stage, settings, loads, aim).inspect(|_| step());
    // Of several errors the lowest rank's is told, whichever comes first.
    let planned: Vec<_> = model.stages.par_iter().map(rank).collect();
    planned.into_iter().collect()
}

/// The rank that comes closest to its device's memory: an infeasible one before any other.
fn worst(ranks: &[RankPlan]) -> Option<&RankPlan> {
    let left = |rank: &RankPlan| {
        let left = |load: &LoadPlan| match &load.outcome {
            Ok(carried) => i128::from(rank.device_bytes) - i128::from(carried.peak_bytes),
            Err(shortage) => i128::from(shortage.available) - i128::from(shortage.needed),
        };
        match &rank.provision {
            Ok(_) => (rank.verdict() != Verdict::Infeasible, rank.loads.iter().map(left).min()),
            Err(shortage) => (false, Some(i128::from(shortage.available) - i128::from(shortage.needed))),
        }
    };
    ranks.iter().min_by_key(|rank| left(rank))
}

/// Loads where none are given: balanced, the paper's ordinary spread, its largest spike. A group that cannot be
/// so uneven gets its most.
const USUAL: [LoadFactor; 3] = [LoadFactor(1_000), LoadFactor(1_200), LoadFactor(2_600)];

/// The loads that are given, or else the usual ones.
fn loads_for<'l>(loads: Option<&'l [LoadFactor]>, model: &Model) -> Result<&'l [LoadFactor], Error> {
    loads.map_or(Ok(&USUAL), |given| possible(given, model))
}

/// The loads that were given, if they are possible.
pub(crate) fn possible<'l>(given: &'l [LoadFactor], model: &Model) -> Result<&'l [LoadFactor], Error> {
    let most = largest_load(model).unwrap_or(u32::MAX);
    match given.iter().find(|load| load.0 > most) {
        None => Ok(given),
        Some(load) => {
            let fix = format!("give at most {}: the rank then receives every row", LoadFactor(most));
            Err(Error::bad_input("--load", format!("{load} is no load of this group"), fix))
        }
    }
}
