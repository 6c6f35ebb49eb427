//! C programs through pkg-config, shared and static.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tools::{cc, has, pkg_config, prefix, root, scratch, stderr, stdout, succeed};

/// A C program of the repository.
pub struct Program {
    pub source: &'static str,
    /// A file of the repository that it is called with.
    pub argument: Option<&'static str>,
    /// What its output ends with.
    pub end: &'static str,
}

pub const PROGRAMS: [Program; 3] = [
    Program { source: "tests/c/plan.c", argument: Some("examples/glm-423b.sh"), end: "plan: ok\n" },
    Program { source: "tests/c/exec.c", argument: None, end: "exec: ok\n" },
    Program { source: "examples/c/pipeline.c", argument: None, end: " bytes of host memory in use\n" },
];

/// One that does what it must not.
pub const OVERRUN: Program = Program { source: "tests/c/overrun.c", argument: None, end: "" };

/// How a program is linked.
#[derive(Clone, Copy, Debug)]
pub enum Linked {
    Shared,
    Static,
}

const STRICT: [&str; 6] = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g"];

impl Program {
    /// Compiles it against the installed library.
    pub fn compile(&self, linked: Linked, more: &[&str]) -> PathBuf {
        let folder = prefix().join("lib/pkgconfig");
        let stem = Path::new(self.source).file_stem().and_then(|stem| stem.to_str()).expect("a name");
        let kind = if more.is_empty() { "plain" } else { "sanitized" };
        let program = scratch("programs").join(format!("{stem}-{linked:?}-{kind}"));
        let mut command = Command::new(cc());
        command.args(STRICT).args(more).arg("-o").arg(&program).arg(root().join(self.source));
        command.args(pkg_config(&["--cflags"], &folder));
        match linked {
            Linked::Shared => command.args(pkg_config(&["--libs"], &folder)),
            Linked::Static => {
                let libraries = pkg_config(&["--static", "--libs"], &folder);
                // The archive by its path: beside a shared library -l would take that one.
                let archive = prefix().join("lib/libbagualu.a");
                command.arg(archive).args(libraries.iter().filter(|flag| *flag != "-lbagualu"))
            }
        };
        succeed(&mut command);
        program
    }

    /// Runs `command`, which is the program or runs it, and checks how it ends.
    pub fn run(&self, command: &mut Command) {
        let output = succeed(command.args(self.argument.map(|argument| root().join(argument))));
        assert!(stdout(&output).ends_with(self.end), "{}", stdout(&output));
        assert_eq!(stderr(&output), "");
    }
}

/// A program with the shared library found.
pub fn command(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    command.env("LD_LIBRARY_PATH", prefix().join("lib"));
    command
}

pub fn tools_are_there(test: &str) -> bool {
    has(&cc(), test) && has("pkg-config", test)
}

#[test]
fn c_programs_run_with_either_library() {
    if !tools_are_there("c_programs_run_with_either_library") {
        return;
    }
    for program in PROGRAMS {
        program.run(&mut command(program.compile(Linked::Shared, &[])));
        // The static one runs where the shared library is not found.
        program.run(&mut Command::new(program.compile(Linked::Static, &[])));
    }
}

#[test]
fn the_c_example_is_built_by_its_makefile() {
    let test = "the_c_example_is_built_by_its_makefile";
    if !tools_are_there(test) || !has("make", test) {
        return;
    }
    let folder = scratch("example-c");
    for file in ["Makefile", "pipeline.c"] {
        fs::copy(root().join("examples/c").join(file), folder.join(file)).expect("copied");
    }
    let mut make = Command::new("make");
    make.arg("-B").current_dir(&folder).env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig"));
    // Not those of the make that runs this test.
    succeed(make.env_remove("MAKEFLAGS").env_remove("MFLAGS").env_remove("MAKELEVEL"));
    let output = succeed(&mut command(folder.join("pipeline")));
    assert!(stdout(&output).contains("768 tensors checked, 0 wrong"), "{}", stdout(&output));
    // Every strategy was taken.
    for taken in ["offloaded", "recomputed", "quantised"] {
        assert!(!stdout(&output).contains(&format!(" 0 tensors {taken}")), "{}", stdout(&output));
        assert!(!stdout(&output).contains(&format!(" 0 {taken}")), "{}", stdout(&output));
    }
    let output = command(folder.join("pipeline")).arg("300").output().expect("it runs");
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("no plan fits: 525568 bytes are needed, 300000 there"));
}
