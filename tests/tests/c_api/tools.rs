//! The prefix that all tests here use, and the programs they call.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository")
}

/// A folder of this run.
pub fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c-api").join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Where the library is installed for these tests, in the profile of the other tests' packages.
pub fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = scratch("prefix");
        install(&["--prefix", text(&prefix)]);
        prefix
    })
}

/// The same installed for another prefix and staged.
pub fn staged() -> &'static Path {
    static STAGED: OnceLock<PathBuf> = OnceLock::new();
    STAGED.get_or_init(|| {
        let staged = scratch("staged");
        install(&["--prefix", "/opt/bagualu", "--destdir", text(&staged)]);
        staged.join("opt/bagualu")
    })
}

/// Runs `cargo xtask install` in the profile of the other tests' packages.
pub fn install(arguments: &[&str]) {
    // Builds with other features leave their libraries in the same place.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut xtask = xtask();
    xtask.arg("install").args(arguments).args(["--profile", "dev"]);
    succeed(&mut xtask);
}

/// `cargo xtask`, with the cargo and the folder of this run.
pub fn xtask() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root()).args(["run", "--quiet", "--package", "xtask", "--"]);
    cargo
}

/// Whether `program` can be called; says why its test is skipped where not.
pub fn has(program: &str, test: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        println!("{test}: skipped, no {program}");
    }
    found
}

/// The C compiler.
pub fn cc() -> String {
    env::var("CC").unwrap_or_else(|_| "cc".to_owned())
}

/// The C++ compiler.
pub fn cxx() -> String {
    env::var("CXX").unwrap_or_else(|_| "c++".to_owned())
}

/// What pkg-config says of the installed library.
pub fn pkg_config(arguments: &[&str], folder: &Path) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.args(arguments).arg("bagualu").env("PKG_CONFIG_PATH", folder);
    stdout(&succeed(&mut command)).split_whitespace().map(str::to_owned).collect()
}

/// Runs `command`, which must succeed.
#[track_caller]
pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        stdout(&output),
        stderr(&output)
    );
    output
}

/// Its standard output.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Its standard error.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A path as an argument.
pub fn text<P: AsRef<OsStr> + ?Sized>(path: &P) -> &str {
    path.as_ref().to_str().expect("UTF-8")
}
