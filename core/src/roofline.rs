//! The roofline of a mitigation (§IV-B): launch-bound below a knee, bandwidth-bound above.

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

/// A knee (S, B): moving `size` bytes takes max(size, S) / B.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Knee {
    /// S, the size in bytes below which the launch dominates.
    pub size_bytes: u64,
    /// B, in bytes per second.
    pub bytes_per_s: u64,
}

impl Knee {
    /// ceil(max(size, S) · 10⁹ / B) ns; `u64::MAX` where B is 0 or the result does not fit.
    pub fn ns(self, size: u64) -> u64 {
        transfer_ns(size.max(self.size_bytes), self.bytes_per_s)
    }

    /// The size at which `self` and `other` cost the same, if their order changes there.
    ///
    /// With S_i < S_j and B_i < B_j that is S_j·B_i/B_j where it lies in [S_i, S_j]: below it `i`, still
    /// bandwidth-bound, beats `j`'s launch. (*Erratum*: the paper prints S_i·B_j/B_i.)
    pub fn crossover(self, other: Self) -> Option<u64> {
        let (i, j) = if self.size_bytes < other.size_bytes { (self, other) } else { (other, self) };
        if i.size_bytes == j.size_bytes || i.bytes_per_s >= j.bytes_per_s {
            return None;
        }
        let size = u128::from(j.size_bytes) * u128::from(i.bytes_per_s) / u128::from(j.bytes_per_s);
        let size = u64::try_from(size).ok()?;
        (i.size_bytes..=j.size_bytes).contains(&size).then_some(size)
    }
}

/// ceil(bytes · 10⁹ / bytes_per_s) ns; `u64::MAX` where the bandwidth is 0 or the result does not fit.
pub fn transfer_ns(bytes: u64, bytes_per_s: u64) -> u64 {
    if bytes_per_s == 0 {
        return if bytes == 0 { 0 } else { u64::MAX };
    }
    match bytes.checked_mul(SECOND) {
        Some(product) => product.div_ceil(bytes_per_s),
        None => {
            let ns = (u128::from(bytes) * u128::from(SECOND)).div_ceil(u128::from(bytes_per_s));
            u64::try_from(ns).unwrap_or(u64::MAX)
        }
    }
}

/// One measurement of a mitigation: bytes moved and the seconds it took.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sample {
    /// Bytes moved.
    pub bytes: u64,
    /// Nanoseconds it took.
    pub ns: u64,
}

/// Fits a knee to measurements, in floating point once, rounded to integers before use.
///
/// B is taken from the largest sample; S is the size whose transfer at B costs what the smallest sample
/// costs. Those are the two asymptotes; the least-squares step then scales both by the mean logarithmic
/// error. `None` with fewer than two sizes, or where a time is 0.
pub fn fit(samples: &[Sample]) -> Option<Knee> {
    let small = samples.iter().min_by_key(|s| s.bytes)?;
    let large = samples.iter().max_by_key(|s| s.bytes)?;
    if small.bytes == large.bytes || samples.iter().any(|s| s.ns == 0) {
        return None;
    }
    let bandwidth = large.bytes as f64 * 1e9 / large.ns as f64;
    let knee = (small.ns as f64 / 1e9 * bandwidth).max(small.bytes as f64);
    let predicted = |bytes: u64| (bytes as f64).max(knee) / bandwidth * 1e9;
    let error: f64 = samples.iter().map(|s| libm::log(s.ns as f64 / predicted(s.bytes))).sum();
    let bandwidth = bandwidth / libm::exp(error / samples.len() as f64);
    let rounded =
        Knee { size_bytes: libm::round(knee) as u64, bytes_per_s: libm::round(bandwidth).max(1.0) as u64 };
    Some(rounded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rounds_up_and_saturates() {
        assert_eq!(transfer_ns(1, 3_000_000_000), 1);
        assert_eq!(transfer_ns(0, 0), 0);
        assert_eq!(transfer_ns(1, 0), u64::MAX);
        assert_eq!(transfer_ns(u64::MAX, 1), u64::MAX);
        assert_eq!(transfer_ns(u64::MAX, u64::MAX), SECOND);
    }

    #[test]
    fn crossover_is_where_the_cheaper_side_changes() {
        let i = Knee { size_bytes: 100, bytes_per_s: 1_000 };
        let j = Knee { size_bytes: 1_000, bytes_per_s: 4_000 };
        assert_eq!(i.crossover(j), Some(250));
        assert_eq!(j.crossover(i), Some(250));
        assert!(i.ns(249) < j.ns(249) && i.ns(251) > j.ns(251));
        // What the paper prints, S_i·B_j/B_i = 400, is not a crossing.
        assert!(i.ns(400) > j.ns(400));
    }

    #[test]
    fn a_knee_is_recovered_from_its_own_times() {
        let knee = Knee { size_bytes: 1 << 20, bytes_per_s: 25_000_000_000 };
        let samples: Vec<_> = (10..30).map(|e| Sample { bytes: 1 << e, ns: knee.ns(1 << e) }).collect();
        let fitted = fit(&samples).expect("a knee");
        assert!(fitted.size_bytes.abs_diff(knee.size_bytes) < knee.size_bytes / 100);
        assert!(fitted.bytes_per_s.abs_diff(knee.bytes_per_s) < knee.bytes_per_s / 100);
        assert_eq!(fit(&samples[..1]), None);
    }

    proptest! {
        #[test]
        fn below_the_crossover_one_is_cheaper_and_above_the_other(
            si in 1u64..1 << 30, sj in 1u64..1 << 30, bi in 1_000u64..1 << 36, bj in 1_000u64..1 << 36,
        ) {
            let (i, j) = (Knee { size_bytes: si, bytes_per_s: bi }, Knee { size_bytes: sj, bytes_per_s: bj });
            if let Some(size) = i.crossover(j) {
                let (small, large) = if si < sj { (i, j) } else { (j, i) };
                prop_assert!(small.ns(si.min(sj)) <= large.ns(si.min(sj)));
                prop_assert!(small.ns(size) <= large.ns(size));
                prop_assert!(small.ns(size + 1) >= large.ns(size + 1));
            }
        }
    }
}
