//! `bagualu completion`: scripts that let a shell complete commands, options and presets.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::{Cli, Error, output};

/// Print the completion script of a shell.
///
/// Examples:
///   bagualu completion bash
///   bagualu completion zsh
#[derive(clap::Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs the command.
pub fn run(args: Args) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "bagualu", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}
