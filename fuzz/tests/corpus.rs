//! Replays the committed corpora, so that what fuzzing has found stays found.

use std::fs;
use std::path::Path;

/// Runs `target` on every file of its corpus and on cut and garbled forms of each.
fn replay(name: &str, target: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut count = 0;
    for entry in fs::read_dir(&folder).expect("a corpus") {
        let data = fs::read(entry.expect("an entry").path()).expect("a readable file");
        target(&data);
        target(&data[..data.len() / 2]);
        let garbled: Vec<u8> = data.iter().rev().map(|b| b ^ 1).collect();
        target(&garbled);
        count += 1;
    }
    assert!(count > 0, "{} is empty", folder.display());
}

#[test]
fn budget() {
    replay("budget", bagualu_fuzz::budget);
}

#[test]
fn c_api() {
    replay("c_api", bagualu_fuzz::c_api);
}

#[test]
fn device() {
    replay("device", bagualu_fuzz::device);
}

#[test]
fn mitigate() {
    replay("mitigate", bagualu_fuzz::mitigate);
}

#[test]
fn interleave() {
    replay("interleave", bagualu_fuzz::interleave);
}

#[test]
fn script() {
    replay("script", bagualu_fuzz::script);
}

#[test]
fn solver_json() {
    replay("solver_json", bagualu_fuzz::solver_json);
}

#[test]
fn flag_list() {
    replay("flag_list", bagualu_fuzz::flag_list);
}

#[test]
fn hf_config() {
    replay("hf_config", bagualu_fuzz::hf_config);
}

#[test]
fn yaml() {
    replay("yaml", bagualu_fuzz::yaml);
}
