//! Algorithm 2 as the paper writes it (§V-A).

use super::evaluate::{closures, run_ns};
use super::{MitigateError, Problem, Selection, Selector, evaluate};
use crate::conflict::{Choices, Consumers};
use crate::layer::{Layer, LayerPlan, Strategy};
use crate::limits::{MAX_LAYERS, MAX_OPS};
use crate::set::Set;

/// The paper's rule: per operator the fastest strategy at its size, applied to all tensors that it saves,
/// largest reduction first.
///
/// A candidate that the conflict check rejects is skipped. Where the paper's candidates run out, and its
/// text ends, operators that share a tensor are offered jointly; then an operator, or such a group, moves
/// to the strategy that saves next more; then the rule fails.
///
/// *Erratum*: the paper says that skipping is always preferable to reverting what was applied before, since
/// that was a larger reduction. It does not follow: reductions are re-evaluated, and time is not looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct PaperGreedy;

impl Selector for PaperGreedy {
    fn select(&mut self, problem: &Problem<'_>, plans: &mut [LayerPlan]) -> Result<Selection, MitigateError> {
        problem.start(plans)?;
        let plans = &mut plans[..problem.layers.len()];
        let mut choices = [Choices::KEEP; MAX_LAYERS];
        let mut now = problem.total(plans)?;
        while now.bytes > problem.limits.bytes {
            let host = problem.limits.host_bytes.saturating_sub(now.host_bytes);
            let rules = [Rule::Single, Rule::Joint, Rule::Escalate];
            let candidate = rules.into_iter().find_map(|rule| {
                let layers = problem.layers.iter().enumerate();
                let best = layers.filter_map(|(index, layer)| {
                    let operators = Operators::new(layer, problem, &choices[index]);
                    Some((index, operators.best(rule, host)?))
                });
                best.reduce(|a, b| if b.1.freed > a.1.freed { b } else { a })
            });
            let Some((layer, candidate)) = candidate else {
                let (reached, limit) = (now.bytes, problem.limits.bytes);
                return Err(MitigateError::OutOfCandidates { reached, limit });
            };
            choices[layer] = candidate.choices;
            plans[layer] = candidate.plan;
            now = problem.total(plans)?;
        }
        Ok(now)
    }
}

/// Which candidates are looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// One operator, its fastest strategy.
    Single,
    /// The operators that share tensors, their fastest strategy.
    Joint,
    /// An operator or such a group, by the next larger saving.
    Escalate,
}

/// A mitigation that could be applied now.
#[derive(Clone, Copy)]
struct Candidate {
    choices: Choices,
    plan: LayerPlan,
    freed: u64,
}

/// The operators of one layer in its current configuration.
struct Operators<'l> {
    layer: &'l Layer<'l>,
    problem: &'l Problem<'l>,
    consumers: Consumers<'l>,
    closures: [Option<Set>; MAX_OPS],
    choices: &'l Choices,
    bytes: u64,
    host: u64,
}

impl<'l> Operators<'l> {
    fn new(layer: &'l Layer<'l>, problem: &'l Problem<'l>, choices: &'l Choices) -> Self {
        let consumers = Consumers::new(layer, problem.allow);
        let now = evaluate(layer, &consumers.plan(choices), problem.allow).unwrap_or_default();
        let closures = closures(layer, problem.allow);
        Self { layer, problem, consumers, closures, choices, bytes: now.bytes, host: now.host_bytes }
    }

    /// The valid candidate with the largest reduction on the current configuration; ties: lowest operator.
    fn best(&self, rule: Rule, host: u64) -> Option<Candidate> {
        let ops = 0..self.layer.ops().len();
        let groups = ops.flat_map(|op| {
            let (single, joint) = (Set::one(op), self.consumers.joint(op));
            let shared = (joint != single).then_some(joint);
            match rule {
                Rule::Single => [Some(single), None],
                Rule::Joint => [shared, None],
                Rule::Escalate => [Some(single), shared],
            }
        });
        let candidates = groups.flatten().filter_map(|ops| {
            let strategy = match rule {
                Rule::Single | Rule::Joint => self.fastest(ops)?,
                Rule::Escalate => self.next(ops)?,
            };
            self.candidate(ops, strategy, host)
        });
        candidates.reduce(|a, b| if b.freed > a.freed { b } else { a })
    }

