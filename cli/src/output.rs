//! Writing for the user.

use std::io::{self, Write};

use bagualu_core::layer::Strategy;
use comfy_table::{CellAlignment, Table, presets};

use crate::Error;

/// Writes `text` to standard output.
pub fn print(text: &str) -> Result<(), Error> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(|source| Error::output("standard output", source))
}

/// `value` as one line of JSON.
pub fn json(value: &impl serde::Serialize) -> Result<String, Error> {
    match serde_json::to_string(value) {
        Ok(text) => Ok(text + "\n"),
        Err(error) => Err(Error::output("standard output", error.into())),
    }
}

/// Writes `text` to standard error. If even that fails there is nobody left to tell.
pub fn complain(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// A table in the style of all of ours: names to the left, quantities to the right.
pub fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// A strategy's name.
pub fn name(strategy: Strategy) -> &'static str {
    match strategy {
        Strategy::Keep => "keep",
        Strategy::Recompute => "recompute",
        Strategy::Offload => "offload",
        Strategy::Quantize => "quantize",
    }
}

/// Columns of a line of text.
const WIDTH: usize = 100;

/// `line` in lines of at most 100 columns, those after the first behind `indent`.
pub fn wrapped(line: &str, indent: &str) -> String {
    let start = line.len() - line.trim_start().len();
    let mut text = line[..start].to_owned();
    let mut column = line[..start].trim_start_matches('\n').chars().count();
    for (place, word) in line[start..].split_whitespace().enumerate() {
        let width = word.chars().count();
        if place > 0 && column + 1 + width > WIDTH {
            text.push('\n');
            text.push_str(indent);
            column = indent.len();
        } else if place > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += width;
    }
    text + "\n"
}

/// Bytes for people: `1.50 GiB`.
pub fn bytes(bytes: u64) -> String {
    scaled(bytes, 1024, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"])
}

/// Nanoseconds for people: `1.50 ms`.
pub fn ns(ns: u64) -> String {
    scaled(ns, 1000, &["ns", "µs", "ms", "s"])
}

/// In integers, rounded down, so that it reads the same everywhere.
fn scaled(value: u64, step: u64, units: &[&str]) -> String {
    let mut unit = 0;
    let mut one = 1u64;
    while unit + 1 < units.len() && value / one >= step {
        one *= step;
        unit += 1;
    }
    if unit == 0 {
        return format!("{value} {}", units[0]);
    }
    let hundredths = u128::from(value % one) * 100 / u128::from(one);
    format!("{}.{hundredths:02} {}", value / one, units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_wrapped_between_words() {
        let line = format!("  {}", "word ".repeat(40));
        let text = wrapped(&line, "    ");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("    word")), "{text}");
        assert_eq!(text.split_whitespace().count(), 40);
        assert_eq!(wrapped("\nshort", " "), "\nshort\n");
    }

    #[test]
    fn quantities_read_well() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(bytes(u64::MAX), "15.99 EiB");
        assert_eq!(ns(1_500_000), "1.50 ms");
        assert_eq!(ns(u64::MAX), "18446744073.70 s");
    }
}
