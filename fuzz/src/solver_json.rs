//! The solver commands on any bytes: an answer or one error with a field, and the same one again.

use bagualu::Error;
use bagualu::solve::{budget, interleave, mitigate};

/// The target. The first byte chooses problem and method, the rest is the instance.
pub fn solver_json(data: &[u8]) {
    let Some((&choice, json)) = data.split_first() else { return };
    let first = solve(choice, json);
    assert_eq!(first, solve(choice, json), "the same instance, another answer");
}

/// The answer as JSON, or the message and exit status.
fn solve(choice: u8, json: &[u8]) -> Result<String, (String, u8)> {
    match choice % 8 {
        0 => shown(budget::solve(json, budget::Method::Even)),
        1 => shown(budget::solve(json, budget::Method::Proportional)),
        2 => shown(mitigate::solve(json, mitigate::Method::Exact)),
        3 => shown(mitigate::solve(json, mitigate::Method::Ratio)),
        4 => shown(mitigate::solve(json, mitigate::Method::Paper)),
        5 => shown(interleave::solve(json, interleave::Method::Exact)),
        6 => shown(interleave::solve(json, interleave::Method::Paper)),
        _ => shown(interleave::solve(json, interleave::Method::List)),
    }
}

fn shown<A: serde::Serialize>(answer: Result<A, Error>) -> Result<String, (String, u8)> {
    match answer {
        Ok(answer) => Ok(serde_json::to_string(&answer).expect("answers are JSON")),
        Err(error) => {
            assert!(matches!(error.status(), 2 | 3), "{error}");
            assert!(error.to_string().contains(": "), "no field: {error}");
            Err((error.to_string(), error.status()))
        }
    }
}
