//! The settings of Megatron that are tried, each in steps. None changes what is trained: model, sequence
//! length and global batch stay.

use bagualu_model::{GradientType, ModelConfig, Optimizer, Parallelism, Precision};

/// Steps tried of a setting that the run's own devices allow: up to 16 times as many ranks, or a sixteenth of
/// a micro-batch.
const MOST_STEPS: usize = 4;

/// A setting that can be changed.
pub struct Change {
    /// What memory and time do not show of it.
    pub note: Option<&'static str>,
    /// Steps tried at most.
    most_steps: usize,
    /// Takes one step; false if there is none.
    step: fn(&mut Parallelism, &ModelConfig) -> bool,
}

impl Change {
    /// The distributions after one step, two steps and so on.
    pub fn steps(
        &self,
        from: &Parallelism,
        config: &ModelConfig,
    ) -> impl Iterator<Item = Parallelism> + use<> {
        let next = |from: &Parallelism| {
            let mut to = from.clone();
            (self.step)(&mut to, config).then_some(to)
        };
        let mut steps: Vec<Parallelism> = Vec::new();
        while let Some(to) = next(steps.last().unwrap_or(from)).filter(|_| steps.len() < self.most_steps) {
            steps.push(to);
        }
        steps.into_iter()
    }
}

const fn change(step: fn(&mut Parallelism, &ModelConfig) -> bool) -> Change {
    Change { note: None, most_steps: MOST_STEPS, step }
}

const fn noted(note: &'static str, step: fn(&mut Parallelism, &ModelConfig) -> bool) -> Change {
    Change { note: Some(note), most_steps: MOST_STEPS, step }
}

/// What is tried. Where one change needs another, it comes after it, so that pairs find both.
pub const CHANGES: [Change; 15] = [
    change(distributed_optimizer),
    noted("gradients are reduced in BF16", bf16_gradients),
    noted("Adam's moments are kept in FP16", narrow_moments),
    noted("the optimizer's step on the host is not in the time", host_optimizer),
    change(sequence_parallel),
    change(|to, _| {
        to.sequence_parallel = true;
        double(&mut to.tp)
    }),
    change(more_stages),
    change(fewer_chunks),
    change(|to, _| double(&mut to.cp)),
    change(|to, config| config.moe.is_some() && double(&mut to.ep)),
    change(|to, config| config.moe.is_some() && halve(&mut to.ep)),
    change(|to, config| config.moe.is_some() && double(&mut to.etp)),
    change(|to, config| config.moe.is_some() && halve(&mut to.etp)),
    change(|to, _| halve(&mut to.micro_batch)),
    Change { note: Some("twice the devices"), most_steps: 1, step: |to, _| double(&mut to.gpus) },
];

/// Adam in FP32 on the device.
const WIDE: Optimizer =
    Optimizer { main_bytes: 4, first_moment_bytes: 4, second_moment_bytes: 4, host_permille: 0 };

fn double(value: &mut u64) -> bool {
    value.checked_mul(2).inspect(|&twice| *value = twice).is_some()
}

fn halve(value: &mut u64) -> bool {
    let even = value.is_multiple_of(2) && *value > 0;
    *value /= if even { 2 } else { 1 };
    even
}

fn distributed_optimizer(to: &mut Parallelism, _: &ModelConfig) -> bool {
    !std::mem::replace(&mut to.distributed_optimizer, true)
}

fn bf16_gradients(to: &mut Parallelism, _: &ModelConfig) -> bool {
    to.precision == Precision::Bf16
        && std::mem::replace(&mut to.gradients, GradientType::Bf16) != GradientType::Bf16
}

/// Adam's moments in FP16 by Megatron's precision-aware optimizer, which needs its distributed one and keeps
/// only the lower half of a main parameter beside a BF16 one, all of it beside an FP16 one.
fn narrow_moments(to: &mut Parallelism, _: &ModelConfig) -> bool {
    let main_bytes = if to.fp16 { 4 } else { 2 };
    let narrow = Optimizer { main_bytes, first_moment_bytes: 2, second_moment_bytes: 2, host_permille: 0 };
    let possible = to.distributed_optimizer && to.precision == Precision::Bf16 && to.optimizer == WIDE;
    if possible {
        to.optimizer = narrow;
    }
    possible
}

