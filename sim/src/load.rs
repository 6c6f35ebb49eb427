//! How many rows every rank of one expert-parallel group receives.

use core::fmt;

use crate::apportion::apportion;

/// The place where rows become known: the router of one layer of one micro-batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Gate {
    /// Training iteration, from 0.
    pub iteration: u32,
    /// Micro-batch of the iteration, from 0.
    pub micro_batch: u32,
    /// Transformer layer of the model, from 0.
    pub layer: u32,
}

/// The expert-parallel group that rows are spread over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    ranks: u32,
    experts: u32,
    layers: u32,
    micro_batches: u32,
    balanced_rows: u32,
    capacity: Option<Capacity>,
}

/// The limit of an expert's rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// The most rows of one expert from all ranks together. Megatron limits those of each sending rank; the ranks
    /// are taken to send alike.
    pub expert_rows: u32,
    /// Whether every expert receives so many.
    pub pad: bool,
}

impl Shape {
    /// `ranks` expert-parallel ranks hold `experts` experts in contiguous blocks; the model has `layers`
    /// transformer layers and `micro_batches` micro-batches an iteration; a rank receives
    /// `balanced_rows` = T·k·etp rows where the load is balanced.
    pub fn new(
        ranks: u32,
        experts: u32,
        layers: u32,
        micro_batches: u32,
        balanced_rows: u32,
    ) -> Result<Self, ShapeError> {
        let shape = Self { ranks, experts, layers, micro_batches, balanced_rows, capacity: None };
        for (name, value) in [
            ("expert-parallel ranks", ranks),
            ("experts", experts),
            ("layers", layers),
            ("micro-batches", micro_batches),
            ("balanced rows", balanced_rows),
        ] {
            if value == 0 {
                return Err(ShapeError::Zero { name });
            }
        }
        if experts > MAX_EXPERTS || !experts.is_multiple_of(ranks) {
            return Err(ShapeError::Experts { experts, ranks });
        }
        if u32::try_from(shape.total_rows()).is_err() {
            return Err(ShapeError::TooManyRows { ranks, balanced_rows });
        }
        Ok(shape)
    }

    /// The same with a limit of each expert's rows: what passes it is dropped.
    pub const fn with_capacity(self, capacity: Capacity) -> Self {
        Self { capacity: Some(capacity), ..self }
    }

    /// Expert-parallel ranks.
    pub const fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Experts of the model, over all ranks.
    pub const fn experts(&self) -> u32 {
        self.experts
    }

    /// Transformer layers of the model.
    pub const fn layers(&self) -> u32 {
        self.layers
    }

    /// Micro-batches of an iteration.
    pub const fn micro_batches(&self) -> u32 {
        self.micro_batches
    }

    /// Rows of one rank at balanced load.
    pub const fn balanced_rows(&self) -> u32 {
        self.balanced_rows
    }

    /// Rows of one layer over all ranks, whatever the load, before any is dropped.
    pub const fn total_rows(&self) -> u64 {
        self.ranks as u64 * self.balanced_rows as u64
    }

    /// Rows per rank of experts that take rows in proportion to `weights` (one per expert): each expert's
    /// share by largest remainder, so that the sum is exact, less what passes its capacity, then summed over
    /// each rank's block.
    pub(crate) fn place(&self, weights: &[u128], rows: &mut [u32]) {
        let per_expert = apportion(self.total_rows(), weights);
        let block = (self.experts / self.ranks) as usize;
        for (rank, experts) in rows.iter_mut().zip(per_expert.chunks(block)) {
            *rank = narrow(experts.iter().map(|&rows| self.admitted(rows, 1)).sum());
        }
    }

    /// Rows per rank in proportion to `weights` (one per rank), by largest remainder, less what passes the
    /// capacity of its experts.
    pub(crate) fn share(&self, weights: &[u128], rows: &mut [u32]) {
        for (rank, share) in rows.iter_mut().zip(apportion(self.total_rows(), weights)) {
            *rank = narrow(self.admitted(share, self.experts / self.ranks));
        }
    }

