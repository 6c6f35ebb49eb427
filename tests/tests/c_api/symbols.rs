//! What the shared library exports: what the header declares, and nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::tools::{has, prefix, root, stdout, succeed};

/// The functions that the header declares.
pub fn declared() -> BTreeSet<String> {
    let header = fs::read_to_string(root().join("include/bagualu.h")).expect("committed");
    let name = |line: &str| {
        // A declaration stands at the beginning of its line, and is the only thing there with a parenthesis.
        let (head, _) = line.split_once('(')?;
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let name = head.rsplit(|c: char| !is_word(c)).next()?;
        let starts = line.starts_with(|c: char| c.is_ascii_alphabetic());
        (starts && name.starts_with("bagualu_")).then(|| name.to_owned())
    };
    header.lines().filter_map(name).collect()
}

#[test]
fn the_shared_library_exports_what_the_header_declares() {
    if !has("nm", "the_shared_library_exports_what_the_header_declares") {
        return;
    }
    let library = prefix().join("lib/libbagualu.so");
    let output = succeed(Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(library));
    let exported: BTreeSet<String> =
        stdout(&output).lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
    let declared = declared();
    assert!(declared.len() > 50, "{declared:?}");
    assert_eq!(exported, declared);
}
