//! libFuzzer's entry to [`bagualu_fuzz::hf_config`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bagualu_fuzz::hf_config(data));
