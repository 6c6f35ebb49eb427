//! `bagualu_scheduler`: the order of forward, backward, offload and recovery operators.

use bagualu_core::interleave::{
    Chain, Config, Exact, ExactSlot, List, Op, PaperDp, PaperSlot, Problem, Run, Scheduler, Solution, Step,
    run,
};

use bagualu_core::limits::MAX_CHAIN;

use crate::arguments::{
    check_reserved, config, config_or_default, elements, optional, out, out_struct, room, versioned,
};
use crate::boundary::boundary;
use crate::handle::{self, handle};
use crate::layer::resource;
use crate::status::{Failure, bagualu_status};

/// Orders the operators of a scheduling point so that copies and recomputation hide: §V-B of the paper.
///
/// Made by `bagualu_scheduler_new`, freed by `bagualu_scheduler_free`. One call at a time; threads take one each.
pub struct bagualu_scheduler {
    _opaque: [u8; 0],
}

handle!(bagualu_scheduler, Object, 3);

/// A scheduler and its storage.
pub(crate) struct Object {
    method: Method,
    order: Vec<Step>,
}

enum Method {
    Exact(Vec<ExactSlot>, Config),
    Paper(Vec<PaperSlot>),
    List,
}

/// The shortest order, with a proven bound.
pub const BAGUALU_SCHEDULER_EXACT: u32 = 0;
/// The paper's dynamic program.
pub const BAGUALU_SCHEDULER_PAPER: u32 = 1;
/// Longest remaining work first.
pub const BAGUALU_SCHEDULER_LIST: u32 = 2;

/// Most states of a scheduler: 120 MB.
const MOST_STATES: u32 = 1 << 20;
const DEFAULT_STATES: u32 = 1 << 12;

/// How a scheduler searches. All zeros, or NULL in its place, is the default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_scheduler_config {
    /// sizeof(bagualu_scheduler_config), set by the caller.
    pub struct_size: usize,
    /// `BAGUALU_SCHEDULER_…`.
    pub method: u32,
    /// States kept, about 120 bytes each; 0: 4096, which is enough for most scheduling points. At most 2^20.
    pub states: u32,
    /// States expanded by the exact search; 0: no limit but their number.
    pub node_limit: u32,
    /// 0.
    pub reserved: u32,
}

versioned!(bagualu_scheduler_config, reserved);

/// An operator of a chain.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct bagualu_chain_op {
    /// Run time, ns.
    pub ns: u64,
    /// Device bytes it takes when it starts.
    pub alloc_bytes: u64,
    /// Device bytes it gives back when it ends.
    pub free_bytes: u64,
    /// What it occupies, a `bagualu_resource`.
    pub resource: u32,
    /// 0.
    pub reserved: u32,
}

/// Chain of the forward operators of one micro-batch.
pub const BAGUALU_CHAIN_FORWARD: u32 = 0;
/// Chain of the backward operators of another.
pub const BAGUALU_CHAIN_BACKWARD: u32 = 1;
/// Chain of copies to the host.
pub const BAGUALU_CHAIN_OFFLOAD: u32 = 2;
/// Chain of reloads, recomputations and casts back.
pub const BAGUALU_CHAIN_RECOVER: u32 = 3;

/// The four chains of a scheduling point and the memory they share. Arrays are read during the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_chains {
    /// sizeof(bagualu_chains), set by the caller.
    pub struct_size: usize,
    /// The operators of each chain, indexed by `BAGUALU_CHAIN_…`.
    pub ops: [*const bagualu_chain_op; 4],
    /// How many there are.
    pub counts: [usize; 4],
    /// Bytes in use before the first operator.
    pub base_bytes: u64,
    /// Bytes never to be passed.
    pub capacity_bytes: u64,
    /// The order of forward and backward operators among each other (`BAGUALU_CHAIN_FORWARD` or `…_BACKWARD`, one for each
    /// operator), where the group has fixed it; NULL where it is free.
    pub merge: *const u32,
    /// Elements of `merge`.
    pub merge_count: usize,
}

versioned!(bagualu_chains);

/// An element of an order: an operator by its chain and its place in it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct bagualu_step {
    /// `BAGUALU_CHAIN_…`.
    pub chain: u32,
    /// Place in the chain, from 0.
    pub index: u32,
}

