//! When what is offloaded comes back (Megatron's `PipelineOffloadManager` and `ChunkOffloadHandler`).
//!
//! Where the backward of a group ends, whether it was offloaded or not, the last group of its unit that is still on the
//! host is asked for, counted by where groups end; of a unit with none left, that of the next unit to go back, if its
//! forward is done. What has not been asked for when it is needed comes back then. The groups that never leave so ask
//! for others long before these are needed: from the first backward on, about a layer's worth is back early.

use super::offload::{Group, UnitOffload};
use super::overlap::Step;

/// The groups of a rank's units on their way back.
pub(super) struct Reloads<'a, F> {
    steps: &'a [Step],
    backwards: &'a [u32],
    /// The groups of a unit, in the order in which they begin.
    groups: F,
    /// Of each unit, those that are on the host, in the order in which they ended.
    away: Vec<Vec<usize>>,
    /// Of each unit, the step of its forward.
    forward: Vec<usize>,
}

impl<'a, F: Fn(u32) -> &'a Vec<Group>> Reloads<'a, F> {
    /// All is on the host that is offloaded.
    pub fn new(steps: &'a [Step], backwards: &'a [u32], groups: F, on: &[Vec<bool>]) -> Self {
        let away = on.iter().enumerate().map(|(unit, on)| {
            let groups = groups(unit as u32);
            let mut away: Vec<usize> = (0..on.len()).filter(|&group| on[group]).collect();
            away.sort_by_key(|&group| (groups[group].layer, groups[group].end));
            away
        });
        let away = away.collect();
        let mut forward = vec![0; on.len()];
        for (at, unit) in steps.iter().enumerate().filter_map(|(at, step)| Some((at, step.forward()?))) {
            forward[unit as usize] = at;
        }
        Self { steps, backwards, groups, away, forward }
    }

    /// Marks in `units` what comes back early, and where.
    pub fn run(mut self, units: &mut [UnitOffload]) {
        let mut done = 0;
        for (at, step) in self.steps.iter().enumerate() {
            let Some(unit) = step.backward() else { continue };
            done += 1;
            let next = self.backwards[done..].iter().copied().find(|&next| !(self.groups)(next).is_empty());
            let next = next.filter(|&next| self.forward[next as usize] < at);
            for group in (self.groups)(unit).iter().rev() {
                let here = (group.layer, group.begin());
                let bytes = match self.away[unit as usize].pop() {
                    Some(asked) => self.ask(unit, asked, Some(here), units),
                    None => next.map_or(0, |next| match self.away[next as usize].pop() {
                        Some(asked) => self.ask(next, asked, None, units),
                        None => 0,
                    }),
                };
                if bytes > 0 {
                    units[unit as usize].layers[group.layer].reloads.push((here.1, bytes));
                }
            }
        }
    }

    /// Bytes of a group that comes back behind the backward of the operator `here` of its own unit, or ahead of its
    /// unit: without what that backward has needed already.
    fn ask(&self, unit: u32, group: usize, here: Option<(usize, usize)>, units: &mut [UnitOffload]) -> u64 {
        let group = &(self.groups)(unit)[group];
        let mut bytes = 0u64;
        let copies = &mut units[unit as usize].layers[group.layer].copies;
        for (_, wanted) in &group.copies {
            let ahead = here.is_none_or(|here| (group.layer, wanted.used) < here);
            let copy = copies.iter_mut().find(|copy| ahead && **copy == *wanted);
            if let Some(copy) = copy {
                copy.early = true;
                bytes = bytes.saturating_add(copy.bytes);
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::OffloadModule;
    use crate::settings::curve::{Copied, LayerOffload};
    use bagualu_core::set::Set;

    /// A group that begins and ends with these operators and copies one tensor, saved by the first.
    fn group(layer: usize, begin: usize, end: usize) -> Group {
        let copy = Copied { bytes: 10, used: begin, freed: begin, early: false };
        let module = OffloadModule::MoeAct;
        Group { layer, module, ops: Set::one(begin), end, copies: vec![(0, copy)] }
    }

    /// Units of these groups, offloaded where `on`.
    fn reloaded(groups: &Vec<Group>, steps: &[Step], on: &[Vec<bool>]) -> Vec<UnitOffload> {
        let layers = groups.last().expect("a group").layer + 1;
        let unit = |on: &Vec<bool>| {
            let mut layers = vec![LayerOffload::default(); layers];
            for (group, _) in groups.iter().zip(on).filter(|(_, on)| **on) {
                layers[group.layer].copies.extend(group.copies.iter().map(|(_, copy)| *copy));
            }
            UnitOffload { layers, ..UnitOffload::default() }
        };
        let mut units: Vec<_> = on.iter().map(unit).collect();
        let backwards: Vec<u32> = steps.iter().filter_map(|step| step.backward()).collect();
        Reloads::new(steps, &backwards, |_| groups, on).run(&mut units);
        units
    }

    fn early(unit: &UnitOffload) -> Vec<bool> {
        unit.layers.iter().flat_map(|layer| layer.copies.iter().map(|copy| copy.early)).collect()
    }

    #[test]
    fn a_group_that_never_left_asks_for_the_one_before_it() {
        let groups = vec![group(0, 2, 3), group(1, 2, 3)];
        let steps = [Step::Forward(0), Step::Forward(1), Step::Backward(0), Step::Backward(1)];
        let units = reloaded(&groups, &steps, &[vec![true, false], vec![true, true]]);
        assert_eq!(units[0].layers[1].reloads, [(2, 10)], "layer 0 of the same unit");
        assert_eq!(units[0].layers[0].reloads, [(2, 10)], "layer 1 of the next unit");
        assert_eq!((early(&units[0]), early(&units[1])), (vec![true], vec![true, true]));
        assert_eq!(units[1].layers[0].reloads, [], "nothing is left");
    }

    #[test]
    fn what_is_needed_before_it_is_asked_for_comes_back_alone() {
        // A norm's group ends behind the group inside it, and so is the first to be asked for.
        let groups = vec![group(0, 0, 5), group(0, 2, 3)];
        let units = reloaded(&groups, &[Step::Forward(0), Step::Backward(0)], &[vec![true, true]]);
        assert_eq!(units[0].layers[0].reloads, [(2, 10)]);
        assert_eq!(early(&units[0]), [true, false]);
    }

    #[test]
    fn a_unit_still_in_its_forward_is_not_asked() {
        let groups = vec![group(0, 2, 3)];
        let after = [Step::Forward(0), Step::Backward(0), Step::Forward(1), Step::Backward(1)];
        let beside = [Step::Forward(0), Step::Both { forward: 1, backward: 0 }, Step::Backward(1)];
        for steps in [&after[..], &beside] {
            let units = reloaded(&groups, steps, &[vec![false], vec![true]]);
            assert_eq!((&units[0].layers[0].reloads[..], early(&units[1])), (&[][..], vec![false]));
        }
    }
}
