//! The answer of `bagualu plan --diff` for people.

use std::fmt::Write;

use super::settings::Given;
use super::{Amount, Diff, Difference, Place, Unit};
use crate::output::{bytes, ns, table, wrapped};
use crate::plan::{Plan, Verdict};

/// Columns of a setting's value; more are cut.
const VALUE_CHARS: usize = 30;

/// The whole answer.
pub fn describe(diff: &Diff<'_>, a: &Plan, b: &Plan) -> String {
    let device = &a.loaded.model.device.name;
    let mut text = format!("A: {}\nB: {}\nboth on {device}\n", a.loaded.source, b.loaded.source);
    text += &settings(diff);
    text += &differences(diff);
    for (which, plan) in [("A", a), ("B", b)] {
        for warning in &plan.loaded.warnings {
            let _ = writeln!(text, "warning: {which}: {warning}");
        }
    }
    text
}

fn settings(diff: &Diff<'_>) -> String {
    if diff.settings.is_empty() {
        return "\nNo setting differs.\n".to_owned();
    }
    let mut rows = table(["setting", "A", "B"]);
    for setting in &diff.settings {
        rows.add_row([setting.flag.clone(), given(&setting.a), given(&setting.b)]);
    }
    format!("\n{rows}\n")
}

fn given(given: &Option<Given>) -> String {
    match given {
        None => "-".to_owned(),
        Some(Given::Switch(_)) => "given".to_owned(),
        Some(Given::Value(value)) if value.chars().count() > VALUE_CHARS => {
            value.chars().take(VALUE_CHARS - 1).chain(['…']).collect()
        }
        Some(Given::Value(value)) => value.clone(),
    }
}

fn differences(diff: &Diff<'_>) -> String {
    if diff.differences.is_empty() {
        return "\nNo quantity differs.\n".to_owned();
    }
    let mut rows = table(["rank", "load", "quantity", "A", "B", "B-A"]);
    for difference in &diff.differences {
        let place = match difference.place {
            Place::Run => "all".to_owned(),
            Place::Rank { rank } => rank.to_string(),
            Place::WorstRanks => "worst".to_owned(),
        };
        rows.add_row([
            place,
            difference.load.map_or(String::new(), |load| load.to_string()),
            difference.quantity.text.to_owned(),
            amount(difference, difference.a),
            amount(difference, difference.b),
            change(difference),
        ]);
    }
    let mut text = format!("\n{rows}\n\nEqual values are left out.\n");
    if let Some(worst) = diff.worst_ranks {
        let line = format!(
            "The pipelines differ in length: compared are the ranks that come closest to the device's memory, \
             {} of A and {} of B.",
            worst.a, worst.b
        );
        text += &wrapped(&line, "");
    }
    text
}

fn amount(difference: &Difference, amount: Option<Amount>) -> String {
    match amount {
        None => "-".to_owned(),
        Some(Amount::Number(number)) => in_unit(difference.quantity.unit, number),
        Some(Amount::Verdict(Verdict::Fits)) => "fits".to_owned(),
        Some(Amount::Verdict(Verdict::NeedsStrategies)) => "needs strategies".to_owned(),
        Some(Amount::Verdict(Verdict::Infeasible)) => "infeasible".to_owned(),
    }
}

fn change(difference: &Difference) -> String {
    let Some(change) = difference.difference else { return String::new() };
    let size = u64::try_from(change.unsigned_abs()).unwrap_or(u64::MAX);
    let sign = if change < 0 { '-' } else { '+' };
    format!("{sign}{}", in_unit(difference.quantity.unit, size))
}

fn in_unit(unit: Unit, number: u64) -> String {
    match unit {
        Unit::Bytes => bytes(number),
        Unit::Ns => ns(number),
        Unit::Count => number.to_string(),
    }
}
