//! One saved tensor: where it comes from, what is done with it, and what each alternative would have cost.

use bagualu_core::layer::{Collectives, Group, LayerPlan, Strategy};
use bagualu_core::mitigate::{Refused, evaluate};
use bagualu_core::set::Set;
use bagualu_core::stage::Recompute;
use serde::Serialize;

use super::answer::View;
use crate::plan::iteration::Decided;

const STRATEGIES: [Strategy; 4] =
    [Strategy::Keep, Strategy::Recompute, Strategy::Offload, Strategy::Quantize];

/// A saved tensor of a layer.
#[derive(Serialize)]
pub struct Tensor<'a> {
    pub name: &'a str,
    pub bytes: u64,
    /// Always kept and counted.
    pub block_input: bool,
    /// The operator that makes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub producer: Option<&'a str>,
    pub saved_by: Vec<&'a str>,
    pub read_by: Vec<&'a str>,
    /// The tensor of which it is a cast copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<&'a str>,
    /// Megatron's file and module.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub megatron: Option<&'a str>,
    #[serde(flatten)]
    pub offload: Option<Copies>,
    #[serde(flatten)]
    pub quantize: Option<Casts>,
    pub strategy: Strategy,
    /// Device bytes held between forward and backward.
    pub held_bytes: u64,
    /// Strategies that it may not have, and why.
    pub forbidden: Vec<Forbidden<'a>>,
    pub alternatives: Vec<Alternative>,
    /// Of the alternatives that add less time, the one that adds least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cheaper: Option<Strategy>,
    /// Of the alternatives that hold less, the one that adds least time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smaller: Option<Strategy>,
}

/// Times of copies to the host and back.
#[derive(Serialize)]
pub struct Copies {
    copy_out_ns: u64,
    copy_in_ns: u64,
}

/// Times and bytes of the narrow format.
#[derive(Serialize)]
pub struct Casts {
    cast_ns: u64,
    uncast_ns: u64,
    quantized_bytes: u64,
}

/// A strategy that a tensor may not have.
#[derive(Serialize)]
pub struct Forbidden<'a> {
    pub strategy: Strategy,
    #[serde(flatten)]
    pub because: Because<'a>,
}

/// Why a strategy is not permitted.
#[derive(Serialize)]
#[serde(tag = "because", rename_all = "snake_case")]
pub enum Because<'a> {
    /// Always kept.
    BlockInput,
    /// Running its producer again runs an operator with a collective, which one rank alone may not.
    Collective { op: &'a str, group: Group },
    /// Running its producer again needs a tensor that is not held and that no operator makes.
    NoProducer,
    /// Statistics, indices, masks and FP32 copies are never narrowed.
    Exact,
    /// The device has no copies to a host.
    NoCopies,
}

/// Another strategy for one tensor of one layer, everything else as chosen.
#[derive(Serialize)]
pub struct Alternative {
    pub strategy: Strategy,
    /// What the layer would hold more (or less) on the device.
    pub bytes_delta: i128,
    pub host_bytes_delta: i128,
    pub added_ns_delta: i128,
    #[serde(flatten)]
    pub reason: Reason,
}

/// Why an alternative was not taken.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Reason {
    /// The unit would pass what the budget may ever give it.
    OverLimit { over_bytes: u64 },
    /// The unit would pass its even share, to which it is planned before its forward.
    OverQuota { over_bytes: u64 },
    /// The unit would pass its share of the host pool.
    OverHostLimit { over_bytes: u64 },
    /// It adds time.
    Slower,
    /// It adds no time, but holds more.
    Larger,
    /// What is chosen fits: nothing is gained.
    #[default]
    NotNeeded,
    /// The rank does not decide it: the group recomputes the whole MoE module of this micro-batch.
    GroupDecision,
    /// The rank does not decide it: recomputation with collectives is a static setting of all ranks.
    StaticSetting,
    /// It fits: the plan was made before the gate, for more rows.
    ExpectedMoreRows,
    /// It fits: plans are made in steps of rows and bytes, and close to the least time is close enough.
    PlannedInSteps,
}

/// What a unit may hold beyond what it was to hold; negative where it holds more.
#[derive(Serialize, Clone, Copy)]
pub struct Room {
    pub quota_bytes: i128,
    pub limit_bytes: i128,
    pub host_bytes: i128,
    /// Whether fewer rows came than were expected.
    #[serde(skip)]
    pub fewer_rows: bool,
}

