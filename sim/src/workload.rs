//! Generated loads: the shapes W0–W7 and the spike process of §II.
//!
//! A load is a function of (seed, gate): the words of a ChaCha8 stream whose key is the seed and the gate,
//! and whole-number arithmetic, so that it is the same on every machine. The names W0–W7 are those of a
//! Megatron benchmark proposal (Megatron-LM issue 7488); the definitions are this module's.

use core::fmt;
use core::str::FromStr;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::load::{Gate, Load, Shape};
use crate::text::value;

/// The shape of a generated load. λ is a rank's rows over the balanced rows; `peak` the largest λ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Every rank receives the same.
    Balanced,
    /// One expert in sixteen is hot, others per layer; the rank with most hot experts reaches the peak.
    HotExperts,
    /// The same rank is at the peak in every layer and micro-batch.
    HotRank,
    /// Loads lie evenly between the least and the peak (at most 2), in an order drawn per gate.
    Spread,
    /// Source ranks of unequal token counts, each with a preferred destination.
    RaggedSource,
    /// One rank receives nothing, the others the same: their λ is R ÷ (R − 1) for R ranks, whatever the peak.
    ZeroRank,
    /// The hot rank is another one in every micro-batch and layer.
    RotatingHotSpot,
    /// Balanced but for a run of micro-batches per iteration in which one rank is at the peak.
    Burst,
    /// §II: 97.1 % of iterations stay below 1.2; in the others one micro-batch reaches between 1.2 and
    /// the peak. To the row: a share is rounded to a whole row.
    Spike,
}

impl Kind {
    /// All, W0 to W7 and then the spike process.
    pub const ALL: [Self; 9] = [
        Self::Balanced,
        Self::HotExperts,
        Self::HotRank,
        Self::Spread,
        Self::RaggedSource,
        Self::ZeroRank,
        Self::RotatingHotSpot,
        Self::Burst,
        Self::Spike,
    ];

    /// The name on the command line: `w0` to `w7`, `spike`.
    pub const fn name(self) -> &'static str {
        ["w0", "w1", "w2", "w3", "w4", "w5", "w6", "w7", "spike"][self as usize]
    }
}

impl FromStr for Kind {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Self, WorkloadError> {
        let known = Self::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(text));
        known.ok_or_else(|| WorkloadError::Unknown { name: text.to_owned() })
    }
}

/// λ in thousandths.
const ONE: u32 = 1_000;
/// §II: the largest load seen in training.
pub const DEFAULT_PEAK_PERMILLE: u32 = 2_600;
/// §II: below this load an iteration is no spike.
const SPIKE_PERMILLE: u32 = 1_200;
/// §II: spikes in a thousand iterations.
const SPIKES_PER_1000: u64 = 29;

/// A generated load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Workload {
    kind: Kind,
    shape: Shape,
    seed: u64,
    peak: u32,
}

impl Workload {
    /// The load `kind` on `shape`. `peak_permille` is the largest λ in thousandths, from 1000; with R
    /// ranks no rank can receive more than all rows, λ = R, and a higher peak stops there.
    pub fn new(kind: Kind, shape: Shape, seed: u64, peak_permille: u32) -> Result<Self, WorkloadError> {
        if peak_permille < ONE {
            return Err(WorkloadError::Peak { permille: peak_permille });
        }
        Ok(Self { kind, shape, seed, peak: peak_permille.min(shape.ranks().saturating_mul(ONE)) })
    }

