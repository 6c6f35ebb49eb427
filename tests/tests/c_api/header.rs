//! The committed header.

use std::fs;

use crate::tools::{root, stdout, succeed, xtask};

#[test]
fn the_header_is_what_the_sources_say() {
    let output = succeed(xtask().args(["header", "--check"]));
    assert_eq!(stdout(&output), "header: include/bagualu.h is up to date\n");
}

#[test]
fn comments_are_for_readers_of_c() {
    let header = fs::read_to_string(root().join("include/bagualu.h")).expect("committed");
    for rust in ["# Safety", "```", "::", "unsafe", "Option<", "&mut", "[`"] {
        let line = header.lines().find(|line| line.contains(rust));
        assert_eq!(line, None, "{rust}");
    }
}
