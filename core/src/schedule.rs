//! The order of forwards and backwards on one pipeline rank: Megatron's schedules.
//!
//! Non-interleaved 1F1B and interleaved 1F1B as in Megatron-LM
//! `core/pipeline_parallel/schedules.py` (`get_pp_rank_microbatches`, `get_schedule_table`).

use core::fmt;

/// A forward or a backward of one unit, that is of one (micro-batch, model chunk).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// The forward of a unit.
    Forward(u32),
    /// The backward of a unit.
    Backward(u32),
}

/// A pipeline rank's place and work in one iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pipeline {
    /// P, pipeline ranks.
    pub ranks: u32,
    /// s, this rank, from 0.
    pub rank: u32,
    /// M, micro-batches of the iteration.
    pub micro_batches: u32,
    /// V, model chunks per rank; 1 is no interleaving.
    pub chunks: u32,
    /// Micro-batches that pass one chunk before the next one's turn; Megatron's default is P. Unused
    /// without interleaving.
    pub group_size: u32,
    /// Whether expert-parallel communication overlaps: one more warm-up forward, and from then on each forward
    /// runs together with a backward (Megatron's `combined_1f1b.py`, which takes a pipeline only interleaved).
    pub overlap: bool,
}

impl Pipeline {
    /// 1F1B without interleaving.
    pub const fn new(ranks: u32, rank: u32, micro_batches: u32) -> Self {
        Self { ranks, rank, micro_batches, chunks: 1, group_size: ranks, overlap: false }
    }

    /// Interleaved with `chunks` model chunks per rank.
    pub const fn interleaved(self, chunks: u32) -> Self {
        Self { chunks, ..self }
    }

    /// The unit of a micro-batch and a chunk; `u32::MAX` for one past it.
    pub const fn unit(&self, micro_batch: u32, chunk: u32) -> u32 {
        chunk.saturating_mul(self.micro_batches).saturating_add(micro_batch)
    }

    /// The micro-batch and the chunk of a unit.
    pub const fn parts(&self, unit: u32) -> (u32, u32) {
        // A pipeline without micro-batches has no units; it is refused before it runs.
        let micro_batches = if self.micro_batches == 0 { 1 } else { self.micro_batches };
        (unit % micro_batches, unit / micro_batches)
    }

    /// M·V, how many units there are; checks the pipeline.
    pub fn units(&self) -> Result<u32, ScheduleError> {
        self.check()?;
        let units = self.micro_batches.checked_mul(self.chunks).filter(|&u| u <= u32::MAX / 2);
        units.ok_or(ScheduleError::TooManyUnits { micro_batches: self.micro_batches, chunks: self.chunks })
    }

    /// Forwards before the first backward, less the one that the steady state pairs with it.
    pub fn warm_up(&self) -> Result<u32, ScheduleError> {
        let units = u64::from(self.units()?);
        let behind = u64::from(self.ranks - self.rank - 1);
        let warm_up = if self.chunks == 1 {
            behind + u64::from(self.overlap && self.ranks == 1)
        } else {
            let turn = u64::from(self.chunks - 1) * u64::from(self.group_size);
            2 * behind + turn + u64::from(self.overlap)
        };
        Ok(warm_up.min(units) as u32)
    }