    /// Which load this is.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    fn ranks(&self) -> usize {
        self.shape.ranks() as usize
    }

    /// The stream of one gate; parts that are the same for several gates are drawn with those fields 0.
    fn draws(&self, part: u8, gate: Gate) -> ChaCha8Rng {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&self.seed.to_le_bytes());
        key[8..12].copy_from_slice(&gate.iteration.to_le_bytes());
        key[12..16].copy_from_slice(&gate.micro_batch.to_le_bytes());
        key[16..20].copy_from_slice(&gate.layer.to_le_bytes());
        key[20] = self.kind as u8;
        key[21] = part;
        ChaCha8Rng::from_seed(key)
    }

    fn of_iteration(&self, part: u8, iteration: u32) -> ChaCha8Rng {
        self.draws(part, Gate { iteration, micro_batch: 0, layer: 0 })
    }

    fn one_hot(&self, rank: usize, peak: u32) -> Vec<u128> {
        let mut weights = vec![0; self.ranks()];
        weights[rank % self.ranks()] = 1;
        capped(weights, peak)
    }

    fn hot_experts(&self, layer: u32) -> Vec<u128> {
        let experts = self.shape.experts() as usize;
        let mut draws = self.draws(0, Gate { iteration: 0, micro_batch: 0, layer });
        let order = permutation(experts, &mut draws);
        let block = experts / self.ranks();
        let mut weights = vec![0; self.ranks()];
        for &expert in &order[..(experts / 16).max(1)] {
            weights[expert / block] += 1;
        }
        capped(weights, self.peak)
    }

    fn spread(&self, gate: Gate) -> Vec<u128> {
        let last = self.ranks().saturating_sub(1).max(1) as u128;
        let high = u128::from(self.peak.min(2 * ONE));
        let low = u128::from(2 * ONE) - high;
        let order = permutation(self.ranks(), &mut self.draws(0, gate));
        order.into_iter().map(|place| low * last + (high - low) * place as u128).collect()
    }

    fn ragged_sources(&self, gate: Gate) -> Vec<u128> {
        let mut draws = self.draws(0, gate);
        let mut weights = vec![0; self.ranks()];
        for _ in 0..self.ranks() {
            let tokens = u128::from(below(8, &mut draws)) + 1;
            let preferred = below(self.ranks() as u64, &mut draws) as usize;
            // Half of a source's rows go to its preferred rank, the rest evenly.
            weights[preferred] += tokens * self.ranks() as u128;
            weights.iter_mut().for_each(|w| *w += tokens);
        }
        capped(weights, self.peak)
    }

    fn zero_rank(&self) -> Vec<u128> {
        let mut weights = vec![1; self.ranks()];
        let empty = below(self.ranks() as u64, &mut self.of_iteration(0, 0)) as usize;
        if self.ranks() > 1 {
            weights[empty] = 0;
        }
        weights
    }

    fn burst(&self, gate: Gate) -> Vec<u128> {
        let all = self.shape.micro_batches();
        let mut draws = self.of_iteration(0, gate.iteration);
        let length = (all / 4).max(1);
        let start = below(u64::from(all - length) + 1, &mut draws) as u32;
        let rank = below(self.ranks() as u64, &mut draws) as usize;
        if (start..start + length).contains(&gate.micro_batch) {
            self.one_hot(rank, self.peak)
        } else {
            vec![1; self.ranks()]
        }
    }

    fn spike(&self, gate: Gate) -> Vec<u128> {
        let mut draws = self.of_iteration(0, gate.iteration);
        let calm = self.peak.min(SPIKE_PERMILLE);
        let spiked = below(1_000, &mut draws) < SPIKES_PER_1000 && self.peak > SPIKE_PERMILLE;
        let (low, high) = if spiked { (SPIKE_PERMILLE + 1, self.peak + 1) } else { (ONE, calm) };
        let highest = low + below(u64::from(high.max(low + 1) - low), &mut draws) as u32;
        let micro_batch = below(u64::from(self.shape.micro_batches()), &mut draws) as u32;
        let rank = below(self.ranks() as u64, &mut draws) as usize;
        if gate.micro_batch == micro_batch {
            // A skewed text is skewed in every layer that reads it.
            return self.one_hot(rank, highest);
        }
        let mut draws = self.draws(1, gate);
        let span = highest.min(calm).max(ONE + 1) - ONE;
        let peak = ONE + below(u64::from(span), &mut draws) as u32;
        self.one_hot(below(self.ranks() as u64, &mut draws) as usize, peak)
    }
}

impl Load for Workload {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn rows(&self, gate: Gate, rows: &mut [u32]) {
        let weights = match self.kind {
            Kind::Balanced => vec![1; self.ranks()],
            Kind::HotExperts => self.hot_experts(gate.layer),
            Kind::HotRank => {
                let rank = below(self.ranks() as u64, &mut self.of_iteration(0, 0)) as usize;
                self.one_hot(rank, self.peak)
            }
            Kind::Spread => self.spread(gate),
            Kind::RaggedSource => self.ragged_sources(gate),
            Kind::ZeroRank => self.zero_rank(),
            Kind::RotatingHotSpot => {
                let turn = u64::from(gate.iteration) * u64::from(self.shape.micro_batches())
                    + u64::from(gate.micro_batch)
                    + u64::from(gate.layer);
                self.one_hot((turn % u64::from(self.shape.ranks())) as usize, self.peak)
            }
            Kind::Burst => self.burst(gate),
            Kind::Spike => self.spike(gate),
        };
        self.shape.share(&weights, rows);
    }
}

/// `weights` mixed with equal ones so that the largest λ is `peak` thousandths; unchanged where it is less.
///
/// With sum Σ, largest weight m and R ranks the mix α·w + β has its largest λ at R·(α·m + β) ÷ (α·Σ + β·R);
/// it is the peak p for α : β = R·(p − 1) : (R·m − p·Σ).
fn capped(weights: Vec<u128>, peak: u32) -> Vec<u128> {
    let (ranks, peak, one) = (weights.len() as u128, u128::from(peak), u128::from(ONE));
    let sum: u128 = weights.iter().sum();
    let most = weights.iter().copied().max().unwrap_or(0);
    let Some(beta) = (one * ranks * most).checked_sub(peak * sum) else { return weights };
    let alpha = ranks * (peak - one);
    weights.into_iter().map(|w| alpha * w + beta).collect()
}

/// A number below `n` (at least 1), from 64 fresh bits: the bias is below n ÷ 2^64.
fn below(n: u64, draws: &mut ChaCha8Rng) -> u64 {
    ((u128::from(draws.next_u64()) * u128::from(n)) >> 64) as u64
}

/// The numbers below `n` in a drawn order.
fn permutation(n: usize, draws: &mut ChaCha8Rng) -> Vec<usize> {
    let mut order: Vec<_> = (0..n).collect();
    for last in (1..n).rev() {
        order.swap(last, below(last as u64 + 1, draws) as usize);
    }
    order
}

/// Why a workload is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WorkloadError {
    /// No workload has this name.
    Unknown {
        /// The name.
        name: String,
    },
    /// The peak is below balance.
    Peak {
        /// In thousandths.
        permille: u32,
    },
}

impl fmt::Display for WorkloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name } => {
                write!(f, "{} is no workload; there are w0 to w7 and spike", value(name))
            }
            Self::Peak { permille } => {
                write!(f, "peak load {}.{:03}; at least 1 is needed", permille / ONE, permille % ONE)
            }
        }
    }
}

impl core::error::Error for WorkloadError {}

#[cfg(test)]
#[path = "workload_tests.rs"]
mod tests;