impl Room {
    /// The room when a layer was decided.
    ///
    /// `offloaded_bytes` are the whole unit's: the host pool's promise at that time is not told.
    pub fn new(decided: &Decided, offloaded_bytes: u64, expected_rows: u32) -> Self {
        let beyond = |bound: u64, bytes: u64| i128::from(bound) - i128::from(bytes);
        Self {
            quota_bytes: beyond(decided.device.quota, decided.promised_bytes),
            limit_bytes: beyond(decided.device.limit, decided.promised_bytes),
            host_bytes: beyond(decided.host.limit, offloaded_bytes),
            fewer_rows: decided.record.rows < expected_rows,
        }
    }

    /// The smaller room.
    pub fn tighter(self, other: Self) -> Self {
        if other.limit_bytes < self.limit_bytes { other } else { self }
    }
}

impl<'a> Tensor<'a> {
    /// Explains a tensor of a layer.
    pub fn new(view: &View<'_, 'a>, index: usize) -> Result<Self, String> {
        let tensor = view.whole.tensors()[index];
        let plan = view.chosen.plan;
        let strategy = plan.strategy(index);
        let (mut alternatives, mut forbidden) = (Vec::new(), Vec::new());
        for other in STRATEGIES.into_iter().filter(|&other| other != strategy) {
            match because(view, index, other) {
                Some(because) => forbidden.push(Forbidden { strategy: other, because }),
                None => alternatives.push(alternative(view, index, other)?),
            }
        }
        let name = |index: usize| view.kind.tensor_names[index];
        let mut explained = Self {
            name: name(index),
            bytes: tensor.bytes,
            block_input: tensor.block_input,
            producer: view.whole.producer(index).map(|op| view.kind.op_names[op]),
            saved_by: view.ops(|op| view.whole.ops()[op].saves.contains(index)),
            read_by: view.ops(|op| view.whole.ops()[op].reads.contains(index)),
            source: tensor.source.map(|source| name(source.into())),
            megatron: view.kind.saved_in(index),
            offload: tensor.copy.map(|t| Copies { copy_out_ns: t.out_ns, copy_in_ns: t.in_ns }),
            quantize: tensor.cast.map(|t| Casts {
                cast_ns: t.cast_ns,
                uncast_ns: t.uncast_ns,
                quantized_bytes: t.bytes,
            }),
            strategy,
            held_bytes: match strategy {
                Strategy::Keep => tensor.bytes,
                Strategy::Quantize => tensor.cast.unwrap_or_default().bytes,
                Strategy::Recompute | Strategy::Offload => 0,
            },
            forbidden,
            alternatives,
            cheaper: None,
            smaller: None,
        };
        explained.cheaper = explained.next(|a| a.added_ns_delta < 0);
        explained.smaller = explained.next(|a| a.bytes_delta < 0);
        Ok(explained)
    }

    /// The least added time among alternatives; of equal ones the fewest bytes.
    fn next(&self, among: impl Fn(&Alternative) -> bool) -> Option<Strategy> {
        let found = self.alternatives.iter().filter(|a| among(a));
        found.min_by_key(|a| (a.added_ns_delta, a.bytes_delta)).map(|a| a.strategy)
    }

    /// The alternative that is a strategy.
    pub fn alternative(&self, strategy: Option<Strategy>) -> Option<&Alternative> {
        self.alternatives.iter().find(|a| Some(a.strategy) == strategy)
    }
}

/// Why a tensor may not have a strategy; `None` where it may.
fn because<'a>(view: &View<'_, 'a>, index: usize, strategy: Strategy) -> Option<Because<'a>> {
    let tensor = &view.whole.tensors()[index];
    match strategy {
        Strategy::Keep => None,
        _ if tensor.block_input => Some(Because::BlockInput),
        Strategy::Offload => tensor.copy.is_none().then_some(Because::NoCopies),
        Strategy::Quantize => tensor.cast.is_none().then_some(Because::Exact),
        Strategy::Recompute => {
            let plan = LayerPlan { recompute: Set::one(index), ..LayerPlan::KEEP };
            match evaluate(view.local, &plan, Collectives::NONE) {
                Err(Refused::Collective { op, group }) => {
                    Some(Because::Collective { op: view.kind.op_names[op], group })
                }
                Err(_) => Some(Because::NoProducer),
                Ok(_) => None,
            }
        }
    }
}

