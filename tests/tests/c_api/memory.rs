//! The C programs under AddressSanitizer and under valgrind, and that both would notice.

use std::process::Command;

use crate::c::{Linked, PROGRAMS, command, compile, tools_are_there};
use crate::tools::{cc, has, root, scratch, stderr, stdout, succeed};

const SANITIZED: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// Whether the compiler has the sanitizer's library.
fn sanitizer_is_there(test: &str) -> bool {
    if !tools_are_there(test) {
        return false;
    }
    let source = scratch("programs").join("nothing.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("written");
    let program = scratch("programs").join("nothing");
    let mut compiler = Command::new(cc());
    compiler.args(SANITIZED).arg("-o").arg(&program).arg(source);
    let there = compiler.output().is_ok_and(|output| output.status.success());
    if !there {
        println!("{test}: skipped, {} has no AddressSanitizer", cc());
    }
    there
}

#[test]
fn memory_is_clean_under_address_sanitizer() {
    if !sanitizer_is_there("memory_is_clean_under_address_sanitizer") {
        return;
    }
    for linked in [Linked::Shared, Linked::Static] {
        for (name, argument) in PROGRAMS {
            let program = compile(name, linked, &SANITIZED);
            let output = succeed(command(&program).arg(root().join(argument)));
            assert_eq!((stdout(&output), stderr(&output)), (format!("{name}: ok\n"), String::new()));
        }
    }
}

#[test]
fn memory_errors_are_seen_by_address_sanitizer() {
    if !sanitizer_is_there("memory_errors_are_seen_by_address_sanitizer") {
        return;
    }
    // The library is told of one element more than the buffer has.
    let program = compile("overrun", Linked::Shared, &SANITIZED);
    let output = command(&program).arg("overrun").output().expect("it runs");
    assert!(!output.status.success());
    assert!(stderr(&output).contains("AddressSanitizer: heap-buffer-overflow"), "{}", stderr(&output));
    let output = command(&program).arg("leak").output().expect("it runs");
    assert!(!output.status.success());
    assert!(stderr(&output).contains("LeakSanitizer: detected memory leaks"), "{}", stderr(&output));
}

#[test]
fn memory_is_clean_under_valgrind() {
    let test = "memory_is_clean_under_valgrind";
    if !tools_are_there(test) || !has("valgrind", test) {
        return;
    }
    let valgrind = |program: &std::path::Path| {
        let mut valgrind = command(std::path::Path::new("valgrind"));
        valgrind.args(["--quiet", "--error-exitcode=9", "--leak-check=full"]);
        valgrind.args(["--errors-for-leak-kinds=definite", "--show-leak-kinds=definite"]);
        valgrind.arg(program);
        valgrind
    };
    for (name, argument) in PROGRAMS {
        let output = succeed(valgrind(&compile(name, Linked::Shared, &[])).arg(root().join(argument)));
        assert_eq!(stdout(&output), format!("{name}: ok\n"));
    }
    let control =
        valgrind(&compile("overrun", Linked::Shared, &[])).arg("overrun").output().expect("it runs");
    assert_eq!(control.status.code(), Some(9), "{}", stderr(&control));
}
