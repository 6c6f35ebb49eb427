//! The run of an order (design §10): when each operator starts, and what is in use.

use heapless::Vec;

use super::lanes::{FOUR, Item, Lanes};
use super::{InterleaveError, MAX_ORDER, Problem, Step};

/// What the run of an order gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Run {
    /// End of the last operator, ns.
    pub makespan_ns: u64,
    /// Largest number of bytes in use at any time; at least the base.
    pub peak_bytes: u64,
}

/// Runs `order`: operators are taken in turn, and each starts at the earliest time at which
///
/// - its resource is free after the operators before it in the order,
/// - its chain's previous operator has ended,
/// - and from which on the bytes it takes fit beside the operators before it, which hold theirs from start
///   and give back from end. At equal times ends come before the starts of other operators. Its own release
///   does not count.
///
/// [`InterleaveError::Infeasible`] where an operator finds no such time.
pub fn run(problem: &Problem<'_>, order: &[Step]) -> Result<Run, InterleaveError> {
    run_with(problem, order, |_, _, _| ())
}

/// As [`run`], and tells `visit` each operator's start and end, in ns.
pub fn run_with(
    problem: &Problem<'_>,
    order: &[Step],
    mut visit: impl FnMut(Step, u64, u64),
) -> Result<Run, InterleaveError> {
    if order.len() != problem.op_count() {
        return Err(InterleaveError::OrderLength { length: order.len(), needed: problem.op_count() });
    }
    let lanes = Lanes::new(problem);
    let infeasible = |needed: i64| InterleaveError::Infeasible {
        needed_bytes: needed.unsigned_abs(),
        available_bytes: problem.capacity_bytes(),
    };
    let needed = peak_in_turn(&lanes, order)?;
    let mut runner = Runner::new(&lanes, true);
    let mut next = [0; FOUR];
    for (position, &step) in order.iter().enumerate() {
        let item = take(&lanes, &mut next, position, step)?;
        let start = runner.start(item).ok_or(infeasible(needed))?;
        runner.place(item, start);
        visit(step, start, start + item.ns);
    }
    match runner.finish() {
        run if needed <= lanes.capacity => Ok(run),
        _ => Err(infeasible(needed)),
    }
}

/// The smallest capacity for which this order fits: waiting for everything before it is the best that an
/// operator can do.
fn peak_in_turn(lanes: &Lanes, order: &[Step]) -> Result<i64, InterleaveError> {
    let mut next = [0; FOUR];
    let (mut level, mut peak) = (lanes.base, lanes.base);
    for (position, &step) in order.iter().enumerate() {
        let item = take(lanes, &mut next, position, step)?;
        peak = peak.max(level + item.alloc);
        level += item.net();
    }
    Ok(peak)
}

/// The item that `step` names, if it is next in its lane.
fn take<'l>(
    lanes: &'l Lanes,
    next: &mut [usize; FOUR],
    position: usize,
    step: Step,
) -> Result<&'l Item, InterleaveError> {
    let lane = lanes.lane_of(step.chain);
    match lanes.lane(lane).get(next[lane]) {
        Some(item) if (item.chain, item.index) == (step.chain as u8, step.index) => {
            next[lane] += 1;
            Ok(item)
        }
        _ => Err(InterleaveError::BadOrder { position, chain: step.chain, index: step.index.into() }),
    }
}

/// The state of a run: when chains and resources are ready, and the bytes in use over time.
#[derive(Clone, Debug)]
pub(super) struct Runner {
    pub chains: [u64; FOUR],
    pub resources: [u64; FOUR],
    profile: Option<Profile>,
    capacity: i64,
}

impl Runner {
    /// Before the first operator. Without `memory` nothing ever waits for bytes.
    pub fn new(lanes: &Lanes, memory: bool) -> Self {
        Self {
            chains: [0; FOUR],
            resources: [0; FOUR],
            profile: memory.then(|| Profile::new(lanes.base)),
            capacity: lanes.capacity,
        }
    }

