//! The advice for people.

use std::fmt::Write;

use super::{Advice, Candidate};
use crate::output::{bytes, ns, table, wrapped};
use crate::plan::Verdict;

/// Candidates shown; JSON has all.
const MOST_SHOWN: usize = 12;

/// Behind the plan itself.
pub fn describe(advice: &Advice) -> String {
    let mut text = wrapped(&format!("\nAdvice: {}", headline(advice)), "");
    if let Some(gib) = advice.memory_gib {
        let _ = writeln!(text, "As given it fits on devices of {gib} GiB (--memory {gib}).");
    }
    let shown: Vec<&Candidate> = advice.candidates.iter().chain(&advice.closest).take(MOST_SHOWN).collect();
    if shown.is_empty() {
        return text;
    }
    text += &candidates(&shown);
    if let Some(more) = advice.candidates.len().checked_sub(MOST_SHOWN + 1) {
        let _ = writeln!(text, "and {} more (--json)", more + 1);
    }
    text + &wrapped(FOOTNOTE, "")
}

fn headline(advice: &Advice) -> String {
    let tried = advice.plans_tried;
    let given = &advice.given;
    let found = !advice.candidates.is_empty();
    match given.verdict {
        Verdict::Fits => "nothing to change: everything can be kept at these loads.".to_owned(),
        Verdict::NeedsStrategies => {
            let rest = match found {
                true => {
                    "with any one of these changes everything could be kept, or strategies would cost at most half at one of the loads"
                }
                false => {
                    "no change of one setting would let everything be kept, or halve what strategies cost at one of the loads"
                }
            };
            let added = ns(given.added_ns);
            format!(
                "bagualu's own strategies are enough; on rank {} they add up to {added}; {rest} ({tried} plans tried).",
                given.rank
            )
        }
        Verdict::Infeasible => {
            let what = match (found, advice.changes_tried) {
                (true, 1) => "any one of these changes makes it fit",
                (true, _) => "no change of one setting makes it fit on as many devices; these make it fit",
                (false, _) => "nothing found makes it fit, neither one setting nor two; this comes closest",
            };
            format!("{what} ({tried} plans tried).")
        }
    }
}

fn candidates(shown: &[&Candidate]) -> String {
    let mut rows = table(["", "rank", "static", "floor", "peak", "of", "added time", "iteration", "verdict"]);
    let mut flags = String::new();
    for (index, candidate) in shown.iter().enumerate() {
        let outcome = &candidate.outcome;
        let number = index + 1;
        rows.add_row([
            number.to_string(),
            outcome.rank.to_string(),
            bytes(outcome.static_bytes),
            bytes(outcome.floor_bytes),
            outcome.peak_bytes.map_or("-".to_owned(), bytes),
            bytes(outcome.device_bytes),
            if outcome.infeasible.is_some() { "-".to_owned() } else { ns(outcome.added_ns) },
            format!("{}.{} %", candidate.iteration_permille / 10, candidate.iteration_permille % 10),
            verdict(candidate),
        ]);
        let notes = match candidate.notes.as_slice() {
            [] => String::new(),
            notes => format!(" ({})", notes.join("; ")),
        };
        flags += &wrapped(&format!(" {number:<2}  {}{notes}", candidate.flags.join(" ")), "    ");
    }
    format!("\n{flags}\n{rows}\n")
}

fn verdict(candidate: &Candidate) -> String {
    match (&candidate.outcome.infeasible, candidate.outcome.verdict) {
        (Some(infeasible), _) => {
            format!("infeasible: {}, {} too few", infeasible.part(), bytes(candidate.outcome.missing_bytes()))
        }
        (None, Verdict::Fits) => "fits".to_owned(),
        (None, _) => "needs strategies".to_owned(),
    }
}

const FOOTNOTE: &str = "\nrank: the one that comes closest to its device's memory. added time: of its strategies, at the \
load where that is most. iteration: operators and strategies of the slowest rank at the first load, with the \
pipeline's bubble (PP-1)/(M·V), over the same of the run as given; neither the reduction of gradients nor the \
optimizer's step is in it.";
