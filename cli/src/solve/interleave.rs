//! `bagualu solve interleave`: the order of F, B, O and R (design §10).

use bagualu_core::interleave::{
    Chain, Config, Exact, ExactSlot, InterleaveError, List, Op, PaperDp, PaperSlot, Problem, Scheduler,
    Solution, Step,
};
use bagualu_core::layer::Resource;
use serde::{Deserialize, Serialize, Serializer};

use super::read::{self, Count, Object, Word, present};
use crate::{Error, output};

/// States of the largest problem that the paper's programme takes on: about ten seconds of work.
const PAPER_STATES: usize = 1 << 17;

/// States that the exact search may keep. Few instances need the second, which takes 120 MB.
const EXACT_STATES: [usize; 2] = [1 << 12, 1 << 20];

/// How to search.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Search for the shortest order, with a proven bound
    #[default]
    Exact,
    /// The paper's dynamic programme over barriers
    Paper,
    /// Longest remaining work first
    List,
}

/// An order, and how long and how large its run is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Answer {
    /// What found it.
    pub method: Method,
    /// Its length.
    pub makespan_ns: u64,
    /// What every order takes at least.
    pub lower_bound_ns: u64,
    /// Whether no order is shorter.
    pub optimal: bool,
    /// The most bytes of its run, the base included.
    pub peak_bytes: u64,
    /// Chain and position of each operator.
    #[serde(serialize_with = "steps")]
    pub order: Vec<Step>,
}

/// Solves the instance `json`.
pub fn solve(json: &[u8], method: Method) -> Result<Answer, Error> {
    let instance = Instance::parse(json)?;
    let problem = instance.problem()?;
    let mut order = vec![Step::default(); problem.op_count()];
    let found = match method {
        Method::Exact => exact(&problem, &mut order),
        Method::Paper => {
            let mut states = vec![PaperSlot::default(); PAPER_STATES];
            PaperDp::new(&mut states).schedule(&problem, &mut order)
        }
        Method::List => List.schedule(&problem, &mut order),
    };
    let Solution { makespan_ns, lower_bound_ns, optimal, peak_bytes } = found.map_err(refused)?;
    Ok(Answer { method, makespan_ns, lower_bound_ns, optimal, peak_bytes, order })
}

fn exact(problem: &Problem<'_>, order: &mut [Step]) -> Result<Solution, InterleaveError> {
    let [few, many] = EXACT_STATES.map(|count| move || vec![ExactSlot::default(); count]);
    let found = Exact::new(&mut few(), Config::default()).schedule(problem, order)?;
    if found.optimal {
        return Ok(found);
    }
    Exact::new(&mut many(), Config::default()).schedule(problem, order)
}

/// The answer for people.
pub fn describe(answer: &Answer) -> String {
    let order: Vec<String> =
        answer.order.iter().map(|step| format!("{} {}", name(step.chain), step.index)).collect();
    let proof = match answer.optimal {
        true => "none is shorter".to_owned(),
        false => format!("none is shorter than {}", output::ns(answer.lower_bound_ns)),
    };
    format!(
        "{}\nmakespan {}, peak {}; {proof}\n",
        order.join("\n"),
        output::ns(answer.makespan_ns),
        output::bytes(answer.peak_bytes)
    )
}

fn steps<S: Serializer>(order: &[Step], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(order.iter().map(|step| (name(step.chain), step.index)))
}

const fn name(chain: Chain) -> &'static str {
    match chain {
        Chain::Forward => "forward",
        Chain::Backward => "backward",
        Chain::Offload => "offload",
        Chain::Recover => "recover",
    }
}

/// An instance as written.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Text {
    chains: Object<ChainsText>,
    #[serde(default)]
    base_bytes: Count,
    capacity_bytes: Count,
    #[serde(default, deserialize_with = "present")]
    merge: Option<Vec<Word<Merged>>>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct ChainsText {
    #[serde(default)]
    forward: Vec<Object<OpText>>,
    #[serde(default)]
    backward: Vec<Object<OpText>>,
    #[serde(default)]
    offload: Vec<Object<OpText>>,
    #[serde(default)]
    recover: Vec<Object<OpText>>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct OpText {
    resource: Word<Resource>,
    #[serde(default)]
    ns: Count,
    #[serde(default)]
    alloc_bytes: Count,
    #[serde(default)]
    free_bytes: Count,
}

/// The chains that a merge orders.
#[derive(Clone, Copy, Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
enum Merged {
    Forward,
    Backward,
}

/// An instance as the core takes it.
#[derive(Debug)]
struct Instance {
    chains: [Vec<Op>; 4],
    base_bytes: u64,
    capacity_bytes: u64,
    merge: Option<Vec<Chain>>,
}

impl Instance {
    fn parse(json: &[u8]) -> Result<Self, Error> {
        let text: Text = read::parse(json)?;
        let ChainsText { forward, backward, offload, recover } = text.chains.0;
        let chain = |Word(merged)| match merged {
            Merged::Forward => Chain::Forward,
            Merged::Backward => Chain::Backward,
        };
        Ok(Self {
            chains: [forward, backward, offload, recover].map(|ops| ops.iter().map(|op| op.0.op()).collect()),
            base_bytes: text.base_bytes.0,
            capacity_bytes: text.capacity_bytes.0,
            merge: text.merge.map(|merge| merge.into_iter().map(chain).collect()),
        })
    }

    fn problem(&self) -> Result<Problem<'_>, Error> {
        let chains = self.chains.each_ref().map(Vec::as_slice);
        Problem::new(chains, self.base_bytes, self.capacity_bytes, self.merge.as_deref()).map_err(refused)
    }
}

