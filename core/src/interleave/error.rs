//! What can be wrong with an interleaving problem or order.

use core::fmt;

use super::Chain;
use crate::limits::MAX_CHAIN;

/// Why a problem, an order or a storage is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InterleaveError {
    /// No order fits into the capacity (or, from [`run`](super::run()), the given one does not).
    Infeasible {
        /// The smallest capacity that would do.
        needed_bytes: u64,
        /// The capacity.
        available_bytes: u64,
    },
    /// A chain has more operators than [`MAX_CHAIN`].
    TooLong {
        /// The chain.
        chain: Chain,
        /// How many.
        count: usize,
    },
    /// The base alone passes 2^63 bytes.
    BaseOverflow {
        /// The base.
        base_bytes: u64,
    },
    /// The sum of times, or of the base and all bytes, passes 2^63 at this operator.
    Overflow {
        /// The chain.
        chain: Chain,
        /// Its operator.
        index: usize,
    },
    /// The merge does not name a chain as often as it must.
    BadMerge {
        /// The chain.
        chain: Chain,
        /// How often the merge names it.
        named: usize,
        /// How often it must: the operators of F and of B, never O or R.
        needed: usize,
    },
    /// The order names an operator out of turn: before its chain's previous one, twice, against the merge, or
    /// one that does not exist.
    BadOrder {
        /// Place in the order.
        position: usize,
        /// The chain it names.
        chain: Chain,
        /// The operator it names.
        index: usize,
    },
    /// The order does not have as many elements as the problem has operators.
    OrderLength {
        /// Elements of the order.
        length: usize,
        /// Operators of the problem.
        needed: usize,
    },
    /// The storage handed over is too small for this problem.
    StorageTooSmall {
        /// Elements needed.
        needed: usize,
        /// Elements there.
        available: usize,
    },
}

impl fmt::Display for InterleaveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Infeasible { needed_bytes, available_bytes } => write!(
                f,
                "no order fits into capacity_bytes {available_bytes}; it takes at least {needed_bytes}"
            ),
            Self::TooLong { chain, count } => write!(
                f,
                "{count} operators in chain {}; this build takes {MAX_CHAIN} (BAGUALU_MAX_CHAIN): \
                 compact it into stages",
                name(chain)
            ),
            Self::BaseOverflow { base_bytes } => {
                write!(f, "base_bytes {base_bytes} passes 2^63; give bytes of one device")
            }
            Self::Overflow { chain, index } => write!(
                f,
                "the sum of times or bytes passes 2^63 at {} operator {index}; give ns and bytes of one device",
                name(chain)
            ),
            Self::BadMerge { chain, named, needed } => write!(
                f,
                "merge names {} {named} times; it must name it {needed} times, once per operator of F and B",
                name(chain)
            ),
            Self::BadOrder { position, chain, index } => write!(
                f,
                "order[{position}] is {} operator {index}, which is not next; keep chains in order and the \
                 merge as given",
                name(chain)
            ),
            Self::OrderLength { length, needed } => {
                write!(f, "the order has {length} elements; the problem has {needed} operators")
            }
            Self::StorageTooSmall { needed, available } => {
                write!(f, "storage has {available} elements; this problem needs {needed}")
            }
        }
    }
}

impl core::error::Error for InterleaveError {}

fn name(chain: Chain) -> &'static str {
    match chain {
        Chain::Forward => "forward",
        Chain::Backward => "backward",
        Chain::Offload => "offload",
        Chain::Recover => "recover",
    }
}
