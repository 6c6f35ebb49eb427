//! Writes selection instances in the format of `bagualu solve mitigate`, with this library's answers and
//! times beside them: `cargo run --release -p bagualu-benches --example selection -- DIRECTORY`. What
//! `peers/select_peers.py` reads.

use std::path::Path;
use std::time::Instant;

use bagualu_benches::selection::{Stage, loads};
use bagualu_core::layer::{Collectives, LayerPlan};
use bagualu_core::mitigate::{
    ChooseScratch, Class, Config, Exact, ExactStorage, FrontPoint, FrontScratch, Limits, Selector, choose,
    front,
};
use serde_json::{Map, Value, json};

/// Repetitions; the fastest counts, as for the peers.
const REPEAT: usize = 9;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1).ok_or("usage: selection DIRECTORY")?;
    std::fs::create_dir_all(&directory)?;
    let (mut storage, mut scratch) = (Box::new(ExactStorage::new()), Box::new(FrontScratch::new()));
    let mut choice = Box::new(ChooseScratch::new());
    for (model, device) in
        [("glm-423b-a30b", "dcu-64g"), ("mixtral-8x7b", "h100-80g"), ("qwen3-30b-a3b", "h100-80g")]
    {
        for seed in 0..2 {
            let stage = Stage::new(model, device, &loads(seed, 4));
            let layers = stage.borrow();
            for permille in [50, 150, 300, 450, 600, 750, 900] {
                let bytes = stage.limit(permille);
                let limits = Limits { bytes, host_bytes: u64::MAX };
                let mut plans = [LayerPlan::KEEP; 4];
                let (cold_ns, found) = fastest(|| {
                    let mut exact = Exact::new(&mut storage, Config::default());
                    stage.problem(&layers, bytes, |problem| exact.select(problem, &mut plans))
                });
                let found = found?;
                let mut fronts = Vec::new();
                for layer in &layers {
                    let mut points = vec![FrontPoint::default(); 1024];
                    let len = front(layer, Collectives::NONE, &mut scratch, &mut points)?;
                    points.truncate(len);
                    fronts.push(points);
                }
                let classes: Vec<_> = fronts.iter().map(|p| Class { points: p, least_bytes: 0 }).collect();
                let mut picks = [0; 4];
                let (warm_ns, again) =
                    fastest(|| choose(&classes, limits, &Config::default(), &mut choice, &mut picks));
                let again = again?;
                let value = json!({
                    "instance": instance(&stage, bytes),
                    "answer": {
                        "added_ns": found.added_ns, "bytes": found.bytes, "optimal": found.optimal,
                        "cold_ns": cold_ns, "warm_ns": warm_ns, "warm_added_ns": again.added_ns,
                    },
                });
                let file = format!("{model}-{seed}-{permille:03}.json");
                std::fs::write(Path::new(&directory).join(file), serde_json::to_string(&value)?)?;
            }
        }
    }
    Ok(())
}

fn fastest<T>(mut run: impl FnMut() -> T) -> (u128, T) {
    let mut timed = || {
        let start = Instant::now();
        let result = run();
        (start.elapsed().as_nanos(), result)
    };
    let first = timed();
    (1..REPEAT).map(|_| timed()).fold(first, |best, next| if next.0 < best.0 { next } else { best })
}

fn instance(stage: &Stage, bytes: u64) -> Value {
    let layers = stage.layers.iter().enumerate().map(|(number, layer)| {
        let name = |t: usize| layer.tensor_names[t];
        let tensors = layer.tensors.iter().enumerate().map(|(t, tensor)| {
            let mut fields = Map::new();
            fields.insert("name".into(), name(t).into());
            fields.insert("bytes".into(), tensor.bytes.into());
            fields.insert("block_input".into(), tensor.block_input.into());
            if let Some(copy) = tensor.copy {
                fields.insert("copy_out_ns".into(), copy.out_ns.into());
                fields.insert("copy_in_ns".into(), copy.in_ns.into());
            }
            if let Some(cast) = tensor.cast {
                fields.insert("cast_ns".into(), cast.cast_ns.into());
                fields.insert("uncast_ns".into(), cast.uncast_ns.into());
                fields.insert("quantized_bytes".into(), cast.bytes.into());
            }
            if let Some(source) = tensor.source {
                fields.insert("source".into(), name(source.into()).into());
            }
            Value::Object(fields)
        });
        let ops = layer.ops.iter().zip(&layer.op_names).map(|(op, op_name)| {
            let names = |set: bagualu_core::set::Set| set.iter().map(name).collect::<Vec<_>>();
            let mut value = json!({
                "name": op_name, "reads": names(op.reads), "makes": names(op.makes),
                "saves": names(op.saves), "forward_ns": op.forward_ns,
            });
            if let Some(group) = op.collective {
                value["collective"] = format!("{group:?}").to_lowercase().into();
            }
            value
        });
        json!({
            "name": number.to_string(), "tensors": tensors.collect::<Vec<_>>(), "ops": ops.collect::<Vec<_>>(),
        })
    });
    json!({ "limit_bytes": bytes, "layers": layers.collect::<Vec<_>>() })
}
