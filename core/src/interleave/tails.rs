//! How long before the end of every order an operator must start.

use super::lanes::{FOUR, Lanes};
use crate::limits::MAX_CHAIN;

/// By chain and place: no order ends sooner after the start of the operator there. 0 at a chain's end.
pub(super) type Tails = [[u64; MAX_CHAIN + 1]; FOUR];

/// Bytes in use by each chain at each of its places.
pub(super) type Levels = [[i64; MAX_CHAIN + 1]; FOUR];

/// After this many rounds tails are good enough; each round is valid by itself.
const ROUNDS: usize = 4;

/// Tails from three rules, each applied until it changes nothing:
///
/// - the chain's next operator starts after this one;
/// - with a merge, so does the next one of F and B on the same resource;
/// - where bytes bind (`memory`), the other chains must have come so far that this one fits beside them.
pub(super) fn tails(lanes: &Lanes, levels: &Levels, memory: bool) -> Tails {
    let mut tails = [[0; MAX_CHAIN + 1]; FOUR];
    for _ in 0..ROUNDS {
        let mut changed = false;
        for lane in 0..FOUR {
            let mut behind = [0; FOUR];
            for item in lanes.lane(lane).iter().rev() {
                let (chain, place) = (usize::from(item.chain), usize::from(item.index));
                let behind = &mut behind[usize::from(item.resource)];
                let mut after = tails[chain][place + 1].max(*behind);
                if memory {
                    let room = lanes.capacity - lanes.base - levels[chain][place] - item.alloc;
                    after = after.max(time_for_room(lanes, &tails, levels, chain, room));
                }
                let tail = after + item.ns;
                changed |= tail > tails[chain][place];
                tails[chain][place] = tail.max(tails[chain][place]);
                *behind = tails[chain][place];
            }
        }
        if !changed || !(memory || lanes.merged) {
            break;
        }
    }
    tails
}

/// How long before the end the chains other than `chain` can first be in states that use `room` together.
fn time_for_room(lanes: &Lanes, tails: &Tails, levels: &Levels, chain: usize, room: i64) -> u64 {
    let mut places = lanes.chain_lengths();
    let mut lows: [i64; FOUR] = core::array::from_fn(|other| levels[other][places[other]]);
    lows[chain] = 0;
    let mut time = 0;
    while lows.iter().sum::<i64>() > room {
        let back = (0..FOUR).filter(|&other| other != chain && places[other] > 0);
        let Some(other) = back.min_by_key(|&other| tails[other][places[other] - 1]) else { break };
        places[other] -= 1;
        time = time.max(tails[other][places[other]]);
        lows[other] = lows[other].min(levels[other][places[other]]);
    }
    time
}