/// What an order is worth.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bagualu_solution {
    /// sizeof(bagualu_solution), set by the caller.
    pub struct_size: usize,
    /// End of the last operator, ns.
    pub makespan_ns: u64,
    /// No order is shorter, ns: proven.
    pub lower_bound_ns: u64,
    /// The most bytes in use at any time, the base included.
    pub peak_bytes: u64,
    /// 1 if no order is shorter, else 0.
    pub optimal: u32,
    /// 0.
    pub reserved: u32,
}

versioned!(bagualu_solution, reserved);

impl From<Solution> for bagualu_solution {
    fn from(solution: Solution) -> Self {
        let Solution { makespan_ns, lower_bound_ns, optimal, peak_bytes } = solution;
        Self { struct_size: 0, makespan_ns, lower_bound_ns, peak_bytes, optimal: optimal.into(), reserved: 0 }
    }
}

/// Makes a scheduler; `config` may be NULL.
///
/// Thread-safe. `*scheduler` is the caller's, to be freed by `bagualu_scheduler_free`.
///
/// # Safety
/// - `config` is NULL or a struct with its `struct_size` set; `scheduler` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_scheduler_new(
    config: *const bagualu_scheduler_config,
    scheduler: *mut *mut bagualu_scheduler,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (config, out) = unsafe { (config_or_default(config, "config")?, out(scheduler, "scheduler")?) };
        let states = match config.states {
            0 => DEFAULT_STATES,
            states if states <= MOST_STATES => states,
            states => return Err(Failure::value("states", states, "give at most 2^20")),
        } as usize;
        let node_limit = if config.node_limit == 0 { u32::MAX } else { config.node_limit };
        let method = match config.method {
            BAGUALU_SCHEDULER_EXACT => {
                Method::Exact(vec![ExactSlot::default(); states], Config { node_limit })
            }
            BAGUALU_SCHEDULER_PAPER => Method::Paper(vec![PaperSlot::default(); states]),
            BAGUALU_SCHEDULER_LIST => Method::List,
            other => return Err(Failure::value("method", other, "give a BAGUALU_SCHEDULER_…")),
        };
        out.set(handle::insert(Object { method, order: Vec::new() })?);
        Ok(())
    })
}

/// Frees a scheduler; NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn bagualu_scheduler_free(scheduler: *mut bagualu_scheduler) -> bagualu_status {
    boundary(|| handle::remove(scheduler).map(drop))
}

/// Writes an order, as many steps as the chains have operators, and what it is worth (`solution` may be NULL).
///
/// `BAGUALU_STATUS_INFEASIBLE` if no order fits into the capacity; `bagualu_last_shortage` then has the smallest that does.
///
/// # Safety
/// - `chains` is NULL or a struct with its `struct_size` set and arrays as long as their counts; `order` is NULL or has room
///   for `capacity`, apart from all else; `solution` is NULL or a struct with its `struct_size` set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_scheduler_schedule(
    scheduler: *mut bagualu_scheduler,
    chains: *const bagualu_chains,
    order: *mut bagualu_step,
    capacity: usize,
    solution: *mut bagualu_solution,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (chains, order, out) = unsafe {
            let out = optional(solution, |to| out_struct(to, "solution"))?;
            (Chains::read(chains)?, room(order, capacity, "order")?, out)
        };
        let problem = chains.problem()?;
        let count = problem.op_count();
        if order.count() < count {
            return Err(Failure::buffer("order", count, order.count()));
        }
        let found = handle::with_mut(scheduler, |object| {
            object.order.clear();
            object.order.resize(count, Step::default());
            let steps = &mut object.order;
            let found = match &mut object.method {
                Method::Exact(states, config) => Exact::new(states, *config).schedule(&problem, steps)?,
                Method::Paper(states) => PaperDp::new(states).schedule(&problem, steps)?,
                Method::List => List.schedule(&problem, steps)?,
            };
            let step = |step: &mut Step| bagualu_step { chain: step.chain as u32, index: step.index.into() };
            order.write(steps.iter_mut().map(step));
            Ok(found)
        })?;
        if let Some(out) = out {
            out.set_struct(found.into());
        }
        Ok(())
    })
}

