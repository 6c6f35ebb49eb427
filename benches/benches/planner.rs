//! From an input to tables: readers of each format, and models on their ranks.
//!
//! `cargo bench -p bagualu-benches --bench planner`

use std::hint::black_box;

use bagualu_model::read::{Format, read};
use bagualu_model::script::Given;
use bagualu_model::{Device, Model, Preset};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

fn readers(c: &mut Criterion) {
    let mut group = c.benchmark_group("read");
    let inputs: [(&str, &str, &[u8]); 4] = [
        ("script", "glm-423b.sh", include_bytes!("../../examples/glm-423b.sh")),
        ("hf", "deepseek-v3.json", include_bytes!("../../examples/configs/deepseek-v3.json")),
        ("yaml", "megatron-test.yaml", include_bytes!("../../examples/launchers/megatron-test.yaml")),
        ("flags", "flags.txt", include_bytes!("../../examples/launchers/flags.txt")),
    ];
    for (format, name, text) in inputs {
        let format = Format::named(format);
        let given = Given { gpus: Some(512), ..Given::default() };
        read(text, format, &given).unwrap_or_else(|error| panic!("{name}: {error}"));
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| read(black_box(text), format, &given).is_ok())
        });
    }
    group.finish();
}

fn models(c: &mut Criterion) {
    let mut group = c.benchmark_group("model");
    let device = Device::named("h800-80g").expect("a preset");
    for name in ["mixtral-8x7b", "glm-423b-a30b", "deepseek-v3"] {
        let preset = Preset::named(name, None).expect("a preset");
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| Model::new(black_box(&preset.config), &preset.parallelism, &device).is_ok())
        });
    }
    group.finish();
}

criterion_group!(benches, readers, models);
criterion_main!(benches);
