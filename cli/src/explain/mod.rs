//! `bagualu explain`: every saved tensor of one micro-batch on one pipeline rank, what is done with it, and
//! why not something else.

use std::ops::Range;

use bagualu_core::provision::Aim;

use crate::input::{Input, Loaded};
use crate::plan::load::LoadFactor;
use crate::plan::possible;
use crate::plan::rank::{Rank, Shortage, unmitigated};
use crate::spike::Spike;
use crate::{Error, output};

mod answer;
mod observe;
mod table;
mod tensor;

use answer::Answer;

/// Explain one micro-batch of one pipeline rank: every saved tensor with bytes, producer, consumers and
/// strategy, and what each other strategy would have cost.
///
/// Examples:
///   bagualu explain --model glm-423b-a30b --load 2.6
///   bagualu explain examples/glm-423b.sh --load 2.6 --layer 1
///   bagualu explain --model qwen3-30b-a3b --rank 1 --chunk 1 --micro-batch 3 --layer-type output --json
#[derive(clap::Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    input: Input,
    /// The pipeline rank
    #[arg(long, value_name = "R", default_value_t = 0)]
    rank: u32,
    /// Its model chunk, from 0
    #[arg(long, value_name = "C", default_value_t = 0)]
    chunk: u32,
    /// The micro-batch, from 0 [default: the one that runs while the chunk's device bytes are highest]
    #[arg(long, value_name = "M")]
    micro_batch: Option<u32>,
    /// Load of the rank's experts, in balanced rows
    #[arg(long, value_name = "LOAD", default_value = "1")]
    load: LoadFactor,
    #[command(flatten)]
    spike: Spike,
    /// Only the transformer layer of this number, from 0
    #[arg(long, value_name = "N", conflicts_with = "layer_type")]
    layer: Option<u32>,
    /// Only layers of this type: moe, dense, embedding or output, among others
    #[arg(long, value_name = "TYPE")]
    layer_type: Option<String>,
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

/// Runs the command.
pub fn run(args: Args) -> Result<(), Error> {
    let loaded = args.input.load()?;
    let model = &loaded.model;
    possible(&[args.load], model)?;
    let aim = args.spike.aim(model)?;
    within("--rank", args.rank, 0..model.parallelism.pp)?;
    within("--chunk", args.chunk, 0..model.parallelism.chunks)?;
    if let Some(micro_batch) = args.micro_batch {
        within("--micro-batch", micro_batch, 0..model.micro_batches)?;
    }
    if model.stages[args.rank as usize].chunks[args.chunk as usize].is_empty() {
        let problem = format!("chunk {} of rank {} has no layers", args.chunk, args.rank);
        return Err(Error::bad_input("--chunk", problem, "give another --chunk or --rank"));
    }
    let mut answer = match explain(&args, aim, &loaded) {
        Ok(Ok(answer)) => answer,
        Ok(Err(shortage)) => {
            let what = format!("on pipeline rank {} {}", args.rank, shortage.needs());
            return Err(Error::infeasible(what, shortage.needed, shortage.available));
        }
        Err(problem) => return Err(Error::bad_input(&loaded.source, problem, "")),
    };
    answer.only(args.layer, args.layer_type.as_deref())?;
    output::print(&if args.json { output::json(&answer)? } else { table::describe(&answer) })
}

/// Runs the iteration and explains the unit; an error is a sentence about the input.
fn explain<'a>(args: &Args, aim: Aim, loaded: &'a Loaded) -> Result<Result<Answer<'a>, Shortage>, String> {
    let model = &loaded.model;
    let stage = &model.stages[args.rank as usize];
    let rows = model.rows_at(args.load.0);
    let (chunk, micro_batch) = (args.chunk, args.micro_batch);
    let unmitigated_bytes = unmitigated(model, stage, rows)?;
    let request = observe::Request { chunk, micro_batch, rows, unmitigated_bytes };
    Rank::with(model, stage, |rank| {
        let provision = match rank.provisioned(model, stage, aim)? {
            Ok(provision) => provision,
            Err(shortage) => return Ok(Err(shortage)),
        };
        match observe::observe(rank, &provision, &request)? {
            Ok(observed) => Answer::new(loaded, rank, stage, args.load, aim, &observed).map(Ok),
            Err(shortage) => Ok(Err(shortage)),
        }
    })
}

fn within(option: &str, value: u32, range: Range<u32>) -> Result<(), Error> {
    if range.contains(&value) {
        return Ok(());
    }
    let fix = match range.end {
        1 => "give 0: there is only one".to_owned(),
        end => format!("give 0 to {}", end - 1),
    };
    Err(Error::bad_input(option, format!("there is no {value}"), fix))
}