    /// When `item` would start, if it ever could.
    pub fn start(&self, item: &Item) -> Option<u64> {
        let ready = self.chains[item.chain as usize].max(self.resources[item.resource as usize]);
        match &self.profile {
            None => Some(ready),
            Some(profile) => profile.fits_from(ready, self.capacity - item.alloc),
        }
    }

    /// Lets `item` run from `start` on.
    pub fn place(&mut self, item: &Item, start: u64) {
        let end = start + item.ns;
        self.chains[item.chain as usize] = end;
        self.resources[item.resource as usize] = end;
        if let Some(profile) = &mut self.profile {
            profile.add(item, start, end);
        }
    }

    /// The most bytes in use at `from` or later.
    pub fn most_from(&self, from: u64) -> i64 {
        self.profile.as_ref().map_or(i64::MIN, |profile| profile.most_from(from))
    }

    /// Ends the run.
    pub fn finish(&self) -> Run {
        let most = self.most_from(0);
        Run {
            makespan_ns: self.chains.into_iter().max().unwrap_or(0),
            peak_bytes: u64::try_from(most).unwrap_or(0),
        }
    }
}

/// Bytes in use over time, as a step function.
#[derive(Clone, Debug)]
struct Profile {
    points: Vec<Point, { 2 * MAX_ORDER + 1 }>,
}

/// What happens at one time, in this sequence: operators end, operators of no length run one after another,
/// the others start.
#[derive(Clone, Copy, Debug)]
struct Point {
    at: u64,
    /// The most in use while operators of no length run; `i64::MIN` where none does.
    spike: i64,
    /// In use when they have run.
    low: i64,
    /// In use from here to the next point.
    level: i64,
}

impl Profile {
    fn new(base: i64) -> Self {
        let mut points = Vec::new();
        // The capacity of the vector is at least 1.
        let _ = points.push(Point { at: 0, spike: i64::MIN, low: base, level: base });
        Self { points }
    }

    /// The earliest time at `ready` or later from which on no more than `room` is in use.
    fn fits_from(&self, ready: u64, room: i64) -> Option<u64> {
        let mut later = None;
        for point in self.points.iter().rev() {
            if point.level > room {
                return later;
            }
            if point.at <= ready {
                break;
            }
            if point.spike > room {
                return Some(point.at);
            }
            later = Some(point.at);
        }
        Some(ready)
    }

    fn add(&mut self, item: &Item, start: u64, end: u64) {
        if item.alloc == 0 && item.free == 0 {
            return;
        }
        let from = self.point_at(start);
        if start == end {
            let point = &mut self.points[from];
            point.spike = point.spike.max(point.low + item.alloc);
            point.low += item.net();
            point.level += item.net();
            self.points[from + 1..].iter_mut().for_each(|point| point.raise(item.net()));
        } else {
            let to = self.point_at(end);
            self.points[from].level += item.alloc;
            self.points[from + 1..to].iter_mut().for_each(|point| point.raise(item.alloc));
            self.points[to..].iter_mut().for_each(|point| point.raise(item.net()));
        }
    }

    /// The place of the point at `time`, made where there is none.
    fn point_at(&mut self, time: u64) -> usize {
        let place = self.points.partition_point(|point| point.at < time);
        if self.points.get(place).is_none_or(|point| point.at > time) {
            let level = self.points[place - 1].level;
            // Two points per operator and the first one always fit.
            let _ = self.points.insert(place, Point { at: time, spike: i64::MIN, low: level, level });
        }
        place
    }

    fn most_from(&self, from: u64) -> i64 {
        let mut most = i64::MIN;
        for point in self.points.iter().rev() {
            most = most.max(point.level);
            if point.at >= from {
                most = most.max(point.spike);
            }
            if point.at <= from {
                break;
            }
        }
        most
    }
}

impl Point {
    fn raise(&mut self, bytes: i64) {
        // No spike stays none.
        if self.spike != i64::MIN {
            self.spike += bytes;
        }
        self.low += bytes;
        self.level += bytes;
    }
}
