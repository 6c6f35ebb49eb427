//! libFuzzer's entry to [`bagualu_fuzz::flag_list`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bagualu_fuzz::flag_list(data));
