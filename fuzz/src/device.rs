//! The device-file reader on any bytes: a device or one error. On a device a model is built and its layers
//! can be evaluated, however extreme the rates.

use bagualu_core::cost::LayerStorage;
use bagualu_model::{Device, Model, Preset};

/// The target.
pub fn device(data: &[u8]) {
    let device = match Device::from_toml(data, "file") {
        Ok(device) => device,
        Err(error) => {
            let message = error.to_string();
            assert!(!message.is_empty() && !message.contains('\n'), "{message}");
            return;
        }
    };
    assert!(device.margin_bytes < device.memory_bytes);
    assert_eq!(Device::from_toml(data, "file").as_ref(), Ok(&device), "the same file, another device");
    let preset = Preset::named("qwen3-30b-a3b", None).expect("a preset");
    // Times that pass 64 bits are a typed error.
    let Ok(model) = Model::new(&preset.config, &preset.parallelism, &device) else { return };
    let mut storage = LayerStorage::new();
    for layer_type in &model.types {
        for rows in [0, model.balanced_rows, model.most_rows] {
            let layer = layer_type.model();
            let _ = layer.at(rows, &device.rooflines(), &mut storage).map(|layer| layer.full_bytes());
            let _ = layer.times(rows);
        }
    }
}
