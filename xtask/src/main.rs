//! Development tasks, run as `cargo xtask TASK`.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

mod fuzz;
mod header;
mod hip_table;
mod install;
mod loom;
mod no_std;

const USAGE: &str = "\
usage: cargo xtask TASK

  loom              try every order of the host device's threads
  no-std            build, link and run the core without std and libc; check that std would be noticed
  hip-table         compare the executor's table of HIP functions with the headers, where they and libclang are
  fuzz [TARGET]...  run fuzz targets for FUZZ_SECONDS each (300), all of them by default
  header [--check]  write include/bagualu.h from ffi/src, or check that it is what they say
  install --prefix DIR [--destdir DIR] [--profile NAME] [--features LIST]
                    lay the C and C++ libraries out below DIR";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.split_first() {
        Some((task, [])) if task == "loom" => loom::check(),
        Some((task, [])) if task == "no-std" => no_std::prove(),
        Some((task, [])) if task == "hip-table" => hip_table::compare(),
        Some((task, targets)) if task == "fuzz" => fuzz::run(targets),
        Some((task, rest)) if task == "header" => header::run(rest),
        Some((task, rest)) if task == "install" => install::run(rest),
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// The repository.
fn root() -> PathBuf {
    let mut path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    path.pop();
    path
}

/// Where builds go: cargo's own choice, with one folder per task, since their flags differ.
fn target_dir(task: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    target.join(task)
}

/// The cargo that runs this task, in the repository.
fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    cargo
}

/// Runs `command`, which must succeed.
fn succeed(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}
