//! Builds the devices made of threads that `stub.c` describes.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library called `name` of `sources` (of this folder), in a folder of its own; `None`, with a word why, where there is
/// no C compiler.
pub fn build(name: &str, sources: &[&str]) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME"));
    std::fs::create_dir_all(&folder).expect("a folder for the stub");
    let library = folder.join(name);
    // Written aside and renamed, since tests of one binary may run beside each other.
    let aside = folder.join(format!("{name}.{:?}", std::thread::current().id()));
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stub");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-O1"]);
    cc.args(["-shared", "-fPIC", "-pthread", "-o"])
        .arg(&aside)
        .args(sources.iter().map(|source| here.join(source)));
    match cc.status() {
        Ok(status) => assert!(status.success(), "{cc:?}: {status}"),
        Err(error) => {
            println!("skipped: no C compiler to build the stub ({error})");
            return None;
        }
    }
    std::fs::rename(&aside, &library).expect("the stub in its place");
    Some(library)
}

/// Runs the test `name` of this binary again, in a process that finds libraries in `folder` first.
#[allow(dead_code, reason = "HIP's library is given by its path")]
pub fn run_again(name: &str, folder: &Path, variables: &[(&str, &str)]) {
    let mut child = Command::new(std::env::current_exe().expect("this binary"));
    child.args([name, "--exact", "--nocapture"]).env("LD_LIBRARY_PATH", folder.as_os_str());
    child.envs(variables.iter().map(|(name, value)| (OsStr::new(name), OsStr::new(value))));
    let output = child.output().expect("this binary runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("1 passed"), "no test called {name}: {said}");
}
