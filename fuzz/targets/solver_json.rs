//! libFuzzer's entry to [`bagualu_fuzz::solver_json`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bagualu_fuzz::solver_json(data));
