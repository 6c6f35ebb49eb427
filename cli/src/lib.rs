//! Library behind the `bagualu` command: one module per subcommand.
//!
//! Exit statuses (`docs/errors.md`): 0 done, 1 the output could not be written, 2 bad input,
//! 3 infeasible.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub mod completion;
pub mod error;
pub mod explain;
pub mod input;
pub mod man;
pub mod names;
pub mod output;
pub mod plan;
pub mod progress;
pub mod replay;
pub mod solve;
pub mod spike;

pub use error::Error;

/// Activation memory that adapts per micro-batch while an MoE model trains under pipeline parallelism.
///
/// Examples:
///   bagualu plan examples/glm-423b.sh
///   bagualu help plan
#[derive(Parser, Debug)]
#[command(name = "bagualu", version, arg_required_else_help = true, verbatim_doc_comment)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Plan(plan::Args),
    Explain(explain::Args),
    Replay(replay::Args),
    Solve(solve::Args),
    Completion(completion::Args),
    Man(man::Args),
}

/// Reads the command line, runs it, and reports an error as one message and an exit status.
pub fn main() -> ExitCode {
    // clap answers a wrong command line itself: one message, exit status 2.
    let command = Cli::parse().command;
    let json = command.json();
    match command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(json),
    }
}

impl Command {
    fn run(self) -> Result<(), Error> {
        match self {
            Self::Plan(args) => plan::run(args),
            Self::Explain(args) => explain::run(args),
            Self::Replay(args) => replay::run(args),
            Self::Solve(args) => solve::run(args),
            Self::Completion(args) => completion::run(args),
            Self::Man(args) => man::run(args),
        }
    }

    /// Whether the user asked for JSON, so that an infeasible answer is JSON too.
    fn json(&self) -> bool {
        match self {
            Self::Plan(args) => args.json(),
            Self::Explain(args) => args.json(),
            Self::Replay(args) => args.json(),
            Self::Solve(args) => args.json(),
            Self::Completion(_) | Self::Man(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
