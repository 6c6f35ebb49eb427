//! `--moe-layer-freq`.

use crate::MoeLayers;

/// Longest list.
const MAX_PATTERN: usize = 4_096;

/// A number, or a Python list made of `[…]`, `*` and `+`.
pub(super) fn pattern(text: &str) -> Option<MoeLayers> {
    if let Ok(every) = text.trim().parse() {
        return Some(MoeLayers::Every(every));
    }
    let text: String = text.chars().filter(|c| !c.is_whitespace() && !"()".contains(*c)).collect();
    let mut layers = Vec::new();
    for term in text.split('+') {
        let (list, times) = match term.split_once('*') {
            Some((list, times)) => (list, times.parse::<usize>().ok()?),
            None => (term, 1),
        };
        let list = list.strip_prefix('[')?.strip_suffix(']')?;
        let entries: Option<Vec<bool>> = list
            .split(',')
            .filter(|entry| !entry.is_empty())
            .map(|entry| match entry {
                "0" => Some(false),
                "1" => Some(true),
                _ => None,
            })
            .collect();
        let entries = entries?;
        if entries.len().checked_mul(times)?.checked_add(layers.len())? > MAX_PATTERN {
            return None;
        }
        layers.extend(entries.repeat(times));
    }
    let dense = layers.iter().take_while(|&&moe| !moe).count();
    Some(match layers[dense..].iter().all(|&moe| moe) && dense < layers.len() {
        true => MoeLayers::AfterDense(u32::try_from(dense).ok()?),
        false => MoeLayers::Listed(layers),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layer_patterns_are_python_lists() {
        assert_eq!(pattern("2"), Some(MoeLayers::Every(2)));
        assert_eq!(pattern("([0]*3+[1]*29)"), Some(MoeLayers::AfterDense(3)));
        assert_eq!(pattern("[0, 1]*2"), Some(MoeLayers::Listed(vec![false, true, false, true])));
        for bad in ["", "[2]", "[1]*99999999999", "[1", "x", "[1]*[1]"] {
            assert_eq!(pattern(bad), None, "{bad}");
        }
    }
}
