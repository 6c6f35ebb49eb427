//! The `bagualu` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    bagualu::main()
}
