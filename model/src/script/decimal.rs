//! Decimal numbers as Python writes them, without rounding on the way.

/// Largest power of ten.
const MAX_EXPONENT: i32 = 400;

/// Thousandths of a number such as `1`, `.5`, `2.007` or `1.5e-3`, rounded up; none below zero.
pub(super) fn permille(text: &str) -> Option<u32> {
    let (number, exponent) = match text.split_once(['e', 'E']) {
        Some((number, exponent)) => (number, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let number = number.strip_prefix('+').unwrap_or(number);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = [whole, fraction].concat();
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) || exponent.abs() > MAX_EXPONENT {
        return None;
    }
    // Digits in front of the point of the thousandths.
    let point = i32::try_from(whole.len()).ok()?.checked_add(exponent)?.checked_add(3)?;
    let front = usize::try_from(point).unwrap_or(0);
    let (front, back) = match digits.split_at_checked(front) {
        Some((front, back)) => (front.to_owned(), back),
        None => (format!("{digits}{}", "0".repeat(front - digits.len())), ""),
    };
    let front = front.trim_start_matches('0');
    let floor = if front.is_empty() { 0 } else { front.parse::<u32>().ok()? };
    floor.checked_add(u32::from(back.bytes().any(|b| b != b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousandths_are_exact() {
        for (text, thousandths) in [
            ("0", 0),
            ("1", 1_000),
            ("2.007", 2_007),
            ("1.001", 1_001),
            ("0.29", 290),
            (".5", 500),
            ("5.", 5_000),
            ("+1.25", 1_250),
            ("1.5e-3", 2),
            ("0.0000001", 1),
            ("1e-400", 1),
            ("0e9", 0),
            ("12E2", 1_200_000),
            ("0001.1", 1_100),
            ("4294967.295", u32::MAX),
        ] {
            assert_eq!(permille(text), Some(thousandths), "{text}");
        }
        for text in [
            "",
            ".",
            "-0.5",
            "x",
            "1.2.3",
            "1e",
            "inf",
            "nan",
            "4294967.296",
            "1e99",
            "1e999999999",
            "1e-401",
        ] {
            assert_eq!(permille(text), None, "{text}");
        }
    }
}
