//! A device of one's own, from a TOML file (`docs/inputs.md`).

use std::borrow::Cow;
use std::fmt;

use toml::{Table, Value};

use super::Device;
use crate::ModelError;
use crate::config::MAX_RANKS;

/// Longest device file, bytes.
pub const MAX_DEVICE_FILE: usize = 1 << 16;

/// What a file's device is like where the file does not say.
const DEFAULT_BASE: &str = "h100-80g";
/// Longest name of a device, characters.
const MAX_NAME: usize = 64;
/// Decimals read of a quantity.
const MAX_DECIMALS: usize = 6;

/// Why a device file is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeviceFileError {
    /// Longer than [`MAX_DEVICE_FILE`].
    TooLong {
        /// The limit, bytes.
        limit: usize,
    },
    /// Not TOML.
    Syntax {
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        problem: String,
    },
    /// A field that no device has.
    UnknownField {
        /// Its name.
        field: String,
    },
    /// A value of the wrong kind or outside its range.
    BadValue {
        /// The field.
        field: &'static str,
        /// Its value, as in the file.
        value: String,
        /// What to give instead.
        fix: String,
    },
    /// `base` is no preset.
    Base(ModelError),
}

/// A kind of quantity: its units with the number of smallest units in each, and its range.
struct Kind {
    units: &'static [(&'static str, u64)],
    least: u64,
    most: u64,
    range: &'static str,
}

const SIZE: Kind = Kind {
    units: &[
        ("B", 1),
        ("MB", 1_000_000),
        ("MiB", 1 << 20),
        ("GB", 1_000_000_000),
        ("GiB", 1 << 30),
        ("TB", 1_000_000_000_000),
        ("TiB", 1 << 40),
    ],
    least: 0,
    most: 1 << 50,
    range: "a size from 0 B to 1024 TiB, as \"80 GiB\"",
};
/// The memory itself cannot be empty.
const MEMORY: Kind = Kind { least: 1 << 20, range: "a size from 1 MiB to 1024 TiB, as \"80 GiB\"", ..SIZE };
const RATE: Kind = Kind {
    units: &[
        ("MB/s", 1_000_000),
        ("GB/s", 1_000_000_000),
        ("TB/s", 1_000_000_000_000),
        ("Gbit/s", 125_000_000),
    ],
    least: 1_000_000,
    most: 1_000_000_000_000_000,
    range: "a bandwidth from 1 MB/s to 1000 TB/s, as \"52 GB/s\" or \"400 Gbit/s\"",
};
const FLOPS: Kind = Kind {
    units: &[("GFLOP/s", 1_000_000_000), ("TFLOP/s", 1_000_000_000_000), ("PFLOP/s", 1_000_000_000_000_000)],
    least: 1_000_000_000,
    most: 1_000_000_000_000_000_000,
    range: "a rate from 1 GFLOP/s to 1000 PFLOP/s, as \"989 TFLOP/s\"",
};

/// A field that holds a quantity: its name, its kind, its place in a device.
type Field = (&'static str, &'static Kind, fn(&mut Device) -> &mut u64);

const FIELDS: [Field; 13] = [
    ("memory", &MEMORY, |device| &mut device.memory_bytes),
    ("margin", &SIZE, |device| &mut device.margin_bytes),
    ("torch_workspace", &SIZE, |device| &mut device.workspaces.torch_bytes),
    ("te_workspace", &SIZE, |device| &mut device.workspaces.transformer_engine_bytes),
    ("host", &SIZE, |device| &mut device.host_bytes),
    ("bf16", &FLOPS, |device| &mut device.bf16_flops),
    ("fp8", &FLOPS, |device| &mut device.fp8_flops),
    ("fp32", &FLOPS, |device| &mut device.fp32_flops),
    ("memory_bandwidth", &RATE, |device| &mut device.memory_bytes_per_s),
    ("intra_node", &RATE, |device| &mut device.intra_bytes_per_s),
    ("inter_node", &RATE, |device| &mut device.inter_bytes_per_s),
    ("copy_out", &RATE, |device| &mut device.copy_out_bytes_per_s),
    ("copy_in", &RATE, |device| &mut device.copy_in_bytes_per_s),
];

