//! libFuzzer's entry to [`bagualu_fuzz::yaml`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bagualu_fuzz::yaml(data));
