//! What a command can fail with, and what the user sees of it (`docs/errors.md`).

use std::process::ExitCode;
use std::{fmt, io};

use bagualu_sim::text::message;

use crate::output;

/// Characters shown of a field or file.
const FIELD_CHARS: usize = 160;
/// Characters shown of a problem or a fix.
const PROBLEM_CHARS: usize = 600;

/// Why a command failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The input is wrong: exit status 2.
    BadInput {
        /// Path of the offending field, file or option: `layers[0].ops[1].reads[0]`, `--device`.
        field: String,
        /// What is wrong, with the value: `no tensor "q"`.
        problem: String,
        /// What to do about it; empty where `problem` says it already.
        fix: String,
    },
    /// The input is right and nothing fits: exit status 3.
    Infeasible {
        /// What does not fit: `the strongest strategies hold`.
        what: String,
        /// The smallest number of bytes that would do.
        needed_bytes: u64,
        /// The bytes there are.
        available_bytes: u64,
        /// Whether the command has printed its answer already, the bytes in it.
        answered: bool,
    },
    /// The output could not be written: exit status 1.
    Output {
        /// The file, or `standard output`.
        to: String,
        /// Why.
        source: io::Error,
    },
    /// Whoever read the output has left: nothing to say.
    Closed,
}

impl Error {
    /// A [`Self::BadInput`].
    pub fn bad_input(field: impl Into<String>, problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::BadInput { field: field.into(), problem: problem.into(), fix: fix.into() }
    }

    /// A [`Self::Infeasible`].
    pub fn infeasible(what: impl Into<String>, needed_bytes: u64, available_bytes: u64) -> Self {
        Self::Infeasible { what: what.into(), needed_bytes, available_bytes, answered: false }
    }

    /// An infeasible answer whose JSON the command has printed itself.
    pub fn answered(mut self) -> Self {
        if let Self::Infeasible { answered, .. } = &mut self {
            *answered = true;
        }
        self
    }

    /// What a failed write to `to` is: a reader that has left is no error to speak of.
    pub fn output(to: impl Into<String>, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Output { to: to.into(), source },
        }
    }

    /// The exit status.
    pub fn status(&self) -> u8 {
        match self {
            Self::Closed => 0,
            Self::Output { .. } => 1,
            Self::BadInput { .. } => 2,
            Self::Infeasible { .. } => 3,
        }
    }

    /// Tells the user on standard error; under `--json`, an infeasible answer is also an object on
    /// standard output.
    pub fn report(&self, json: bool) -> ExitCode {
        if let Self::Infeasible { needed_bytes, available_bytes, answered: false, .. } = self
            && json
        {
            let answer = format!(
                "{{\"infeasible\":{{\"needed_bytes\":{needed_bytes},\"available_bytes\":{available_bytes}}}}}\n"
            );
            if let Err(error) = output::print(&answer) {
                return error.report(false);
            }
        }
        if !matches!(self, Self::Closed) {
            output::complain(&format!("error: {self}\n"));
        }
        ExitCode::from(self.status())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadInput { field, problem, fix } => {
                write!(f, "{}: {}", message(field, FIELD_CHARS), message(problem, PROBLEM_CHARS))?;
                if fix.is_empty() { Ok(()) } else { write!(f, "; {}", message(fix, PROBLEM_CHARS)) }
            }
            Self::Infeasible { what, needed_bytes, available_bytes, .. } => write!(
                f,
                "infeasible: {} {needed_bytes} bytes, {available_bytes} are available: {} too few",
                message(what, PROBLEM_CHARS),
                needed_bytes.saturating_sub(*available_bytes)
            ),
            Self::Output { to, source } => {
                write!(f, "{} cannot be written: {source}", message(to, FIELD_CHARS))
            }
            Self::Closed => write!(f, "the output was closed"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Output { source, .. } => Some(source),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_field_value_and_fix() {
        let error = Error::bad_input("layers[0].ops[1].reads[0]", "no tensor \"q\"", "name one of x, a");
        assert_eq!(error.to_string(), "layers[0].ops[1].reads[0]: no tensor \"q\"; name one of x, a");
        assert_eq!(error.status(), 2);
        let error = Error::infeasible("the floors hold", 120, 100);
        assert_eq!(error.to_string(), "infeasible: the floors hold 120 bytes, 100 are available: 20 too few");
        assert_eq!(error.status(), 3);
    }

    #[test]
    fn a_message_is_short_and_without_control_characters() {
        let error = Error::bad_input("k".repeat(100_000), "\u{1b}[2J".repeat(100_000), "\n".repeat(9));
        let text = error.to_string();
        assert!(text.chars().count() < 8_000 && !text.contains(char::is_control), "{text}");
    }

    #[test]
    fn a_reader_that_left_is_quiet() {
        let error = Error::output("standard output", io::ErrorKind::BrokenPipe.into());
        assert_eq!(error.status(), 0);
        let error = Error::output("a.svg", io::ErrorKind::StorageFull.into());
        assert_eq!(error.status(), 1);
    }
}
