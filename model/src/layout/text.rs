//! The text of a layout, `Ettt|(tt|)*29,m|L`: `E` embedding, `t` transformer layer, `m` layer of multi-token
//! prediction, `L` loss, `|` the end of a stage, `x*n` and `(…)*n` repetition; commas mean nothing.
//!
//! The grammar is that of Megatron's `pipeline_parallel_layer_layout.py`: groups do not nest.

use super::StageLayout;
use crate::config::MAX_LAYERS;

/// Most layers and stages of a layout, written out.
const MAX_ITEMS: usize = 2 * MAX_LAYERS as usize + 4;
const LETTERS: &str = "E, t, m, L and | with x*n or (…)*n, such as Ett|(tt|)*6ttL";
const ORDER: &str = "in each stage and over all of them E first, then t, then m, then L";
const TOO_LONG: &str = "a layout of at most 4096 layers and as many stages";

/// Reads a layout; an error says what to give.
pub(crate) fn parse(text: &str) -> Result<Vec<StageLayout>, &'static str> {
    let mut stages = vec![StageLayout::default()];
    let mut reached = None;
    for item in unroll(text)? {
        let stage = match stages.last_mut() {
            Some(stage) => stage,
            None => return Err(LETTERS),
        };
        if item == '|' {
            stages.push(StageLayout::default());
            continue;
        }
        let follows = |before: char| place(before) < place(item) || (before == item && "tm".contains(item));
        if !reached.is_none_or(follows) {
            return Err(ORDER);
        }
        reached = Some(item);
        match item {
            'E' => stage.embedding = true,
            't' => stage.layers += 1,
            'm' => stage.mtp += 1,
            _ => stage.loss = true,
        }
    }
    Ok(stages)
}

fn place(item: char) -> usize {
    "EtmL".find(item).unwrap_or(usize::MAX)
}

/// Writes repetitions out.
fn unroll(text: &str) -> Result<Vec<char>, &'static str> {
    let mut rest = text.chars().filter(|&c| c != ',').peekable();
    let mut items = Vec::new();
    // Where the open group begins.
    let mut group = None;
    while let Some(c) = rest.next() {
        let start = match c {
            'E' | 't' | 'm' | 'L' | '|' => {
                items.push(c);
                items.len() - 1
            }
            '(' if group.is_none() => {
                group = Some(items.len());
                continue;
            }
            ')' => group.take().ok_or(LETTERS)?,
            _ => return Err(LETTERS),
        };
        let times = match rest.next_if_eq(&'*') {
            Some(_) => number(&mut rest)?,
            // Megatron repeats every group.
            None if c == ')' => return Err(LETTERS),
            None => 1,
        };
        let one = items.split_off(start);
        if one.len().saturating_mul(times).saturating_add(start) > MAX_ITEMS {
            return Err(TOO_LONG);
        }
        items.extend(one.repeat(times));
    }
    if group.is_some() { Err(LETTERS) } else { Ok(items) }
}

fn number(rest: &mut std::iter::Peekable<impl Iterator<Item = char>>) -> Result<usize, &'static str> {
    let mut number: Option<usize> = None;
    while let Some(digit) = rest.peek().and_then(|c| c.to_digit(10)) {
        rest.next();
        number = Some(number.unwrap_or(0).saturating_mul(10).saturating_add(digit as usize));
    }
    number.ok_or(LETTERS)
}

/// Writes a layout; equal stages in a row are one group.
pub(crate) fn text(stages: &[StageLayout]) -> String {
    let mut parts = Vec::new();
    let mut at = 0;
    while at < stages.len() {
        let equal = stages[at..].iter().take_while(|stage| **stage == stages[at]).count();
        // The last stage has no | behind it.
        let repeated = if at + equal == stages.len() { equal - 1 } else { equal };
        match repeated {
            0 => {
                parts.push(stage(&stages[at]));
                at += 1;
            }
            1 => {
                parts.push(format!("{}|", stage(&stages[at])));
                at += 1;
            }
            _ => {
                parts.push(format!("({}|)*{repeated}", stage(&stages[at])));
                at += repeated;
            }
        }
    }
    parts.concat()
}

fn stage(stage: &StageLayout) -> String {
    // A number beside a letter keeps a stage of many layers short.
    let many = |letter: &str, count: u32| match count {
        0..=4 => letter.repeat(count as usize),
        _ => format!("{letter}*{count}"),
    };
    let end = |letter: &str, there: bool| if there { letter.to_owned() } else { String::new() };
    [end("E", stage.embedding), many("t", stage.layers), many("m", stage.mtp), end("L", stage.loss)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(text: &str) -> Vec<(u32, u32)> {
        let stages = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        stages.iter().map(|stage| (stage.layers, stage.mtp)).collect()
    }

    #[test]
    fn repetition_is_megatron_s() {
        assert_eq!(layers("Et*3|(tt|)*2,m|L"), [(3, 0), (2, 0), (2, 0), (0, 1), (0, 0)]);
        assert_eq!(layers("E(t|t)*2,tL"), [(1, 0), (2, 0), (2, 0)]);
        assert_eq!(layers("E|*3ttL"), [(0, 0), (0, 0), (0, 0), (2, 0)]);
        assert_eq!(layers("E(t*2|)*3t*0L"), [(2, 0), (2, 0), (2, 0), (0, 0)]);
        let stages = parse("Et|tmL").expect("a layout");
        assert_eq!(stages[0], StageLayout { embedding: true, layers: 1, mtp: 0, loss: false });
        assert_eq!(stages[1], StageLayout { embedding: false, layers: 1, mtp: 1, loss: true });
    }

    #[test]
    fn hostile_texts_are_refused_and_bounded() {
        for text in
            ["x", "E(t", "Et)", "E((t|)*2|)*2L", "E(t)L", "Et*", "Et**2", "Et*2*2L", "E t|L", "*3", "Et*-1"]
        {
            assert_eq!(parse(text), Err(LETTERS), "{text}");
        }
        for text in
            ["Et*1000000000L", "E(t|)*1000000000L", "Et*99999999999999999999999L", &"t|".repeat(1 << 17)]
        {
            assert_eq!(parse(text), Err(TOO_LONG));
        }
        for text in ["tE", "EE", "EtLL", "ELt", "Emt", "E|Lt", "E|E"] {
            assert_eq!(parse(text), Err(ORDER), "{text}");
        }
        // An empty text is one empty stage, which no model has.
        assert_eq!(parse(""), Ok(vec![StageLayout::default()]));
    }

    #[test]
    fn what_is_written_reads_back() {
        for (written, expected) in [
            ("Ettt|tt|tt|tt|m|L", "Ettt|(tt|)*3m|L"),
            ("EttL", "EttL"),
            ("Et*9|t*9|t*9L", "Et*9|t*9|t*9L"),
            ("E|||tL", "E|(|)*2tL"),
            ("Et|t|t|t", "Et|(t|)*2t"),
        ] {
            let stages = parse(written).expect("a layout");
            assert_eq!(text(&stages), expected);
            assert_eq!(parse(expected), Ok(stages));
        }
    }
}
