//! Integer arithmetic of the shell, by operator precedence with two stacks.

/// Value of `text`, names looked up by `variable`. `None` for anything that is not plain integer
/// arithmetic, and on overflow or division by zero.
pub(super) fn evaluate(text: &str, variable: &dyn Fn(&str) -> Option<i64>) -> Option<i64> {
    let (mut values, mut operators) = (Vec::new(), Vec::new());
    let mut rest = text.trim_start();
    let mut after_value = false;
    while !rest.is_empty() {
        if rest.starts_with(|c: char| c.is_ascii_digit()) {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
            values.push(number(&rest[..end])?);
            (rest, after_value) = (&rest[end..], true);
        } else if rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            values.push(variable(&rest[..end])?);
            (rest, after_value) = (&rest[end..], true);
        } else if let Some(tail) = rest.strip_prefix('(') {
            operators.push("(");
            (rest, after_value) = (tail, false);
        } else if let Some(tail) = rest.strip_prefix(')') {
            loop {
                match operators.pop()? {
                    "(" => break,
                    operator => apply(operator, &mut values)?,
                }
            }
            (rest, after_value) = (tail, true);
        } else {
            let symbol =
                OPERATORS.iter().map(|&(symbol, _)| symbol).find(|symbol| rest.starts_with(symbol))?;
            rest = &rest[symbol.len()..];
            let operator = match (symbol, after_value) {
                ("-", false) => "neg",
                ("+", false) => continue,
                (_, false) => return None,
                (symbol, true) => symbol,
            };
            while let Some(&top) = operators.last() {
                let binds = precedence(top) > precedence(operator)
                    || (precedence(top) == precedence(operator) && operator != "**" && operator != "neg");
                if top == "(" || !binds {
                    break;
                }
                operators.pop();
                apply(top, &mut values)?;
            }
            operators.push(operator);
            after_value = false;
        }
        rest = rest.trim_start();
    }
    while let Some(operator) = operators.pop() {
        apply(operator, &mut values)?;
    }
    let value = values.pop()?;
    values.is_empty().then_some(value)
}

/// Operators and how tightly they bind; longer symbols before their prefixes.
const OPERATORS: [(&str, u8); 12] = [
    ("**", 7),
    ("<=", 3),
    (">=", 3),
    ("==", 2),
    ("!=", 2),
    ("*", 5),
    ("/", 5),
    ("%", 5),
    ("+", 4),
    ("-", 4),
    ("<", 3),
    (">", 3),
];

fn precedence(operator: &str) -> u8 {
    match operator {
        "neg" => 8,
        _ => OPERATORS.iter().find(|(symbol, _)| *symbol == operator).map_or(0, |(_, p)| *p),
    }
}

fn number(text: &str) -> Option<i64> {
    match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        // A leading zero means octal.
        None if text.len() > 1 && text.starts_with('0') => i64::from_str_radix(text, 8).ok(),
        None => text.parse().ok(),
    }
}

fn apply(operator: &str, values: &mut Vec<i64>) -> Option<()> {
    let b = values.pop()?;
    let value = match operator {
        "neg" => b.checked_neg(),
        _ => {
            let a = values.pop()?;
            match operator {
                "**" => a.checked_pow(b.try_into().ok()?),
                "*" => a.checked_mul(b),
                "/" => a.checked_div(b),
                "%" => a.checked_rem(b),
                "+" => a.checked_add(b),
                "-" => a.checked_sub(b),
                "<=" => Some((a <= b).into()),
                ">=" => Some((a >= b).into()),
                "<" => Some((a < b).into()),
                ">" => Some((a > b).into()),
                "==" => Some((a == b).into()),
                "!=" => Some((a != b).into()),
                _ => None,
            }
        }
    };
    values.push(value?);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_shell() {
        let variable = |name: &str| (name == "N").then_some(4);
        let value = |text| evaluate(text, &variable);
        assert_eq!(value("2 + 3 * N"), Some(14));
        assert_eq!(value("(2+3)*-N"), Some(-20));
        assert_eq!(value("2 ** 3 ** 2"), Some(512));
        assert_eq!(value("7 / 2 % 2"), Some(1));
        assert_eq!(value("8 - 3 - 2 >= 3"), Some(1));
        assert_eq!(value("0x10 + 010"), Some(24));
    }

    #[test]
    fn what_has_no_value_has_none() {
        let none = |_: &str| None;
        for text in
            ["", "1/0", "a", "1 +", "* 2", "(1", "1)", "9223372036854775807 + 1", "1 ? 2 : 3", "2 ** -1"]
        {
            assert_eq!(evaluate(text, &none), None, "{text}");
        }
    }
}