/// Runs an order of the chains: its makespan and peak. `lower_bound_ns` and `optimal` are 0.
///
/// Thread-safe.
///
/// # Safety
/// - As for `bagualu_scheduler_schedule`; `order` has `count` steps.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bagualu_chains_run(
    chains: *const bagualu_chains,
    order: *const bagualu_step,
    count: usize,
    solution: *mut bagualu_solution,
) -> bagualu_status {
    boundary(|| {
        // SAFETY: the contract of this function.
        let (chains, order, out) = unsafe {
            let out = out_struct(solution, "solution")?;
            (Chains::read(chains)?, elements(order, count, "order")?, out)
        };
        let problem = chains.problem()?;
        if order.len() != problem.op_count() {
            return Err(Failure::buffer("order", problem.op_count(), order.len()));
        }
        let steps = order.iter().map(Step::try_from).collect::<Result<Vec<_>, _>>()?;
        let Run { makespan_ns, peak_bytes } = run(&problem, &steps)?;
        let solution = Solution { makespan_ns, lower_bound_ns: 0, optimal: false, peak_bytes };
        out.set_struct(solution.into());
        Ok(())
    })
}

impl TryFrom<&bagualu_step> for Step {
    type Error = Failure;

    fn try_from(step: &bagualu_step) -> Result<Self, Failure> {
        let chain = chain(step.chain, 3)?;
        let index = u8::try_from(step.index);
        let index = index.map_err(|_| Failure::index("index", step.index as usize, MAX_CHAIN))?;
        Ok(Self { chain, index })
    }
}

/// A problem's parts, copied.
struct Chains {
    ops: [Vec<Op>; 4],
    base_bytes: u64,
    capacity_bytes: u64,
    merge: Option<Vec<Chain>>,
}

impl Chains {
    /// # Safety
    /// - `from` is NULL or a struct with its `struct_size` set and arrays as long as their counts.
    unsafe fn read(from: *const bagualu_chains) -> Result<Self, Failure> {
        // SAFETY: the contract of this function.
        let chains = unsafe { config(from, "chains") }?;
        let mut all: [Vec<Op>; 4] = Default::default();
        for (place, (to, count)) in all.iter_mut().zip(chains.counts).enumerate() {
            if count > MAX_CHAIN {
                let message = format!("counts[{place}] is {count}; this build takes {MAX_CHAIN}");
                return Err(Failure::new(bagualu_status::Count, message));
            }
            // SAFETY: the contract of this function.
            let ops = unsafe { elements(chains.ops[place], count, "ops") }?;
            *to = ops.iter().map(Op::try_from).collect::<Result<_, _>>()?;
        }
        let merge = match chains.merge.is_null() {
            true => None,
            false if chains.merge_count > 2 * MAX_CHAIN => {
                let message = format!("merge_count is {}; it is that of F and B", chains.merge_count);
                return Err(Failure::new(bagualu_status::Count, message));
            }
            // SAFETY: the contract of this function.
            false => Some(unsafe { elements(chains.merge, chains.merge_count, "merge") }?),
        };
        let merge = merge.map(|merge| merge.iter().map(|&number| chain(number, 1)).collect());
        let bagualu_chains { base_bytes, capacity_bytes, .. } = chains;
        Ok(Self { ops: all, base_bytes, capacity_bytes, merge: merge.transpose()? })
    }

    fn problem(&self) -> Result<Problem<'_>, Failure> {
        let chains = self.ops.each_ref().map(Vec::as_slice);
        Ok(Problem::new(chains, self.base_bytes, self.capacity_bytes, self.merge.as_deref())?)
    }
}

impl TryFrom<&bagualu_chain_op> for Op {
    type Error = Failure;

    fn try_from(op: &bagualu_chain_op) -> Result<Self, Failure> {
        let bagualu_chain_op { ns, alloc_bytes, free_bytes, .. } = *op;
        check_reserved("ops", op.reserved)?;
        Ok(Self { resource: resource(op.resource)?, ns, alloc_bytes, free_bytes })
    }
}

fn chain(number: u32, last: u32) -> Result<Chain, Failure> {
    match Chain::ALL.get(number as usize) {
        Some(&chain) if number <= last => Ok(chain),
        _ => Err(Failure::value("chain", number, "give a BAGUALU_CHAIN_… that is allowed here")),
    }
}
