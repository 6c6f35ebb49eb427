//! The cxx bridge, from C++.

use std::process::Command;

use crate::tools::{cxx, has, install, pkg_config, root, scratch, stdout, succeed, text};

#[test]
fn a_cpp_program_plans_by_the_bridge() {
    let test = "a_cpp_program_plans_by_the_bridge";
    if !has(&cxx(), test) || !has("pkg-config", test) {
        return;
    }
    let prefix = scratch("bridge");
    install(&["--prefix", text(&prefix), "--features", "cxx"]);
    let program = scratch("programs").join("bridge");
    let mut compiler = Command::new(cxx());
    compiler
        .args(["-std=c++17", "-Wall", "-Wextra", "-o"])
        .arg(&program)
        .arg(root().join("tests/cpp/bridge.cpp"));
    let folder = prefix.join("lib/pkgconfig");
    compiler.args(pkg_config(&["--cflags"], &folder)).arg(prefix.join("lib/libbagualu.a"));
    let private = pkg_config(&["--static", "--libs"], &folder);
    succeed(compiler.args(private.iter().filter(|flag| *flag != "-lbagualu")));
    let output = succeed(Command::new(&program).arg(root().join("examples/glm-423b.sh")));
    assert_eq!(stdout(&output), "bridge: ok\n");
}
