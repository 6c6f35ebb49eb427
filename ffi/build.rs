//! The shared library's soname, its major version as `cargo xtask install` lays it out; with `cxx` the C++ half of the
//! bridge.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let os = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if matches!(os.as_str(), "linux" | "android" | "freebsd") {
        let major = std::env::var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libbagualu.so.{major}");
    }
    #[cfg(feature = "cxx")]
    bridge();
}

#[cfg(feature = "cxx")]
fn bridge() {
    println!("cargo:rerun-if-changed=src/bridge.rs");
    cxx_build::CFG.include_prefix = "bagualu";
    cxx_build::bridge("src/bridge.rs").std("c++17").compile("bagualu_bridge");
}