/// What `strategy` for one tensor would change in its layer.
fn alternative(view: &View<'_, '_>, index: usize, strategy: Strategy) -> Result<Alternative, String> {
    let mut plan = view.chosen.plan;
    plan.assign(index, strategy);
    let other = evaluate(view.whole, &plan, Collectives::ALL).map_err(|e| e.to_string())?;
    let delta = |other: u64, chosen: u64| i128::from(other) - i128::from(chosen);
    let mut alternative = Alternative {
        strategy,
        bytes_delta: delta(other.bytes, view.chosen.bytes),
        host_bytes_delta: delta(other.host_bytes, view.chosen.host_bytes),
        added_ns_delta: delta(other.added_ns, view.chosen.added_ns),
        reason: Reason::NotNeeded,
    };
    alternative.reason = match (view.forced.contains(index), view.record.recompute) {
        (false, _) => reason(&alternative, &view.room, view.replanned),
        (true, Recompute::Full) => Reason::StaticSetting,
        (true, Recompute::Local | Recompute::WholeMoe) => Reason::GroupDecision,
    };
    Ok(alternative)
}

/// Why the rank itself did not take an alternative.
fn reason(alternative: &Alternative, room: &Room, replanned: bool) -> Reason {
    let &Alternative { bytes_delta, host_bytes_delta, added_ns_delta, .. } = alternative;
    let over = |delta: i128, room: i128| u64::try_from(delta - room.max(0)).ok().filter(|&over| over > 0);
    let larger = bytes_delta > 0;
    if added_ns_delta > 0 {
        Reason::Slower
    } else if added_ns_delta == 0 {
        if larger { Reason::Larger } else { Reason::NotNeeded }
    } else if larger && let Some(over_bytes) = over(bytes_delta, room.limit_bytes) {
        Reason::OverLimit { over_bytes }
    } else if larger
        && !replanned
        && let Some(over_bytes) = over(bytes_delta, room.quota_bytes)
    {
        Reason::OverQuota { over_bytes }
    } else if host_bytes_delta > 0
        && let Some(over_bytes) = over(host_bytes_delta, room.host_bytes)
    {
        Reason::OverHostLimit { over_bytes }
    } else if room.fewer_rows && !replanned {
        Reason::ExpectedMoreRows
    } else {
        Reason::PlannedInSteps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { quota_bytes: 10, limit_bytes: 30, host_bytes: 5, fewer_rows: false };

    /// The reason against an alternative that changes so many bytes, host bytes and ns.
    fn against(delta: [i128; 3], room: Room, replanned: bool) -> Reason {
        let [bytes_delta, host_bytes_delta, added_ns_delta] = delta;
        let strategy = Strategy::Keep;
        let reason = Reason::NotNeeded;
        let alternative = Alternative { strategy, bytes_delta, host_bytes_delta, added_ns_delta, reason };
        super::reason(&alternative, &room, replanned)
    }

    #[test]
    fn time_decides_before_bytes() {
        assert_eq!(against([-50, 0, 1], ROOM, true), Reason::Slower);
        assert_eq!(against([50, 0, 1], ROOM, true), Reason::Slower);
        assert_eq!(against([1, 0, 0], ROOM, true), Reason::Larger);
        assert_eq!(against([-1, 1, 0], ROOM, true), Reason::NotNeeded);
    }

    #[test]
    fn what_saves_time_passes_a_bound_or_would_have_fitted() {
        assert_eq!(against([31, 0, -1], ROOM, false), Reason::OverLimit { over_bytes: 1 });
        assert_eq!(against([30, 0, -1], ROOM, false), Reason::OverQuota { over_bytes: 20 });
        assert_eq!(against([30, 0, -1], ROOM, true), Reason::PlannedInSteps, "at the gate the limit counts");
        assert_eq!(against([-9, 7, -1], ROOM, false), Reason::OverHostLimit { over_bytes: 2 });
        assert_eq!(against([10, 5, -1], ROOM, false), Reason::PlannedInSteps);
        let fewer = Room { fewer_rows: true, ..ROOM };
        assert_eq!(against([10, 0, -1], fewer, false), Reason::ExpectedMoreRows);
        // A unit that holds more than its share already has no room, not less than none.
        let none = Room { quota_bytes: -100, limit_bytes: 30, ..ROOM };
        assert_eq!(against([7, 0, -1], none, false), Reason::OverQuota { over_bytes: 7 });
    }
}
