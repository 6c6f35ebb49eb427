//! `bagualu man`: manual pages made from the help.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::{Cli, Error, output};

/// Print a manual page, or write those of all commands to a directory.
///
/// Examples:
///   bagualu man plan
///   bagualu man solve budget
///   bagualu man --dir /tmp/bagualu-man
#[derive(clap::Args, Debug)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The command whose page is printed: `plan`, `solve budget`; bagualu itself by default
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
    /// Write bagualu.1, bagualu-plan.1 … to this directory, which is made if it is not there
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: Args) -> Result<(), Error> {
    let mut root = Cli::command().disable_help_subcommand(true);
    // Gives every subcommand its full name.
    root.build();
    match &args.dir {
        Some(dir) => {
            let written = fs::create_dir_all(dir).and_then(|()| write_all(&root, dir));
            written.map_err(|source| Error::output(dir.display().to_string(), source))
        }
        None => print(&root, &args.command),
    }
}

fn write_all(command: &Command, dir: &Path) -> io::Result<()> {
    fs::write(dir.join(name(command) + ".1"), page(command)?)?;
    command.get_subcommands().try_for_each(|sub| write_all(sub, dir))
}

fn print(root: &Command, words: &[String]) -> Result<(), Error> {
    let mut command = root;
    for word in words {
        command = command.find_subcommand(word).ok_or_else(|| {
            let known: Vec<_> = command.get_subcommands().map(Command::get_name).collect();
            let fix = match known.is_empty() {
                true => format!("{} has no commands", command.get_name()),
                false => format!("give one of {}", known.join(", ")),
            };
            Error::bad_input("COMMAND", format!("no command {word:?}"), fix)
        })?;
    }
    let page = page(command).map_err(|source| Error::output("standard output", source))?;
    output::print(&String::from_utf8_lossy(&page))
}

/// `bagualu-solve-budget`.
fn name(command: &Command) -> String {
    command.get_bin_name().unwrap_or_else(|| command.get_name()).replace(' ', "-")
}

/// The page, with the usage line for a synopsis: the options are too many to be named in one.
fn page(command: &Command) -> io::Result<Vec<u8>> {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").replace('-', "\\-");
    let man = Man::new(command.clone()).title(name(command));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    writeln!(page, ".SH SYNOPSIS\n{usage}")?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    Ok(page)
}
