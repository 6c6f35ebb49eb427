//! A load factor on the command line.

use std::fmt;
use std::str::FromStr;

/// A load in thousandths of the balanced rows, written as a decimal number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoadFactor(pub u32);

/// Largest load, thousandths.
const MOST: u32 = 1_000_000;

impl FromStr for LoadFactor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        let thousandths = (digits(whole) && digits(decimals) && decimals.len() <= 3)
            .then(|| format!("{whole}{decimals:0<3}").parse().ok())
            .flatten();
        match thousandths {
            Some(thousandths @ 0..=MOST) => Ok(Self(thousandths)),
            _ => Err(format!(
                "{text:?} is no load; give a number up to {} with at most three decimals, as 2.6",
                MOST / 1_000
            )),
        }
    }
}

impl fmt::Display for LoadFactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 1_000, self.0 % 1_000);
        let text = format!("{whole}.{rest:03}");
        let text = text.trim_end_matches('0');
        write!(f, "{}{}", text, if text.ends_with('.') { "0" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_read_as_thousandths() {
        let load = |text: &str| text.parse::<LoadFactor>().map(|load| load.0);
        assert_eq!((load("1"), load("1.2"), load("2.625")), (Ok(1_000), Ok(1_200), Ok(2_625)));
        assert_eq!(LoadFactor(1_200).to_string(), "1.2");
        assert_eq!(LoadFactor(3_000).to_string(), "3.0");
        for bad in ["", "-1", "1e3", "1.2345", "x", "1001", "."] {
            assert!(load(bad).is_err_and(|text| text.contains("is no load")), "{bad}");
        }
    }
}
