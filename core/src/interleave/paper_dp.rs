//! `PaperDp`: the dynamic program of §V-B over segments with barriers between them.
//!
//! F[i,j,k,l] = min over w ≤ i, x ≤ j, y ≤ k, z ≤ l of F[w,x,y,z] + T(w:i, x:j, y:k, z:l).
//!
//! The paper does not define T. Here it is the run time of the segment's operators issued round-robin F, B,
//! O, R from a barrier (design §9.1). All that a segment takes counts before anything it gives back; a
//! segment that does not fit so is left out.

use super::compact::join_items;
use super::lanes::{FOUR, Item, Lanes};
use super::need::Needs;
use super::window::Window;
use super::{InterleaveError, Problem, Scheduler, Solution, Step};

/// Storage of [`PaperDp`]: one state.
#[derive(Clone, Copy, Debug)]
pub struct PaperSlot {
    /// F.
    ns: u64,
    /// The state that the last segment starts from.
    from: u32,
}

impl Default for PaperSlot {
    fn default() -> Self {
        Self { ns: u64::MAX, from: 0 }
    }
}

/// The paper's dynamic program. Chains are first compacted into stages ([`compact`](super::compact())).
///
/// Its makespan is that of the replayed order, which is at most F: nothing waits for a barrier there. With a
/// merge, F and B are one sequence in it, and the round robin is over that, O and R.
#[derive(Debug)]
pub struct PaperDp<'s> {
    storage: &'s mut [PaperSlot],
    barrier_ns: u64,
    transitions: u64,
}

impl<'s> PaperDp<'s> {
    /// A solver for problems with at most `storage.len()` states: the product of (stages + 1) over the
    /// chains. A larger problem is [`InterleaveError::StorageTooSmall`].
    pub fn new(storage: &'s mut [PaperSlot]) -> Self {
        Self { storage, barrier_ns: 0, transitions: 0 }
    }

    /// F of the last problem: the end of its best order with barriers, ns.
    pub fn barrier_ns(&self) -> u64 {
        self.barrier_ns
    }

    /// Segments evaluated for the last problem.
    pub fn transitions(&self) -> u64 {
        self.transitions
    }
}

impl Scheduler for PaperDp<'_> {
    fn schedule(&mut self, problem: &Problem<'_>, order: &mut [Step]) -> Result<Solution, InterleaveError> {
        let window = Window::new(problem)?;
        let order = window.order(order)?;
        let stages = window.lanes.compacted(join_items);
        // A stage takes all at once; where only single operators fit, the program runs on those.
        let fits = Needs::new(&stages).smallest_capacity() <= stages.capacity;
        let lanes = if fits { &stages } else { &window.lanes };
        let strides = self.clear(lanes)?;
        let mut segments = Segments::new(lanes, strides, self.storage);
        segments.solve();
        self.transitions = segments.transitions;
        self.barrier_ns = segments.emit(order);
        window.solution(order, 0)
    }
}

impl PaperDp<'_> {
    /// Resets the states of `lanes` and returns how far apart neighbours are along each lane.
    fn clear(&mut self, lanes: &Lanes) -> Result<[usize; FOUR], InterleaveError> {
        let available = self.storage.len();
        let mut strides = [1; FOUR];
        let mut states = 1usize;
        for (lane, length) in lanes.lengths().into_iter().enumerate().rev() {
            strides[lane] = states;
            states = states.saturating_mul(length + 1);
        }
        let limit = available.min(u32::MAX as usize);
        let slots = self
            .storage
            .get_mut(..states)
            .filter(|_| states <= limit)
            .ok_or(InterleaveError::StorageTooSmall { needed: states, available })?;
        slots.fill(PaperSlot::default());
        slots[0].ns = 0;
        self.transitions = 0;
        Ok(strides)
    }
}

/// The lanes of a set, as bits.
type LaneSet = u8;

/// The program over all segments.
///
/// The order of a segment is by (round, lane). Without its last operator it is the order of another segment
/// from the same state, so the segments of a state form a tree in which each costs one more operator.
struct Segments<'a> {
    lanes: &'a Lanes,
    slots: &'a mut [PaperSlot],
    strides: [usize; FOUR],
    transitions: u64,
    source: u32,
    source_ns: u64,
    /// What is left of each lane at the source.
    rest: [&'a [Item]; FOUR],
    /// The segment: operators of each lane, chains ready, resources free, and its run time.
    lengths: [usize; FOUR],
    chains: [u64; FOUR],
    resources: [u64; FOUR],
    ns: u64,
}

impl<'a> Segments<'a> {
    fn new(lanes: &'a Lanes, strides: [usize; FOUR], slots: &'a mut [PaperSlot]) -> Self {
        Self {
            lanes,
            slots,
            strides,
            transitions: 0,
            source: 0,
            source_ns: 0,
            rest: [&[]; FOUR],
            lengths: [0; FOUR],
            chains: [0; FOUR],
            resources: [0; FOUR],
            ns: 0,
        }
    }