impl Device {
    /// The device that a TOML file describes; `name` is its name where the file gives none. What the file
    /// leaves out is that of its `base`, the H100 by default.
    pub fn from_toml(text: &[u8], name: &str) -> Result<Self, DeviceFileError> {
        if text.len() > MAX_DEVICE_FILE {
            return Err(DeviceFileError::TooLong { limit: MAX_DEVICE_FILE });
        }
        let text = str::from_utf8(text).map_err(|error| DeviceFileError::Syntax {
            line: line(text, error.valid_up_to()),
            problem: "not UTF-8".to_owned(),
        })?;
        let table: Table = text.parse().map_err(|error| syntax(text, &error))?;
        let base = match table.get("base") {
            None => DEFAULT_BASE,
            Some(Value::String(base)) => base,
            Some(other) => return Err(bad("base", other, "give the name of a preset, as \"h100-80g\"")),
        };
        let mut device = Self::named(base).map_err(DeviceFileError::Base)?;
        device.name = Cow::Owned(name.to_owned());
        for (field, value) in &table {
            match field.as_str() {
                "base" => {}
                "name" => device.name = Cow::Owned(own_name(value)?),
                "devices_per_node" => device.devices_per_node = devices(value)?,
                other => match FIELDS.iter().find(|(name, ..)| *name == other) {
                    Some((name, kind, place)) => *place(&mut device) = kind.read(name, value)?,
                    None => return Err(DeviceFileError::UnknownField { field: other.to_owned() }),
                },
            }
        }
        if device.margin_bytes >= device.memory_bytes {
            let value = format!("{} bytes", device.margin_bytes);
            let fix = format!("give a margin below the memory, {} bytes", device.memory_bytes);
            return Err(DeviceFileError::BadValue { field: "margin", value, fix });
        }
        Ok(device)
    }
}

impl Kind {
    fn read(&self, field: &'static str, value: &Value) -> Result<u64, DeviceFileError> {
        let number = match value {
            Value::String(text) => self.number(text),
            _ => None,
        };
        match number {
            Some(number) if (self.least..=self.most).contains(&number) => Ok(number),
            _ => Err(bad(field, value, format!("give {}", self.range))),
        }
    }

    /// `24.3 GB/s` in smallest units, rounded down.
    fn number(&self, text: &str) -> Option<u64> {
        let start = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, unit) = (&text[..start], text[start..].trim());
        let &(_, scale) = self.units.iter().find(|(name, _)| *name == unit)?;
        let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
        if whole.is_empty() || decimals.is_empty() || decimals.len() > MAX_DECIMALS {
            return None;
        }
        let digits: u64 = format!("{whole}{decimals:0<MAX_DECIMALS$}").parse().ok()?;
        let one = 10u128.pow(MAX_DECIMALS as u32);
        u64::try_from(u128::from(digits) * u128::from(scale) / one).ok()
    }
}

fn own_name(value: &Value) -> Result<String, DeviceFileError> {
    match value {
        Value::String(name)
            if !name.trim().is_empty()
                && name.chars().count() <= MAX_NAME
                && !name.contains(char::is_control) =>
        {
            Ok(name.clone())
        }
        _ => Err(bad("name", value, format!("give a text of 1 to {MAX_NAME} characters"))),
    }
}

fn devices(value: &Value) -> Result<u64, DeviceFileError> {
    match value {
        Value::Integer(count) if (1..=MAX_RANKS as i64).contains(count) => Ok(count.unsigned_abs()),
        _ => Err(bad("devices_per_node", value, format!("give a whole number from 1 to {MAX_RANKS}, as 8"))),
    }
}

fn bad(field: &'static str, value: &Value, fix: impl Into<String>) -> DeviceFileError {
    // A text of several lines stays one line of the message.
    let value = value.to_string().replace('\n', "\\n");
    DeviceFileError::BadValue { field, value, fix: fix.into() }
}

fn syntax(text: &str, error: &toml::de::Error) -> DeviceFileError {
    let start = error.span().map_or(0, |span| span.start);
    DeviceFileError::Syntax {
        line: line(text.as_bytes(), start),
        problem: error.message().replace('\n', ", "),
    }
}

/// The line of a byte, from 1.
fn line(text: &[u8], position: usize) -> usize {
    1 + text.iter().take(position).filter(|&&byte| byte == b'\n').count()
}

impl fmt::Display for DeviceFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { limit } => write!(f, "the file has more than {limit} bytes; give a device file"),
            Self::Syntax { line, problem } => {
                write!(f, "line {line} is not TOML: {problem}; write field = \"value\"")
            }
            Self::UnknownField { field } => {
                write!(f, "{field:?} is no field of a device; give one of base, name, devices_per_node")?;
                FIELDS.iter().try_for_each(|(name, ..)| write!(f, ", {name}"))
            }
            Self::BadValue { field, value, fix } => write!(f, "{field} is {value}; {fix}"),
            Self::Base(error) => write!(f, "base: {error}"),
        }
    }
}

impl std::error::Error for DeviceFileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Base(error) => Some(error),
            _ => None,
        }
    }
}
