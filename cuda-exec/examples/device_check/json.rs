//! JSON objects, written in the order in which their fields come.

use std::fmt::Write as _;

#[derive(Default)]
pub struct Object(String);

impl Object {
    pub fn raw(&mut self, name: &str, value: &str) -> &mut Self {
        let comma = if self.0.is_empty() { "" } else { ", " };
        let _ = write!(self.0, "{comma}\"{name}\": {value}");
        self
    }

    pub fn number(&mut self, name: &str, value: u64) -> &mut Self {
        self.raw(name, &value.to_string())
    }

    /// Three decimals.
    pub fn ratio(&mut self, name: &str, value: f64) -> &mut Self {
        let value = if value.is_finite() { format!("{value:.3}") } else { "null".to_owned() };
        self.raw(name, &value)
    }

    pub fn text(&mut self, name: &str, value: &str) -> &mut Self {
        let mut quoted = String::from("\"");
        for c in value.chars() {
            match c {
                '"' | '\\' => quoted.extend(['\\', c]),
                c if c.is_control() => {
                    let _ = write!(quoted, "\\u{:04x}", u32::from(c));
                }
                c => quoted.push(c),
            }
        }
        quoted.push('"');
        self.raw(name, &quoted)
    }

    pub fn finish(&self) -> String {
        format!("{{{}}}", self.0)
    }
}
