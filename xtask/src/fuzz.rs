//! Builds and runs the fuzz targets: built by cargo-fuzz where it is installed, by cargo otherwise.
//!
//! Both work on the stable toolchain. No sanitizer is asked for, since nothing here is `unsafe`; what is
//! left is LLVM's coverage pass, which stable offers.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::{cargo, root, succeed, target_dir};

/// The targets: one binary each in `fuzz/targets`, one folder each in `fuzz/corpus`.
const TARGETS: [&str; 10] = [
    "budget",
    "c_api",
    "device",
    "flag_list",
    "hf_config",
    "mitigate",
    "interleave",
    "script",
    "solver_json",
    "yaml",
];

/// What libFuzzer needs of the compiler; cargo-fuzz passes the same.
const COVERAGE: &str = "--cfg fuzzing -Cdebug-assertions -Ccodegen-units=1 -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Fuzzes `targets`, all where none is named, for `FUZZ_SECONDS` each.
pub fn run(targets: &[String]) -> Result<(), String> {
    if let Some(unknown) = targets.iter().find(|t| !TARGETS.contains(&t.as_str())) {
        return Err(format!("no fuzz target {unknown:?}; there are {}", TARGETS.join(", ")));
    }
    let seconds = seconds()?;
    let host = host()?;
    let with_cargo_fuzz = has_cargo_fuzz();
    for target in TARGETS.into_iter().filter(|t| targets.is_empty() || targets.iter().any(|u| u == t)) {
        succeed(&mut if with_cargo_fuzz { cargo_fuzz_build(target) } else { cargo_build(target, &host) })?;
        println!("fuzz: {target} for {seconds} s");
        fuzz(target, &host, seconds)?;
    }
    Ok(())
}

fn fuzz(target: &str, host: &str, seconds: u32) -> Result<(), String> {
    // libFuzzer adds new inputs to the first folder, which is not committed, and only reads the second.
    let fresh = folder(target_dir("fuzz").join("corpus").join(target))?;
    let findings = folder(target_dir("fuzz").join("findings").join(target))?;
    let mut fuzzer = Command::new(target_dir("fuzz").join(host).join("release").join(target));
    fuzzer.arg(fresh).arg(root().join("fuzz/corpus").join(target));
    fuzzer.arg(format!("-max_total_time={seconds}"));
    let dictionary = root().join("fuzz/dictionaries").join(target).with_extension("dict");
    if dictionary.exists() {
        fuzzer.arg(format!("-dict={}", dictionary.display()));
    }
    fuzzer.arg(format!("-artifact_prefix={}/", findings.display()));
    fuzzer.args(["-max_len=16384", "-timeout=20", "-rss_limit_mb=4096", "-print_final_stats=1"]);
    succeed(&mut fuzzer)
}

fn cargo_fuzz_build(target: &str) -> Command {
    let mut cargo = cargo();
    cargo.args(["fuzz", "build", "--fuzz-dir", "fuzz", "--sanitizer", "none", "--features", "libfuzzer"]);
    cargo.arg("--target-dir").arg(target_dir("fuzz")).arg(target);
    cargo
}

fn cargo_build(target: &str, host: &str) -> Command {
    let mut cargo = cargo();
    // With --target, build scripts and macros are not instrumented.
    cargo.args(["build", "--release", "--package", "bagualu-fuzz", "--features", "libfuzzer"]);
    cargo.args(["--target", host, "--bin", target]).arg("--target-dir").arg(target_dir("fuzz"));
    cargo.env("RUSTFLAGS", COVERAGE);
    cargo
}

fn has_cargo_fuzz() -> bool {
    let mut cargo = cargo();
    cargo.args(["fuzz", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    cargo.status().is_ok_and(|status| status.success())
}

fn seconds() -> Result<u32, String> {
    let Ok(text) = std::env::var("FUZZ_SECONDS") else { return Ok(300) };
    text.parse().map_err(|_| format!("FUZZ_SECONDS: {text:?} is not a number of seconds; give one, like 300"))
}

/// The target triple of this machine.
fn host() -> Result<String, String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output().map_err(|e| format!("rustc: {e}"))?;
    let version = String::from_utf8_lossy(&output.stdout);
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| format!("rustc -vV names no host:\n{version}"))
}

fn folder(path: PathBuf) -> Result<PathBuf, String> {
    std::fs::create_dir_all(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(path)
}