    /// Writes the 2·M·V events of the iteration to the front of `out`.
    pub fn events<'o>(&self, out: &'o mut [Event]) -> Result<&'o [Event], ScheduleError> {
        let warm_up = self.warm_up()? as usize;
        let units = self.units()? as usize;
        let available = out.len();
        let out =
            out.get_mut(..2 * units).ok_or(ScheduleError::OutTooShort { needed: 2 * units, available })?;
        let (mut forward, mut backward) = (0, 0);
        for event in out.iter_mut() {
            let ahead = forward - backward;
            if forward < units && ahead <= warm_up {
                *event = Event::Forward(self.nth(forward as u32, false));
                forward += 1;
            } else {
                *event = Event::Backward(self.nth(backward as u32, true));
                backward += 1;
            }
        }
        Ok(out)
    }

    /// The unit of the `n`-th forward or backward, as in Megatron's schedule table.
    fn nth(&self, n: u32, backward: bool) -> u32 {
        if self.chunks == 1 {
            return n;
        }
        let full = self.group_size * self.chunks;
        let group = n / full;
        let first = group * self.group_size;
        let size = self.group_size.min(self.micro_batches - first);
        let within = n - group * full;
        let chunk = within / size;
        let chunk = if backward { self.chunks - 1 - chunk } else { chunk };
        self.unit(first + within % size, chunk)
    }

    fn check(&self) -> Result<(), ScheduleError> {
        for (field, value) in
            [("ranks", self.ranks), ("micro_batches", self.micro_batches), ("chunks", self.chunks)]
        {
            if value == 0 {
                return Err(ScheduleError::Zero { field });
            }
        }
        if self.rank >= self.ranks {
            return Err(ScheduleError::NoSuchRank { rank: self.rank, ranks: self.ranks });
        }
        if self.chunks == 1 {
            return Ok(());
        }
        if self.group_size < self.ranks || self.group_size > 1 << 20 || self.chunks > 1 << 10 {
            return Err(ScheduleError::GroupSize { size: self.group_size, ranks: self.ranks });
        }
        let rest = self.micro_batches % self.group_size;
        if rest != 0 && rest < self.ranks {
            return Err(ScheduleError::LastGroup {
                micro_batches: self.micro_batches,
                group_size: self.group_size,
                ranks: self.ranks,
            });
        }
        Ok(())
    }
}

/// The most units in flight at once in `events`.
pub fn most_in_flight(events: &[Event]) -> usize {
    let (mut now, mut most) = (0usize, 0);
    for event in events {
        match event {
            Event::Forward(_) => now += 1,
            Event::Backward(_) => now = now.saturating_sub(1),
        }
        most = most.max(now);
    }
    most
}

/// Why there is no schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ScheduleError {
    /// A count is 0.
    Zero {
        /// Which.
        field: &'static str,
    },
    /// The rank is not one of the pipeline's.
    NoSuchRank {
        /// The rank.
        rank: u32,
        /// The pipeline's ranks.
        ranks: u32,
    },
    /// M·V does not fit.
    TooManyUnits {
        /// M.
        micro_batches: u32,
        /// V.
        chunks: u32,
    },
    /// The micro-batch group is smaller than the pipeline, or absurdly large.
    GroupSize {
        /// The group size.
        size: u32,
        /// The pipeline's ranks.
        ranks: u32,
    },
    /// The last micro-batch group is smaller than the pipeline.
    LastGroup {
        /// M.
        micro_batches: u32,
        /// The group size.
        group_size: u32,
        /// The pipeline's ranks.
        ranks: u32,
    },
    /// The caller's storage is too short.
    OutTooShort {
        /// Events needed.
        needed: usize,
        /// Events it holds.
        available: usize,
    },
}

impl fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero { field } => write!(f, "{field} is 0; it must be at least 1"),
            Self::NoSuchRank { rank, ranks } => {
                write!(f, "pipeline rank {rank} of {ranks}; ranks count from 0")
            }
            Self::TooManyUnits { micro_batches, chunks } => {
                write!(f, "{micro_batches} micro-batches × {chunks} chunks pass 2^31; use fewer")
            }
            Self::GroupSize { size, ranks } => write!(
                f,
                "micro-batch group size {size} with {ranks} pipeline ranks; interleaving needs a group of at \
                 least as many micro-batches as ranks (at most 2^20, with at most 2^10 chunks)"
            ),
            Self::LastGroup { micro_batches, group_size, ranks } => write!(
                f,
                "{micro_batches} micro-batches in groups of {group_size} leave a last group of {}, smaller than \
                 the {ranks} pipeline ranks; interleaving needs a multiple of {group_size}, or a last group of at \
                 least {ranks}",
                micro_batches % group_size
            ),
            Self::OutTooShort { needed, available } => {
                write!(f, "the schedule has {needed} events; storage was given for {available}")
            }
        }
    }
}

