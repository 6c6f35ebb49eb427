//! How values are written.

use super::table::{Means, means};
use super::{Setting, Value};

impl Setting {
    /// Megatron-Bridge and NeMo write functions, element types and members of enumerations as what Hydra would
    /// make them from: `exp_avg_dtype: {_target_: torch.bfloat16, _call_: false}`.
    pub(super) fn unwrapped(&self) -> Self {
        let Some((wrapper, path)) = self.path.split_last() else { return self.clone() };
        let wraps = match path.last().map(|field| means(field)) {
            Some(Means::Type(_) | Means::Precision | Means::Activation) => wrapper == "_target_",
            Some(Means::Backend(_)) => wrapper == "_args_",
            _ => false,
        };
        match wraps {
            true => Self { path: path.to_vec(), value: self.value.clone() },
            false => self.clone(),
        }
    }
}

impl Value {
    /// The text, that of a list with commas; `None` for null.
    pub(super) fn text(&self) -> Option<String> {
        match self {
            Self::Null => None,
            Self::Text(text) => Some(text.clone()),
            Self::List(values) => Some(values.join(",")),
        }
    }
}

/// Megatron's name of an element type that PyTorch or Megatron writes.
pub(super) fn element_type(text: &str) -> String {
    let name = text.trim().trim_start_matches("torch.").to_ascii_lowercase();
    let name = match &*name {
        "bfloat16" => "bf16",
        "float16" | "half" => "fp16",
        "float32" | "float" => "fp32",
        // Transformer Engine keeps FP8 moments as bytes.
        "uint8" | "float8_e4m3fn" => "fp8",
        _ => return text.to_owned(),
    };
    name.to_owned()
}

/// The member of Megatron's `AttnBackend` with this number, as `AttnBackend.flash` or by its name.
pub(super) fn backend(text: &str) -> String {
    const NAMES: [&str; 5] = ["flash", "fused", "unfused", "local", "auto"];
    let named = text.trim().trim_start_matches("AttnBackend.");
    let number = named.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
    number.and_then(|at| NAMES.get(at).copied()).unwrap_or(named).to_owned()
}

/// Whether a switch is on.
pub(super) fn is_true(text: &str) -> bool {
    matches!(text, "true" | "True" | "TRUE" | "yes" | "on")
}

/// Whether a switch, or a value that may be left out, is off.
pub(super) fn is_false(text: &str) -> bool {
    matches!(text, "false" | "False" | "FALSE" | "no" | "off")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_backends_have_megatron_s_names() {
        for (text, name) in [
            ("torch.bfloat16", "bf16"),
            ("bfloat16", "bf16"),
            ("torch.float32", "fp32"),
            ("float16", "fp16"),
            ("torch.uint8", "fp8"),
            ("bf16", "bf16"),
            ("int3", "int3"),
        ] {
            assert_eq!(element_type(text), name);
        }
        for (text, name) in [("2", "fused"), ("AttnBackend.flash", "flash"), ("auto", "auto"), ("0", "0")] {
            assert_eq!(backend(text), name);
        }
    }
}