impl OpText {
    fn op(&self) -> Op {
        Op {
            resource: self.resource.0,
            ns: self.ns.0,
            alloc_bytes: self.alloc_bytes.0,
            free_bytes: self.free_bytes.0,
        }
    }
}

fn refused(error: InterleaveError) -> Error {
    let field = match &error {
        InterleaveError::Infeasible { needed_bytes, available_bytes } => {
            return Error::infeasible("every order takes", *needed_bytes, *available_bytes);
        }
        InterleaveError::TooLong { chain, .. } => format!("chains.{}", name(*chain)),
        InterleaveError::Overflow { chain, index } => format!("chains.{}[{index}]", name(*chain)),
        InterleaveError::BaseOverflow { .. } => "base_bytes".to_owned(),
        InterleaveError::BadMerge { .. } => "merge".to_owned(),
        InterleaveError::StorageTooSmall { needed, available } => {
            let problem = format!("{needed} states; this method takes on {available}");
            return Error::bad_input("chains", problem, "use --method exact or list");
        }
        _ => "chains".to_owned(),
    };
    Error::bad_input(field, error.to_string(), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = r#"{"chains": {"forward": [{"resource": "compute", "ns": 100, "alloc_bytes": 0, "free_bytes": 0}],
        "backward": [], "offload": [], "recover": []}, "base_bytes": 0, "capacity_bytes": 1000}"#;

    fn message(json: &str) -> String {
        solve(json.as_bytes(), Method::Exact).expect_err(json).to_string()
    }

    #[test]
    fn the_example_of_the_format() {
        for (method, name) in [(Method::Exact, "exact"), (Method::Paper, "paper"), (Method::List, "list")] {
            let answer = solve(EXAMPLE.as_bytes(), method).expect("feasible");
            let json = serde_json::to_string(&answer).expect("JSON");
            let expected = format!(
                r#"{{"method":"{name}","makespan_ns":100,"lower_bound_ns":100,"optimal":true,"peak_bytes":0,"order":[["forward",0]]}}"#
            );
            assert_eq!(json, expected);
        }
    }

    #[test]
    fn a_merge_is_kept() {
        let json = r#"{"chains": {"forward": [{"resource": "compute", "ns": 1}], "backward": [{"resource": "compute", "ns": 2}]},
            "capacity_bytes": 0, "merge": ["backward", "forward"]}"#;
        let answer = solve(json.as_bytes(), Method::Exact).expect("feasible");
        let order: Vec<_> = answer.order.iter().map(|s| s.chain).collect();
        assert_eq!(order, [Chain::Backward, Chain::Forward]);
        let short = json.replace(r#""backward", "forward""#, r#""backward""#);
        assert!(message(&short).starts_with("merge: merge names forward 0 times"), "{}", message(&short));
        let other = json.replace(r#"["backward""#, r#"["offload""#);
        assert!(message(&other).starts_with("merge[0]: unknown variant `offload`"), "{}", message(&other));
    }

    #[test]
    fn infeasible_says_the_smallest_capacity() {
        let json = r#"{"chains": {"recover": [{"resource": "copy_in", "ns": 1, "alloc_bytes": 30}]}, "base_bytes": 5, "capacity_bytes": 34}"#;
        for method in [Method::Exact, Method::Paper, Method::List] {
            let error = solve(json.as_bytes(), method).expect_err("35 needed");
            assert!(
                matches!(error, Error::Infeasible { needed_bytes: 35, available_bytes: 34, .. }),
                "{error:?}"
            );
        }
    }

    #[test]
    fn wrong_fields_are_named() {
        let with = |old: &str, new: &str| message(&EXAMPLE.replacen(old, new, 1));
        assert!(with("100", "-1").starts_with("chains.forward[0].ns: invalid type: integer `-1`"));
        assert!(with("compute", "gpu").starts_with("chains.forward[0].resource: unknown variant `gpu`"));
        assert!(with("\"ns\"", "\"time\"").contains("unknown field `time`"));
        assert!(with("100", "18446744073709551615").starts_with("chains.forward[0]: the sum of times"));
        assert!(
            with("\"base_bytes\": 0", "\"base_bytes\": 18446744073709551615")
                .starts_with("base_bytes: base_bytes")
        );
        let op = r#"{"resource": "compute"}"#;
        let long = format!(r#"{{"chains": {{"offload": [{}]}}, "capacity_bytes": 1}}"#, [op; 65].join(","));
        assert!(message(&long).starts_with("chains.offload: 65 operators"));
        let wide = format!(
            r#"{{"chains": {{"forward": [{0}], "backward": [{0}], "offload": [{0}], "recover": [{0}]}}, "capacity_bytes": 1}}"#,
            [r#"{"resource": "compute", "ns": 1}, {"resource": "communication", "ns": 1}"#; 20].join(",")
        );
        let error = solve(wide.as_bytes(), Method::Paper).expect_err("41^4 states").to_string();
        assert!(
            error.starts_with("chains: 2825761 states;") && error.ends_with("use --method exact or list"),
            "{error}"
        );
    }
}
