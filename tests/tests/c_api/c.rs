//! C programs through pkg-config, shared and static.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tools::{cc, has, pkg_config, prefix, root, scratch, stderr, stdout, succeed};

/// The programs of `tests/c`, each with its argument in the repository.
pub const PROGRAMS: [(&str, &str); 2] = [("plan", "examples/glm-423b.sh"), ("exec", "")];

/// How a program is linked.
#[derive(Clone, Copy, Debug)]
pub enum Linked {
    Shared,
    Static,
}

const STRICT: [&str; 6] = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g"];

/// Compiles a program of `tests/c` against the installed library.
pub fn compile(source: &str, linked: Linked, more: &[&str]) -> PathBuf {
    let folder = prefix().join("lib/pkgconfig");
    let program = scratch("programs").join(format!("{source}-{linked:?}{}", more.concat().replace(',', "-")));
    let mut command = Command::new(cc());
    command.args(STRICT).args(more).arg("-o").arg(&program);
    command.arg(root().join("tests/c").join(source).with_extension("c"));
    command.args(pkg_config(&["--cflags"], &folder));
    match linked {
        Linked::Shared => command.args(pkg_config(&["--libs"], &folder)),
        Linked::Static => {
            let libraries = pkg_config(&["--static", "--libs"], &folder);
            let archive = prefix().join("lib/libbagualu.a");
            // The archive by its path: beside a shared library -l would take that one.
            command.arg(archive).args(libraries.iter().filter(|flag| *flag != "-lbagualu"))
        }
    };
    succeed(&mut command);
    program
}

/// A program with the shared library found.
pub fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
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
    for linked in [Linked::Shared, Linked::Static] {
        for (name, argument) in PROGRAMS {
            let mut program = Command::new(compile(name, linked, &[]));
            if let Linked::Shared = linked {
                // The static one runs where the shared library is not found.
                program.env("LD_LIBRARY_PATH", prefix().join("lib"));
            }
            let output = succeed(program.arg(root().join(argument)));
            assert_eq!((stdout(&output), stderr(&output)), (format!("{name}: ok\n"), String::new()));
        }
    }
}