    /// What `experts` receive of `rows`.
    fn admitted(&self, rows: u64, experts: u32) -> u64 {
        match self.capacity {
            None => rows,
            Some(Capacity { expert_rows, pad }) => {
                let most = u64::from(expert_rows) * u64::from(experts);
                if pad { most } else { rows.min(most) }
            }
        }
    }
}

/// Experts of one layer that a shape or a trace may have.
pub const MAX_EXPERTS: u32 = 1 << 16;

/// A share of [`Shape::total_rows`], which `Shape::new` holds below 2^32.
fn narrow(rows: u64) -> u32 {
    u32::try_from(rows).unwrap_or(u32::MAX)
}

/// Rows of every rank at every gate. The answer depends on the gate alone, so that ranks can be replayed
/// in any order and on any number of threads.
pub trait Load: Sync {
    /// The group.
    fn shape(&self) -> &Shape;

    /// Writes the rows of each rank at `gate`; `rows` has one place per rank. They sum to
    /// [`Shape::total_rows`], less what is dropped.
    fn rows(&self, gate: Gate, rows: &mut [u32]);
}

/// Why a shape is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ShapeError {
    /// A size is 0.
    Zero {
        /// Which.
        name: &'static str,
    },
    /// Experts cannot be placed on the ranks in equal blocks.
    Experts {
        /// Experts.
        experts: u32,
        /// Ranks.
        ranks: u32,
    },
    /// The rows of one layer pass 2^32.
    TooManyRows {
        /// Ranks.
        ranks: u32,
        /// Rows of one rank at balanced load.
        balanced_rows: u32,
    },
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero { name } => write!(f, "{name}: 0; at least 1 is needed"),
            Self::Experts { experts, ranks } => write!(
                f,
                "experts: {experts}; a multiple of the {ranks} expert-parallel ranks, at most {MAX_EXPERTS}, is needed"
            ),
            Self::TooManyRows { ranks, balanced_rows } => write!(
                f,
                "{balanced_rows} rows on each of {ranks} ranks pass 2^32; use a shorter sequence or a smaller micro-batch"
            ),
        }
    }
}

impl core::error::Error for ShapeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_checked() {
        assert!(Shape::new(8, 64, 32, 8, 1 << 20).is_ok());
        assert_eq!(Shape::new(0, 64, 32, 8, 1), Err(ShapeError::Zero { name: "expert-parallel ranks" }));
        assert_eq!(Shape::new(7, 64, 32, 8, 1), Err(ShapeError::Experts { experts: 64, ranks: 7 }));
        let error = Shape::new(8, 64, 32, 8, 1 << 29).expect_err("2^32 rows");
        assert!(error.to_string().contains("536870912 rows on each of 8 ranks"), "{error}");
    }

    #[test]
    fn what_passes_the_capacity_is_dropped() {
        let shape = Shape::new(2, 4, 1, 1, 50).expect("a shape");
        let (mut placed, mut shared) = ([0; 2], [0; 2]);
        let mut rows = |expert_rows, pad| {
            let shape = shape.with_capacity(Capacity { expert_rows, pad });
            shape.place(&[1, 2, 3, 4], &mut placed);
            shape.share(&[1, 3], &mut shared);
            (placed, shared)
        };
        assert_eq!(rows(100, false), ([30, 70], [25, 75]));
        assert_eq!(rows(25, false), ([30, 50], [25, 50]));
        assert_eq!(rows(25, true), ([50, 50], [50, 50]));
    }

    #[test]
    fn experts_are_placed_in_blocks() {
        let shape = Shape::new(2, 4, 1, 1, 50).expect("a shape");
        let mut rows = [0; 2];
        shape.place(&[1, 2, 3, 4], &mut rows);
        assert_eq!(rows, [30, 70]);
    }
}
