//! What docs/formats.md shows is what the solver answers.

use bagualu::solve::{budget, interleave, mitigate};
use serde_json::Value;

const FORMATS: &str = include_str!("../../docs/formats.md");

/// The instance and the answer that the section `### name` shows.
fn shown(name: &str) -> (&'static str, Value) {
    let section = FORMATS.split("\n### ").find(|s| s.starts_with(name)).expect("a section");
    let mut blocks = section.split("```json\n").skip(1).map(|b| b.split("```").next().expect("a block"));
    let (instance, answer) = (blocks.next().expect("an instance"), blocks.next().expect("an answer"));
    (instance, serde_json::from_str(answer).expect("JSON"))
}

fn value(answer: impl serde::Serialize) -> Value {
    serde_json::to_value(answer).expect("answers are JSON")
}

#[test]
fn budget() {
    let (instance, answer) = shown("budget");
    assert_eq!(value(budget::solve(instance.as_bytes(), budget::Method::Even).expect("feasible")), answer);
}

#[test]
fn mitigate() {
    let (instance, answer) = shown("mitigate");
    let found = mitigate::solve(instance.as_bytes(), mitigate::Method::Exact).expect("feasible");
    assert_eq!(value(found), answer);
}

#[test]
fn interleave() {
    let (instance, answer) = shown("interleave");
    let found = interleave::solve(instance.as_bytes(), interleave::Method::Exact).expect("feasible");
    assert_eq!(value(found), answer);
}
