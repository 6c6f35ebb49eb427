//! The proof that the core needs neither std nor libc, with nothing but the stable toolchain.
//!
//! 1. A staticlib with its own panic handler depends on the core: it builds only if nothing brings std.
//! 2. Linked without std and libc it runs, and its answers are right.
//! 3. Negative control: with std in one dependency it must not build.

use std::process::Command;

use crate::{cargo, root, succeed, target_dir};

/// What the probe exits with when the core's answers were right.
const RIGHT: i32 = 42;

pub fn prove() -> Result<(), String> {
    succeed(build().arg("--release"))?;
    println!("no-std: the core builds without std");
    run()?;
    println!("no-std: linked without libc it runs and answers right");
    refuse_std()?;
    println!("no-std: with std in a dependency it does not build");
    Ok(())
}

fn build() -> Command {
    let mut cargo = cargo();
    cargo.arg("build").arg("--locked");
    cargo.arg("--manifest-path").arg(root().join("tests/no-std-probe/Cargo.toml"));
    cargo.arg("--target-dir").arg(target_dir("no-std-probe"));
    cargo
}

fn run() -> Result<(), String> {
    let folder = target_dir("no-std-probe").join("release");
    let program = folder.join("probe");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut link = Command::new(compiler);
    link.args(["-nostdlib", "-static", "-no-pie", "-Wl,--gc-sections", "-Wl,-u,_start", "-o"]);
    succeed(link.arg(&program).arg(folder.join("libno_std_probe.a")))?;
    let status = Command::new(&program).status().map_err(|e| format!("{}: {e}", program.display()))?;
    match status.code() {
        Some(RIGHT) => Ok(()),
        _ => Err(format!("{}: {status}, expected {RIGHT}", program.display())),
    }
}

fn refuse_std() -> Result<(), String> {
    let output = build().args(["--release", "--features", "std"]).output().map_err(|e| e.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    // E0152: the panic handler is there twice, the probe's and std's.
    match output.status.success() || !said.contains("E0152") {
        false => Ok(()),
        true => Err(format!("the negative control did not fail as expected:\n{said}")),
    }
}
