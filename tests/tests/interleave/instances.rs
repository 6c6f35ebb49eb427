//! Random instances, the same on every machine.

use bagualu_core::interleave::{Chain, InterleaveError, Op, Problem};
use bagualu_core::layer::Resource;

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }
}

#[derive(Clone, Debug)]
pub struct Instance {
    pub chains: [Vec<Op>; 4],
    pub base: u64,
    pub capacity: u64,
    pub merge: Option<Vec<Chain>>,
}

impl Instance {
    pub fn slices(&self) -> [&[Op]; 4] {
        self.chains.each_ref().map(Vec::as_slice)
    }

    pub fn lengths(&self) -> [usize; 4] {
        self.chains.each_ref().map(Vec::len)
    }

    pub fn problem(&self) -> Result<Problem<'_>, InterleaveError> {
        Problem::new(self.slices(), self.base, self.capacity, self.merge.as_deref())
    }
}

const RESOURCES: [Resource; 4] =
    [Resource::Compute, Resource::Communication, Resource::CopyOut, Resource::CopyIn];

/// Up to `most` operators; `resources` and `longest` are what operators draw from.
pub fn random(random: &mut Random, most: u64, resources: u64, longest: u64, merge: bool) -> Instance {
    let mut chains: [Vec<Op>; 4] = Default::default();
    let count = most - random.below(most) * random.below(2);
    // Some chains stay empty.
    let width = 1 + random.below(4);
    for _ in 0..count {
        let chain = random.below(width) as usize;
        chains[chain].push(Op {
            resource: RESOURCES[random.below(resources) as usize],
            ns: random.below(longest + 1).saturating_sub(random.below(2)),
            alloc_bytes: random.below(8) * random.below(2),
            free_bytes: random.below(8) * random.below(2),
        });
    }
    chains.rotate_left(random.below(4) as usize);
    let base = random.below(10);
    let merge = merge.then(|| shuffle(random, chains[0].len(), chains[1].len()));
    Instance { chains, base, capacity: u64::MAX, merge }
}

pub fn shuffle(random: &mut Random, forwards: usize, backwards: usize) -> Vec<Chain> {
    let mut left = [forwards, backwards];
    let mut merge = Vec::new();
    while left[0] + left[1] > 0 {
        let pick = usize::from(random.below((left[0] + left[1]) as u64) >= left[0] as u64);
        left[pick] -= 1;
        merge.push(Chain::ALL[pick]);
    }
    merge
}
