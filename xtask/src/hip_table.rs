//! The table of HIP functions against the headers, where they are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{cargo, root, succeed, target_dir};

/// Where headers are: Debian, ROCm, Hygon's DTK.
const INCLUDES: [&str; 3] = ["/usr/include", "/opt/rocm/include", "/opt/dtk/include"];

/// The files with tables of functions that the headers declare.
const TABLES: [&str; 2] = ["cuda-exec/src/hip/table.rs", "cuda-exec/src/gpu/compiler.rs"];

pub fn compare() -> Result<(), String> {
    let Some(include) =
        INCLUDES.iter().find(|include| Path::new(include).join("hip/hip_runtime_api.h").is_file())
    else {
        println!("hip-table: skipped, no HIP headers (Debian: libamdhip64-dev)");
        return Ok(());
    };
    let Some(clang) = libclang() else {
        println!("hip-table: skipped, no libclang (Debian: libclang1-14 and libclang-common-14-dev)");
        return Ok(());
    };
    if !tool("fetch").output().is_ok_and(|output| output.status.success()) {
        println!("hip-table: skipped, bindgen is not here and could not be fetched");
        return Ok(());
    }
    let mut run = tool("run");
    run.arg("--target-dir").arg(target_dir("hip-table")).args(["--quiet", "--", include]);
    succeed(run.args(TABLES).env("LIBCLANG_PATH", clang))
}

fn tool(command: &str) -> Command {
    let mut cargo = cargo();
    cargo.args([command, "--locked", "--manifest-path"]).arg(root().join("tests/hip-table/Cargo.toml"));
    cargo
}

/// The folder of a libclang.
fn libclang() -> Option<PathBuf> {
    if let Some(given) = std::env::var_os("LIBCLANG_PATH") {
        return Some(given.into());
    }
    let versions = fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path().join("lib"));
    let mut folders: Vec<PathBuf> =
        versions.filter(|path| path.to_string_lossy().contains("/llvm-")).collect();
    folders.push("/usr/lib/x86_64-linux-gnu".into());
    folders.push("/usr/lib64".into());
    folders.into_iter().find(|folder| {
        let files = fs::read_dir(folder).into_iter().flatten().flatten();
        files.map(|file| file.file_name()).any(|name| {
            let name = name.to_string_lossy().into_owned();
            name == "libclang.so" || name.starts_with("libclang.so.") || name.starts_with("libclang-")
        })
    })
}