    /// Applies a strategy to operators, unless that conflicts, frees nothing, or is not allowed.
    fn candidate(&self, ops: Set, strategy: Strategy, host: u64) -> Option<Candidate> {
        let choices = self.choices.with(ops, strategy);
        if self.consumers.conflict(&choices).is_some() {
            return None;
        }
        let plan = self.consumers.plan(&choices);
        let point = evaluate(self.layer, &plan, self.problem.allow).ok()?;
        let freed = self.bytes.checked_sub(point.bytes).filter(|&freed| freed > 0)?;
        (point.host_bytes.saturating_sub(self.host) <= host).then_some(Candidate { choices, plan, freed })
    }

    /// The roofline's choice: the least time for what the operators save; ties: the larger saving.
    fn fastest(&self, ops: Set) -> Option<Strategy> {
        let keeps = ops.iter().all(|op| self.choices.of(op) == Strategy::Keep);
        let all = Self::STRATEGIES.into_iter().filter_map(|strategy| {
            let (ns, held) = self.cost(ops, strategy)?;
            Some((ns, held, strategy))
        });
        // Applied once; what comes after that is an escalation.
        all.min().filter(|_| keeps).map(|(_, _, strategy)| strategy)
    }

    /// The strategy that saves the next more than the operators' current ones.
    fn next(&self, ops: Set) -> Option<Strategy> {
        let now = self.held(ops, self.choices);
        let all = Self::STRATEGIES.into_iter().filter_map(|strategy| {
            let (ns, held) = self.cost(ops, strategy)?;
            (held < now).then_some((core::cmp::Reverse(held), ns, strategy))
        });
        all.min().map(|(_, _, strategy)| strategy)
    }

    const STRATEGIES: [Strategy; 3] = [Strategy::Recompute, Strategy::Offload, Strategy::Quantize];

    /// Time, and bytes still held, of a strategy for all that the operators save; none if it saves nothing.
    fn cost(&self, ops: Set, strategy: Strategy) -> Option<(u64, u64)> {
        let choices = Choices::KEEP.with(ops, strategy);
        let held = self.held(ops, &choices);
        if held >= self.held(ops, &Choices::KEEP) {
            return None;
        }
        let (mut ns, mut ran) = (0, Set::EMPTY);
        let treated = ops.iter().flat_map(|op| self.saves(op).iter().map(move |t| (op, t)));
        let mut seen = Set::EMPTY;
        for (_, tensor) in treated.filter(|&(op, t)| self.consumers.treats(&choices, op, t) == strategy) {
            if seen.contains(tensor) {
                continue;
            }
            seen.insert(tensor);
            let t = &self.layer.tensors()[tensor];
            match strategy {
                Strategy::Keep => {}
                Strategy::Recompute => {
                    ran |= self.layer.producer(tensor).and_then(|op| self.closures[op]).unwrap_or_default();
                }
                Strategy::Offload => ns += t.copy.map_or(0, |copy| copy.out_ns + copy.in_ns),
                Strategy::Quantize => ns += t.cast.map_or(0, |cast| cast.cast_ns + cast.uncast_ns),
            }
        }
        Some((ns + run_ns(self.layer, ran), held))
    }

    fn saves(&self, op: usize) -> Set {
        self.layer.ops()[op].saves & self.layer.saved()
    }

    /// Device bytes of what the operators save.
    fn held(&self, ops: Set, choices: &Choices) -> u64 {
        let saved = ops.iter().fold(Set::EMPTY, |all, op| all | self.saves(op));
        let mut plan = LayerPlan::KEEP;
        for op in ops.iter() {
            for tensor in self.saves(op).iter() {
                plan.assign(tensor, self.consumers.treats(choices, op, tensor));
            }
        }
        let narrowed = |t: usize| self.layer.tensors()[t].cast.map_or(0, |cast| cast.bytes);
        let kept = saved - plan.recompute - plan.offload - plan.quantize;
        self.layer.bytes(kept) + plan.quantize.iter().map(narrowed).sum::<u64>()
    }
}