impl core::error::Error for ScheduleError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(pipeline: Pipeline) -> Vec<Event> {
        let mut out = vec![Event::Forward(0); 2 * pipeline.units().expect("units") as usize];
        pipeline.events(&mut out).expect("a schedule").to_vec()
    }

    /// Megatron's loops, written as they run: warm-up forwards, forward–backward pairs, backwards, over
    /// its explicit schedule table.
    fn megatron(p: Pipeline) -> Vec<Event> {
        let (m, v) = (p.micro_batches, p.chunks);
        let mut table = Vec::new();
        let mut first = 0;
        while first < m {
            let end = if first + p.group_size >= m { m } else { first + p.group_size };
            for chunk in 0..v {
                for micro_batch in first..end {
                    table.push((micro_batch, chunk));
                }
            }
            first += p.group_size;
        }
        let warm_up = if v == 1 {
            // Without a pipeline the overlap begins with a forward of its own.
            (p.ranks - p.rank - 1 + u32::from(p.overlap && p.ranks == 1)).min(m)
        } else {
            ((p.ranks - p.rank - 1) * 2 + (v - 1) * p.group_size + u32::from(p.overlap)).min(m * v)
        } as usize;
        let forward = |i: usize| Event::Forward(table[i].1 * m + table[i].0);
        let backward = |i: usize| Event::Backward((v - 1 - table[i].1) * m + table[i].0);
        let mut out: Vec<_> = (0..warm_up).map(forward).collect();
        for i in 0..table.len() - warm_up {
            out.push(forward(warm_up + i));
            out.push(backward(i));
        }
        out.extend((table.len() - warm_up..table.len()).map(backward));
        out
    }

    #[test]
    fn equals_megatrons_loops() {
        for ranks in 1..=16 {
            for chunks in 1..=4 {
                for micro_batches in 1..=64 {
                    for (rank, overlap) in (0..ranks).flat_map(|r| [(r, false), (r, true)]) {
                        let mut p = Pipeline::new(ranks, rank, micro_batches).interleaved(chunks);
                        p.overlap = overlap;
                        if chunks > 1 && micro_batches % ranks != 0 {
                            let error = p.events(&mut []).expect_err("not a multiple");
                            assert!(matches!(error, ScheduleError::LastGroup { .. }), "{p:?}: {error}");
                            continue;
                        }
                        assert_eq!(events(p), megatron(p), "{p:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn larger_groups_and_a_short_last_group() {
        for (ranks, group_size, micro_batches) in [(2, 3, 8), (4, 8, 20), (3, 5, 13), (1, 1, 5)] {
            for rank in 0..ranks {
                let mut p = Pipeline::new(ranks, rank, micro_batches).interleaved(3);
                p.group_size = group_size;
                assert_eq!(events(p), megatron(p), "{p:?}");
            }
        }
    }

    #[test]
    fn in_flight_peaks_are_those_of_real_runs() {
        let peaks = |chunks| -> Vec<usize> {
            (0..4)
                .map(|rank| most_in_flight(&events(Pipeline::new(4, rank, 8).interleaved(chunks))))
                .collect()
        };
        assert_eq!(peaks(1), [4, 3, 2, 1]);
        assert_eq!(peaks(2), [11, 9, 7, 5]);
    }

    #[test]
    fn interleaving_raises_in_flight_memory_by_its_closed_form() {
        // 1 + (P − 1)/(P·V) times the 1F1B peak of P micro-batches of V chunks.
        for ranks in 2..=16u32 {
            for chunks in 2..=4u32 {
                let p = Pipeline::new(ranks, 0, 4 * ranks).interleaved(chunks);
                assert_eq!(most_in_flight(&events(p)) as u32, ranks * chunks + ranks - 1);
            }
        }
    }

    #[test]
    fn bad_pipelines_are_refused() {
        let zero = Pipeline::new(4, 0, 0);
        assert_eq!(zero.parts(3), (0, 3));
        assert_eq!(Pipeline::new(1, 0, u32::MAX).unit(1, 2), u32::MAX);
        assert_eq!(zero.events(&mut []), Err(ScheduleError::Zero { field: "micro_batches" }));
        let beyond = Pipeline::new(4, 4, 1);
        assert!(matches!(beyond.events(&mut []), Err(ScheduleError::NoSuchRank { .. })));
        let huge = Pipeline::new(1, 0, u32::MAX);
        assert!(matches!(huge.events(&mut []), Err(ScheduleError::TooManyUnits { .. })));
        let short = Pipeline::new(2, 0, 2).events(&mut []);
        assert_eq!(short, Err(ScheduleError::OutTooShort { needed: 4, available: 0 }));
        let group = Pipeline { group_size: 2, ..Pipeline::new(4, 0, 8).interleaved(2) };
        assert!(matches!(group.events(&mut []), Err(ScheduleError::GroupSize { .. })));
    }
}
