//! `--moe-layer-freq`.

use crate::MoeLayers;

/// Longest list.
const MAX_PATTERN: usize = 4_096;
/// Deepest nesting of brackets.
const MAX_DEPTH: u32 = 16;

/// What a pattern should be.
pub(super) const EXPECTED: &str = "a number, or a list such as ([0]*3+[1]*29) with an entry for each layer";

/// A number, or a Python list made of `[…]`, `(…)`, `*` and `+` with an entry, 0 or 1, for each layer.
pub(super) fn pattern(text: &str, layers: u32) -> Option<MoeLayers> {
    if let Ok(every) = text.trim().parse() {
        return Some(MoeLayers::Every(every));
    }
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let mut parser = Parser { rest: &text, depth: 0 };
    let Value::List(list) = parser.sum()? else { return None };
    if !parser.rest.is_empty() || list.len() != layers as usize {
        return None;
    }
    let dense = list.iter().take_while(|&&moe| !moe).count();
    Some(match list[dense..].iter().all(|&moe| moe) && dense < list.len() {
        true => MoeLayers::AfterDense(u32::try_from(dense).ok()?),
        false => MoeLayers::Listed(list),
    })
}

/// What an expression is worth.
enum Value {
    Number(usize),
    List(Vec<bool>),
}

/// Python's rules for sums and products of numbers and lists.
struct Parser<'a> {
    rest: &'a str,
    depth: u32,
}

impl Parser<'_> {
    fn sum(&mut self) -> Option<Value> {
        let mut sum = self.product()?;
        while self.takes('+') {
            sum = match (sum, self.product()?) {
                (Value::Number(a), Value::Number(b)) => Value::Number(a.checked_add(b)?),
                (Value::List(a), Value::List(b)) if a.len() + b.len() <= MAX_PATTERN => {
                    Value::List([a, b].concat())
                }
                _ => return None,
            };
        }
        Some(sum)
    }

    fn product(&mut self) -> Option<Value> {
        let mut product = self.atom()?;
        while self.takes('*') {
            product = match (product, self.atom()?) {
                (Value::Number(a), Value::Number(b)) => Value::Number(a.checked_mul(b)?),
                (Value::List(list), Value::Number(times)) | (Value::Number(times), Value::List(list)) => {
                    let fits = list.len().checked_mul(times)? <= MAX_PATTERN;
                    // Nothing is nothing, however often.
                    Value::List(if list.is_empty() { list } else { fits.then(|| list.repeat(times))? })
                }
                _ => return None,
            };
        }
        Some(product)
    }

    fn atom(&mut self) -> Option<Value> {
        if self.takes('[') {
            return self.list();
        }
        if !self.takes('(') {
            return self.number().map(Value::Number);
        }
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let value = self.sum()?;
        self.depth -= 1;
        self.takes(')').then_some(value)
    }

    /// Entries up to the closing bracket; a comma may stand behind the last.
    fn list(&mut self) -> Option<Value> {
        let mut list = Vec::new();
        while !self.takes(']') {
            list.push(match self.number()? {
                0 => false,
                1 => true,
                _ => return None,
            });
            if !self.takes(',') && !self.rest.starts_with(']') {
                return None;
            }
        }
        (list.len() <= MAX_PATTERN).then_some(Value::List(list))
    }

    fn number(&mut self) -> Option<usize> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        digits.parse().ok()
    }

    fn takes(&mut self, c: char) -> bool {
        match self.rest.strip_prefix(c) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether `text` stands for `entries`.
    fn is(text: &str, entries: &str) -> bool {
        let layers = entries.len() as u32;
        let digit = |moe| if moe { '1' } else { '0' };
        let read = pattern(text, layers).map(|p| (0..layers).map(|layer| digit(p.contains(layer))).collect());
        read == Some(entries.to_owned())
    }

    #[test]
    fn layer_patterns_are_python_lists() {
        assert_eq!(pattern("2", 3), Some(MoeLayers::Every(2)));
        assert_eq!(pattern("([0]*3+[1]*29)", 32), Some(MoeLayers::AfterDense(3)));
        let alternate = MoeLayers::Listed(vec![false, true, false, true]);
        assert_eq!(pattern("[0, 1]*2", 4), Some(alternate.clone()));
        assert_eq!(pattern("([0]+[1])*2", 4), Some(alternate));
    }

    #[test]
    fn brackets_and_products_mean_what_they_mean_in_python() {
        // The first is the example of Megatron's own help.
        assert!(is("([1]*3+[0]*1)*3", "111011101110"));
        assert!(is("([0]+[1])*6", "010101010101"));
        assert!(is("[0]+[1]*6", "0111111"));
        assert!(is("2*[0,1,]+[1]", "01011"));
        assert!(is("[1]+([0]*2+([1]*2))*(1+1)", "100110011"));
        assert!(is("[0]*2*2+[1]*0+[]*9+[1]", "00001"));
    }

    #[test]
    fn what_is_no_list_of_so_many_layers_is_refused() {
        let deep = format!("{}[1]{}", "(".repeat(99_999), ")".repeat(99_999));
        let plus = format!("[1]{}", "+[1]".repeat(99_999));
        for bad in [
            "",
            "[2]",
            "[1]*99999999999",
            "[1",
            "x",
            "[1]*[1]",
            "[1]+1",
            "[1]]",
            "([1]",
            "[1,,]",
            "[,1]",
            "1+1",
            "[1]*-1",
            "[0]*1+[1]*3",
            "[1]*12",
            "[]",
            &deep,
            &plus,
        ] {
            assert_eq!(pattern(bad, 1), None, "{bad:.40}");
        }
        assert_eq!(pattern("[0]*1+[1]*3", 12), None, "four entries for twelve layers");
        assert!(pattern("[1]*4096", 4_096).is_some());
        assert_eq!(pattern("[1]*4097", 4_097), None);
    }
}
