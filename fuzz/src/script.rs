//! The launch-script reader on any bytes: a launch or one error. A launch that is a model reads back from
//! its flags as itself, and its layers can be evaluated at any rows.

use bagualu_core::cost::{LayerStorage, Rooflines};
use bagualu_model::script::{Launch, from_flags, parse, to_flags};
use bagualu_model::{DEVICES, Model};

/// Layers beyond which a model is not built: time, not correctness.
const MOST_LAYERS: u32 = 256;

/// The target.
pub fn script(data: &[u8]) {
    match parse(data) {
        Ok(launch) => check(&launch),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// What holds for every launch.
pub(crate) fn check(launch: &Launch) {
    let Launch { config, parallelism, .. } = launch;
    if config.layers > MOST_LAYERS || parallelism.pp > MOST_LAYERS {
        return;
    }
    for device in &DEVICES {
        let Ok(model) = Model::new(config, parallelism, device) else { return };
        evaluate(&model, &device.rooflines());
    }
    let flags = to_flags(config, parallelism);
    let again = from_flags(&flags, parallelism.gpus).expect("flags of a model are a launch");
    assert_eq!(to_flags(&again.config, &again.parallelism), flags);
}

/// Every layer type, from no rows to the most: a layer or a typed error.
fn evaluate(model: &Model, rooflines: &Rooflines) {
    let mut storage = LayerStorage::new();
    for layer_type in &model.types {
        let layer = layer_type.model();
        for rows in [0, 1, model.balanced_rows, u32::MAX] {
            let _ = layer.at(rows, rooflines, &mut storage);
            let _ = (layer.times(rows), layer.work(rows));
        }
        let at =
            |rows, storage: &mut LayerStorage| layer.at(rows, rooflines, storage).map(|l| l.full_bytes());
        if let (Ok(none), Ok(some)) = (at(0, &mut storage), at(model.balanced_rows, &mut storage)) {
            assert!(none <= some, "bytes fall as rows rise");
        }
    }
}
