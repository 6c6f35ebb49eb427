//! The threads of the host device in every order, by loom, which replaces locks and threads under `--cfg loom`.

use crate::{cargo, succeed, target_dir};

pub fn check() -> Result<(), String> {
    let mut cargo = cargo();
    cargo.args(["test", "--locked", "--package", "bagualu-exec", "--no-default-features", "--lib", "loom"]);
    cargo.arg("--target-dir").arg(target_dir("loom"));
    cargo.env("RUSTFLAGS", "--cfg loom").env("CARGO_PROFILE_DEV_DEBUG", "0");
    succeed(&mut cargo)
}
