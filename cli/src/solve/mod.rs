//! `bagualu solve`: one instance of one of the core's problems in, one answer out (design §10).

use std::path::PathBuf;

use clap::Subcommand;
use serde::Serialize;

use crate::{Error, output};

pub mod budget;
pub mod interleave;
pub mod mitigate;
pub mod read;

/// Solve one budget, mitigation or interleaving problem.
///
/// Reads a JSON instance from FILE, or from standard input where FILE is absent or `-`. The formats are
/// in docs/formats.md.
///
/// Example:
///   echo '{"capacity_bytes": 1000, "events": [{"forward": "0.0", "floor_bytes": 10},
///   {"backward": "0.0"}]}' | bagualu solve budget
#[derive(clap::Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(subcommand)]
    problem: Problem,
}

#[derive(Subcommand, Debug)]
enum Problem {
    /// How much memory each micro-batch may hold (Algorithm 1)
    ///
    /// Example:
    ///   echo '{"capacity_bytes": 1000, "events": [{"forward": "0.0", "floor_bytes": 10},
    ///   {"backward": "0.0"}]}' | bagualu solve budget --json
    #[command(verbatim_doc_comment)]
    Budget(Instance<budget::Method>),
    /// What to do with each saved tensor so that all fit (Algorithm 2)
    ///
    /// Example:
    ///   echo '{"limit_bytes": 60, "layers": [{"name": "0",
    ///   "tensors": [{"name": "a", "bytes": 100, "copy_out_ns": 20, "copy_in_ns": 20}],
    ///   "ops": [{"name": "fc", "saves": ["a"]}]}]}' | bagualu solve mitigate --json
    #[command(verbatim_doc_comment)]
    Mitigate(Instance<mitigate::Method>),
    /// The order of forward, backward, offload and recovery operators (§V-B)
    ///
    /// Example:
    ///   echo '{"chains": {"forward": [{"resource": "compute", "ns": 100}], "backward":
    ///   [{"resource": "communication", "ns": 70}]}, "capacity_bytes": 1000}' |
    ///   bagualu solve interleave --json
    #[command(verbatim_doc_comment)]
    Interleave(Instance<interleave::Method>),
}

/// An instance and how to solve it.
#[derive(clap::Args, Debug)]
struct Instance<M: clap::ValueEnum + Default + Send + Sync + 'static> {
    /// The instance; `-` or nothing: standard input
    file: Option<PathBuf>,
    /// How to solve it [default: the first]
    // No default_value_t: clap keeps its text in one static for all `M`.
    #[arg(long, value_enum)]
    method: Option<M>,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Whether the answer is to be JSON.
    pub fn json(&self) -> bool {
        match &self.problem {
            Problem::Budget(instance) => instance.json,
            Problem::Mitigate(instance) => instance.json,
            Problem::Interleave(instance) => instance.json,
        }
    }
}

/// Runs the command.
pub fn run(args: Args) -> Result<(), Error> {
    match args.problem {
        Problem::Budget(instance) => answer(instance, budget::solve, budget::describe),
        Problem::Mitigate(instance) => answer(instance, mitigate::solve, mitigate::describe),
        Problem::Interleave(instance) => answer(instance, interleave::solve, interleave::describe),
    }
}

fn answer<M, A>(
    instance: Instance<M>,
    solve: impl FnOnce(&[u8], M) -> Result<A, Error>,
    describe: impl FnOnce(&A) -> String,
) -> Result<(), Error>
where
    M: clap::ValueEnum + Default + Send + Sync + 'static,
    A: Serialize,
{
    let json = read::instance(instance.file.as_deref())?;
    let answer = solve(&json, instance.method.unwrap_or_default())?;
    let text = if instance.json { output::json(&answer)? } else { describe(&answer) };
    output::print(&text)
}
