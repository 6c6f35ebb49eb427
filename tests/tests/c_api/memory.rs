//! The C and C++ programs under AddressSanitizer, the C ones under valgrind too, and that both would notice.

use std::process::Command;

use crate::c::{Linked, OVERRUN, PROGRAMS, command, tools_are_there};
use crate::tools::{cc, cxx, has, pkg_config, prefix, root, scratch, stderr, stdout, succeed};

const SANITIZED: [&str; 3] = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// Whether the compiler has the sanitizer's library.
fn sanitizer_is_there(test: &str) -> bool {
    if !tools_are_there(test) {
        return false;
    }
    let source = scratch("programs").join("nothing.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("written");
    let mut compiler = Command::new(cc());
    compiler.args(SANITIZED).arg("-o").arg(scratch("programs").join(format!("nothing-{test}"))).arg(source);
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
        for program in PROGRAMS {
            program.run(&mut command(program.compile(linked, &SANITIZED)));
        }
    }
}

#[test]
fn memory_of_cpp_is_clean_under_address_sanitizer() {
    let test = "memory_of_cpp_is_clean_under_address_sanitizer";
    if !sanitizer_is_there(test) || !has(&cxx(), test) {
        return;
    }
    let program = scratch("programs").join("api-sanitized");
    let mut compiler = Command::new(cxx());
    compiler.args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic"]).args(SANITIZED);
    compiler.arg("-o").arg(&program).arg(root().join("tests/cpp/api.cpp"));
    let folder = prefix().join("lib/pkgconfig");
    succeed(compiler.args(pkg_config(&["--cflags", "--libs"], &folder)));
    let output = succeed(&mut command(&program));
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("api: ok\n", ""));
}

#[test]
fn memory_errors_are_seen_by_address_sanitizer() {
    if !sanitizer_is_there("memory_errors_are_seen_by_address_sanitizer") {
        return;
    }
    // The library is told of one element more than the buffer has.
    let program = OVERRUN.compile(Linked::Shared, &SANITIZED);
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
    let valgrind = || {
        let mut valgrind = command("valgrind");
        valgrind.args(["--quiet", "--error-exitcode=9", "--leak-check=full"]);
        valgrind.args(["--errors-for-leak-kinds=definite", "--show-leak-kinds=definite"]);
        valgrind
    };
    for program in PROGRAMS {
        program.run(valgrind().arg(program.compile(Linked::Shared, &[])));
    }
    let overrun = OVERRUN.compile(Linked::Shared, &[]);
    let control = valgrind().arg(overrun).arg("overrun").output().expect("it runs");
    assert_eq!(control.status.code(), Some(9), "{}", stderr(&control));
}
