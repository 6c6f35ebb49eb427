//! `bagualu solve`: one instance of one of the core's problems in, one answer out (design §10).

use clap::Subcommand;

use crate::Error;

pub mod read;

/// Solve one budget, mitigation or interleaving problem.
///
/// Reads a JSON instance from FILE, or from standard input where FILE is absent or `-`. The formats are
/// in docs/formats.md.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    problem: Problem,
}

#[derive(Subcommand, Debug)]
enum Problem {}

impl Args {
    /// Whether the answer is to be JSON.
    pub fn json(&self) -> bool {
        match self.problem {}
    }
}

/// Runs the command.
pub fn run(args: Args) -> Result<(), Error> {
    match args.problem {}
}
