//! Largest-remainder shares: whole numbers in proportion to weights, with an exact sum.

/// Splits `total` in proportion to `weights`: each share is the proportion rounded down, and what is left
/// goes one by one to the largest remainders (ties: the lowest index). Equal shares where all weights are 0.
///
/// `total` < 2^32 and the sum of the weights < 2^96, so that no product passes `u128`; larger weights are
/// halved together until they do.
pub(crate) fn apportion(total: u64, weights: &[u128]) -> Vec<u64> {
    let shift = excess_bits(weights);
    let scaled = |w: u128| w >> shift;
    let sum: u128 = weights.iter().map(|&w| scaled(w)).sum();
    if sum == 0 {
        return apportion(total, &vec![1; weights.len()]);
    }
    let mut shares = Vec::with_capacity(weights.len());
    let mut remainders = Vec::with_capacity(weights.len());
    let mut left = total;
    for (index, &weight) in weights.iter().enumerate() {
        let product = u128::from(total) * scaled(weight);
        let share = u64::try_from(product / sum).unwrap_or(total);
        left -= share;
        shares.push(share);
        remainders.push((product % sum, index));
    }
    // Fewer units are left than there are weights, and only those with a remainder share in them.
    remainders.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    for &(_, index) in remainders.iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
        shares[index] += 1;
    }
    shares
}

/// By how many bits the weights must shrink for their sum to stay below 2^96.
fn excess_bits(weights: &[u128]) -> u32 {
    let most = weights.iter().copied().max().unwrap_or(0);
    let bits = (128 - most.leading_zeros()) + (usize::BITS - weights.len().leading_zeros());
    bits.saturating_sub(96)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_exact_and_within_one_of_the_proportion() {
        for (total, weights) in [
            (10, vec![1, 1, 1]),
            (7, vec![0, 0, 5]),
            (100, vec![33, 33, 34]),
            (u64::from(u32::MAX), vec![1 << 80, 3, 1 << 79]),
            (5, vec![0, 0, 0]),
        ] {
            let shares = apportion(total, &weights);
            assert_eq!(shares.iter().sum::<u64>(), total);
            let sum: u128 = weights.iter().sum();
            for (&share, &weight) in shares.iter().zip(&weights).filter(|_| sum > 0) {
                let product = u128::from(total) * weight;
                assert!(u128::from(share) * sum < product + sum && (u128::from(share) + 1) * sum > product);
            }
        }
    }

    #[test]
    fn ties_go_to_the_lowest_index() {
        assert_eq!(apportion(5, &[1, 1, 1]), [2, 2, 1]);
        assert_eq!(apportion(4, &[0, 0, 0]), [2, 1, 1]);
    }

    #[test]
    fn huge_weights_do_not_overflow() {
        assert_eq!(apportion(4, &[u128::MAX, u128::MAX]), [2, 2]);
    }
}