    /// States in lexicographic order: when one is reached, all that lead to it are done.
    fn solve(&mut self) {
        for source in 0..self.states() {
            let places = self.places(source);
            (self.source, self.source_ns) = (source as u32, self.slots[source].ns);
            if self.source_ns == u64::MAX {
                continue;
            }
            self.rest = core::array::from_fn(|lane| &self.lanes.lane(lane)[places[lane]..]);
            let level: i64 = (0..FOUR)
                .map(|lane| self.lanes.lane(lane)[..places[lane]].iter().map(Item::net).sum::<i64>())
                .sum();
            let left = (0..FOUR).filter(|&lane| !self.rest[lane].is_empty());
            let left = left.fold(0, |lanes, lane| lanes | 1 << lane);
            self.extend(0, left, source, self.lanes.capacity - self.lanes.base - level);
        }
    }

    fn states(&self) -> usize {
        self.strides[0] * (self.lanes.lengths()[0] + 1)
    }

    fn places(&self, state: usize) -> [usize; FOUR] {
        let lengths = self.lanes.lengths();
        core::array::from_fn(|lane| state / self.strides[lane] % (lengths[lane] + 1))
    }

    /// Evaluates all segments that go on from the present one, which ends at state `target` and leaves
    /// `room` bytes. `issued` lanes have had an operator in the present round, `waiting` ones may still; both
    /// have another.
    fn extend(&mut self, issued: LaneSet, waiting: LaneSet, target: usize, room: i64) {
        let lanes = issued | waiting;
        if lanes.is_power_of_two() && !(self.lanes.merged && lanes == 1) {
            return self.extend_chain(lanes.trailing_zeros() as usize, target, room);
        }
        for (lanes, new_round) in [(waiting, false), (issued, true)] {
            let mut left = lanes;
            while left != 0 {
                let lane = left & left.wrapping_neg();
                left ^= lane;
                let before = if new_round { 0 } else { issued };
                self.append(lane.trailing_zeros() as usize, before, left, target, room);
            }
        }
    }

    /// Evaluates the segment with one more operator of `lane`, and all that go on from it.
    fn append(&mut self, lane: usize, issued: LaneSet, waiting: LaneSet, target: usize, room: i64) {
        let [item, more @ ..] = &self.rest[lane][self.lengths[lane]..] else { return };
        let room = room - item.alloc;
        if room < 0 {
            return;
        }
        let (chain, resource) = (usize::from(item.chain) % FOUR, usize::from(item.resource) % FOUR);
        let before = (self.chains[chain], self.resources[resource], self.ns);
        let end = before.0.max(before.1) + item.ns;
        (self.chains[chain], self.resources[resource], self.ns) = (end, end, before.2.max(end));
        self.lengths[lane] += 1;
        let target = target + self.strides[lane];
        self.arrive(target);
        let issued = if more.is_empty() { issued } else { issued | 1 << lane };
        if issued | waiting != 0 {
            self.extend(issued, waiting, target, room);
        }
        self.lengths[lane] -= 1;
        (self.chains[chain], self.resources[resource], self.ns) = before;
    }

    /// Evaluates all segments that go on from the present one with operators of one lane and chain.
    fn extend_chain(&mut self, lane: usize, mut target: usize, mut room: i64) {
        // Most segments are evaluated here; locals stay in registers.
        let items = &self.rest[lane][self.lengths[lane]..];
        let Some(first) = items.first() else { return };
        let (resources, stride, source) = (self.resources, self.strides[lane], self.source);
        let least = self.source_ns + self.ns;
        let mut ready = self.source_ns + self.chains[usize::from(first.chain) % FOUR];
        let mut evaluated = 0;
        for item in items {
            room -= item.alloc;
            if room < 0 {
                break;
            }
            // Its own operators on the resource have ended by then.
            ready = ready.max(self.source_ns + resources[usize::from(item.resource) % FOUR]) + item.ns;
            target += stride;
            evaluated += 1;
            let (ns, slot) = (least.max(ready), &mut self.slots[target]);
            if ns < slot.ns {
                *slot = PaperSlot { ns, from: source };
            }
        }
        self.transitions += evaluated;
    }

    fn arrive(&mut self, target: usize) {
        self.transitions += 1;
        let (ns, slot) = (self.source_ns + self.ns, &mut self.slots[target]);
        if ns < slot.ns {
            *slot = PaperSlot { ns, from: self.source };
        }
    }

    /// Writes the best order, back to front, and returns F.
    fn emit(&self, order: &mut [Step]) -> u64 {
        let mut state = self.states() - 1;
        let mut end = order.len();
        while state != 0 {
            let from = self.slots[state].from as usize;
            let (first, last) = (self.places(from), self.places(state));
            let items = round_robin(self.lanes, first, last);
            end -= items.clone().map(|item| usize::from(item.count)).sum::<usize>();
            order[end..].iter_mut().zip(items.flat_map(|item| item.steps())).for_each(|(o, step)| *o = step);
            state = from;
        }
        self.slots[self.states() - 1].ns
    }
}

/// The items between two states by (round, lane).
fn round_robin(
    lanes: &Lanes,
    first: [usize; FOUR],
    last: [usize; FOUR],
) -> impl Iterator<Item = &Item> + Clone {
    let rounds = (0..FOUR).map(|lane| last[lane] - first[lane]).max().unwrap_or(0);
    (0..rounds).flat_map(move |round| {
        (0..FOUR).filter_map(move |lane| lanes.lane(lane)[first[lane]..last[lane]].get(round))
    })
}
