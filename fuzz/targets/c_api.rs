//! libFuzzer's entry to [`bagualu_fuzz::c_api`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bagualu_fuzz::c_api(data));