/// A quarter more of Adam's state on the host, which needs the same optimizers and keeps it in FP32.
fn host_optimizer(to: &mut Parallelism, _: &ModelConfig) -> bool {
    let adam = to.optimizer.second_moment_bytes > 0;
    let possible = to.distributed_optimizer && adam && to.optimizer.host_permille < 1_000;
    if possible {
        let quarters = to.optimizer.host_permille / 250 + 1;
        to.optimizer = Optimizer { host_permille: 250 * quarters, ..WIDE };
    }
    possible
}

fn sequence_parallel(to: &mut Parallelism, _: &ModelConfig) -> bool {
    to.tp > 1 && !std::mem::replace(&mut to.sequence_parallel, true)
}

/// Twice the pipeline ranks, with as many virtual stages as their layers allow.
fn more_stages(to: &mut Parallelism, config: &ModelConfig) -> bool {
    let Some(pp) = to.pp.checked_mul(2) else { return false };
    let group_size_is_default = to.group_size == to.pp;
    to.pp = pp;
    let on_rank = config.layers / pp;
    if to.chunks > 1 && on_rank > 0 && config.layers.is_multiple_of(pp) {
        to.chunks = (1..=to.chunks).rev().find(|&chunks| on_rank.is_multiple_of(chunks)).unwrap_or(1);
    }
    to.group_size = if group_size_is_default { pp } else { to.group_size.max(pp) };
    true
}

/// The next smaller number of virtual stages that divides as the present one does.
fn fewer_chunks(to: &mut Parallelism, _: &ModelConfig) -> bool {
    let fewer = (1..to.chunks).rev().find(|&chunks| to.chunks.is_multiple_of(chunks));
    fewer.inspect(|&chunks| to.chunks = chunks).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bagualu_model::Preset;

    #[test]
    fn no_step_changes_the_batch_or_goes_on_for_ever() {
        let preset = Preset::named("glm-423b-a30b", None).expect("a preset");
        for change in &CHANGES {
            let steps: Vec<_> = change.steps(&preset.parallelism, &preset.config).collect();
            assert!(steps.len() <= MOST_STEPS);
            assert!(steps.iter().all(|to| to.global_batch == preset.parallelism.global_batch));
            assert!(steps.iter().all(|to| *to != preset.parallelism));
        }
    }

    #[test]
    fn steps_go_as_far_as_they_can() {
        let config = Preset::named("glm-423b-a30b", None).expect("a preset").config;
        let from = Parallelism { pp: 4, chunks: 4, group_size: 4, micro_batch: 4, ..Parallelism::default() };
        let all = |step| change(step).steps(&from, &config).collect::<Vec<_>>();
        let pipelines: Vec<_> = all(more_stages).iter().map(|to| (to.pp, to.chunks, to.group_size)).collect();
        assert_eq!(pipelines[..3], [(8, 4, 8), (16, 2, 16), (32, 1, 32)]);
        assert_eq!(all(fewer_chunks).iter().map(|to| to.chunks).collect::<Vec<_>>(), [2, 1]);
        let batches: Vec<_> =
            all(|to, _| halve(&mut to.micro_batch)).iter().map(|to| to.micro_batch).collect();
        assert_eq!(batches, [2, 1]);
        let from = Parallelism { distributed_optimizer: true, ..from.clone() };
        let on_host: Vec<_> =
            change(host_optimizer).steps(&from, &config).map(|to| to.optimizer.host_permille).collect();
        assert_eq!(on_host, [250, 500, 750, 1_000]);
        // On the host only with the distributed optimizer.
        assert!(all(host_optimizer).is_empty() && all(narrow_moments).is_empty());
    }
}
