//! `bagualu plan`: what a training run holds on every pipeline rank, and what is done about it.

use bagualu_model::Model;

use crate::input::{Input, Loaded, largest_load};
use crate::progress::Progress;
use crate::{Error, output};

pub(crate) mod iteration;
pub(crate) mod load;
pub(crate) mod rank;
mod report;
mod table;

use load::LoadFactor;
use rank::{RankPlan, Shortage};

/// Plan a training run: memory of every pipeline rank at several expert loads, and the strategies chosen.
///
/// A load of 1.2 means that the rank's experts receive 1.2 times as many rows as with balanced routing, in
/// every layer of every micro-batch.
///
/// Examples:
///   bagualu plan --model glm-423b-a30b
///   bagualu plan examples/qwen3-30b-a3b.sh --device h100-80g --load 1,2
///   bagualu plan examples/qwen3-30b-a3b.sh --device examples/devices/my-cluster.toml --micro-batch-size 2 --json
#[derive(clap::Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    input: Input,
    /// Loads of the rank's experts, in balanced rows [default: 1,1.2,2.6]
    #[arg(long = "load", value_name = "LOAD,…", value_delimiter = ',')]
    loads: Option<Vec<LoadFactor>>,
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
    /// The first thing that does not fit, and where.
    fn shortage(&self) -> Option<(&RankPlan, &Shortage)> {
        self.ranks.iter().find_map(|rank| rank.shortage().map(|shortage| (rank, shortage)))
    }
}

/// Runs the command.
pub fn run(args: Args) -> Result<(), Error> {
    let loaded = args.input.load()?;
    let loads = match args.loads {
        Some(given) => possible(given, &loaded.model)?,
        None => usual(),
    };
    let ranks =
        plan(&loaded.model, &loads).map_err(|problem| Error::bad_input(&loaded.source, problem, ""))?;
    let plan = Plan { loaded, ranks };
    let text = if args.json { output::json(&report::report(&plan)?)? } else { table::describe(&plan)? };
    output::print(&text)?;
    match plan.shortage() {
        None => Ok(()),
        Some((rank, shortage)) => {
            let what = format!("on pipeline rank {} {}", rank.rank, shortage.needs());
            Err(Error::infeasible(what, shortage.needed, shortage.available).answered())
        }
    }
}

/// Loads where none are given: balanced, the paper's ordinary spread, its largest spike. A group that cannot
/// be so uneven gets its most.
fn usual() -> Vec<LoadFactor> {
    [1_000, 1_200, 2_600].map(LoadFactor).to_vec()
}

/// The loads that were given, if they are possible.
pub(crate) fn possible(given: Vec<LoadFactor>, model: &Model) -> Result<Vec<LoadFactor>, Error> {
    let most = largest_load(model).unwrap_or(u32::MAX);
    match given.iter().find(|load| load.0 > most) {
        None => Ok(given),
        Some(load) => {
            let fix = format!("give at most {}: the rank then receives every row", LoadFactor(most));
            Err(Error::bad_input("--load", format!("{load} is no load of this group"), fix))
        }
    }
}

fn plan(model: &Model, loads: &[LoadFactor]) -> Result<Vec<RankPlan>, String> {
    let progress = Progress::new("plan", model.stages.len() as u64, "pipeline ranks");
    let rank = |stage| RankPlan::new(model, stage, loads).inspect(|_| progress.step());
    model.stages.iter().map(rank).collect()
}
