//! The exact selector against an integer program over tensors and operators, written from the words of the
//! format and solved by another solver.

use bagualu_core::layer::{Collectives, Layer, LayerPlan};
use bagualu_core::mitigate::{Config, Exact, ExactStorage, Limits, MitigateError, Problem, Selector};
use good_lp::{
    Expression, ProblemVariables, ResolutionError, Solution, SolverModel, Variable, constraint, microlp,
    variable,
};

use crate::instances::{Dice, Parts, random};

/// Bytes and added time of one layer as expressions, and what ties its variables together.
struct Model {
    bytes: Expression,
    ns: Expression,
    constraints: Vec<good_lp::Constraint>,
}

fn binary(variables: &mut ProblemVariables) -> Variable {
    variables.add(variable().binary())
}

fn model(layer: &Parts, allow: Collectives, variables: &mut ProblemVariables) -> Model {
    let (mut bytes, mut ns, mut constraints) = (Expression::from(0), Expression::from(0), Vec::new());
    let runs: Vec<Variable> = layer.ops.iter().map(|_| binary(variables)).collect();
    let producer = |t: usize| layer.ops.iter().position(|op| op.makes.contains(t));
    let saved = |t: usize| layer.ops.iter().any(|op| op.saves.contains(t));
    for (op, &run) in layer.ops.iter().zip(&runs) {
        ns += op.forward_ns as f64 * run;
        if !allow.allow(op.collective) {
            constraints.push(constraint!(run <= 0));
        }
        for t in op.reads.iter().filter(|&t| !saved(t) && !layer.tensors[t].block_input) {
            match producer(t) {
                Some(before) => constraints.push(constraint!(run <= runs[before])),
                None => constraints.push(constraint!(run <= 0)),
            }
        }
    }
    for (t, tensor) in layer.tensors.iter().enumerate() {
        if tensor.block_input {
            bytes += tensor.bytes as f64;
        } else if saved(t) {
            let keep = binary(variables);
            bytes += tensor.bytes as f64 * keep;
            let mut one = Expression::from(keep);
            if let Some(op) = producer(t) {
                let recompute = binary(variables);
                constraints.push(constraint!(recompute <= runs[op]));
                one += recompute;
            }
            if let Some(copy) = tensor.copy {
                let offload = binary(variables);
                ns += (copy.out_ns + copy.in_ns) as f64 * offload;
                one += offload;
            }
            if let Some(cast) = tensor.cast {
                let quantize = binary(variables);
                bytes += cast.bytes as f64 * quantize;
                ns += (cast.cast_ns + cast.uncast_ns) as f64 * quantize;
                one += quantize;
            }
            constraints.push(constraint!(one == 1));
        }
    }
    Model { bytes, ns, constraints }
}

/// The least added time, and the fewest bytes at which it can be had.
fn solve(layers: &[Parts], allow: Collectives, limit: u64) -> Option<(u64, u64)> {
    let mut least_ns = None;
    for _ in 0..2 {
        let mut variables = ProblemVariables::new();
        let mut all = Model { bytes: 0.into(), ns: 0.into(), constraints: Vec::new() };
        for layer in layers {
            let one = model(layer, allow, &mut variables);
            all.bytes += one.bytes;
            all.ns += one.ns;
            all.constraints.extend(one.constraints);
        }
        let goal = if least_ns.is_some() { all.bytes.clone() } else { all.ns.clone() };
        let mut problem = variables.minimise(&goal).using(microlp);
        problem = problem.with(constraint!(all.bytes <= limit as f64));
        if let Some(ns) = least_ns {
            problem = problem.with(constraint!(all.ns <= ns as f64 + 0.25));
        }
        for constraint in all.constraints {
            problem = problem.with(constraint);
        }
        let solution = match problem.solve() {
            Ok(solution) => solution,
            Err(ResolutionError::Infeasible) => return None,
            Err(other) => panic!("{other}"),
        };
        let value = solution.eval(&goal).round() as u64;
        match least_ns {
            None => least_ns = Some(value),
            Some(ns) => return Some((ns, value)),
        }
    }
    None
}

#[test]
fn exact_equals_an_integer_program() {
    let mut storage = Box::new(ExactStorage::new());
    let (mut feasible, mut tensors) = (0, 0);
    for seed in 0..120 {
        let mut dice = Dice::new(seed ^ 0x6d69_6c70);
        let allow = [Collectives::NONE, Collectives::ALL][dice.below(2) as usize];
        let layers: Vec<Parts> = (0..2 + dice.below(2)).map(|_| random(&mut dice, 8, 1_000)).collect();
        let borrowed: Vec<Layer<'_>> =
            layers.iter().map(|l| Layer::new(&l.tensors, &l.ops).expect("a layer")).collect();
        let full: u64 = borrowed.iter().map(Layer::full_bytes).sum();
        let bytes = full * (15 + dice.below(75)) / 100;
        let limits = Limits { bytes, host_bytes: u64::MAX };
        let mut plans = vec![LayerPlan::KEEP; layers.len()];
        let problem = Problem { layers: &borrowed, limits, allow };
        let own = match Exact::new(&mut storage, Config::default()).select(&problem, &mut plans) {
            Ok(found) => {
                assert!(found.optimal, "seed {seed}");
                feasible += 1;
                Some((found.added_ns, found.bytes))
            }
            Err(MitigateError::Infeasible { .. }) => None,
            Err(other) => panic!("seed {seed}: {other}"),
        };
        assert_eq!(own, solve(&layers, allow, bytes), "seed {seed}");
        tensors += borrowed.iter().map(|l| l.saved().len()).sum::<usize>();
    }
    assert!(feasible >= 60 && tensors >= 120 * 10, "{feasible} feasible, {tensors} tensors");
}
