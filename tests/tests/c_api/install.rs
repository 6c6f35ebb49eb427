//! The layout that `cargo xtask install` makes.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::tools::{has, pkg_config, prefix, staged, stdout, succeed};

#[test]
fn libraries_have_their_links_and_their_name() {
    let lib = prefix().join("lib");
    let link = |name: &str| fs::read_link(lib.join(name)).expect(name);
    assert_eq!(link("libbagualu.so"), Path::new("libbagualu.so.0"));
    assert_eq!(link("libbagualu.so.0"), Path::new("libbagualu.so.0.1.0"));
    assert!(lib.join("libbagualu.a").is_file());
    for header in ["bagualu.h", "bagualu.hpp"] {
        assert!(prefix().join("include").join(header).is_file(), "{header}");
    }
    if has("readelf", "libraries_have_their_links_and_their_name") {
        let output = succeed(Command::new("readelf").arg("-d").arg(lib.join("libbagualu.so")));
        assert!(stdout(&output).contains("Library soname: [libbagualu.so.0]"), "{}", stdout(&output));
    }
}

#[test]
fn pkg_config_knows_where_everything_will_be() {
    if !has("pkg-config", "pkg_config_knows_where_everything_will_be") {
        return;
    }
    let folder = staged().join("lib/pkgconfig");
    assert_eq!(pkg_config(&["--cflags"], &folder), ["-I/opt/bagualu/include"]);
    assert_eq!(pkg_config(&["--libs"], &folder), ["-L/opt/bagualu/lib", "-lbagualu"]);
    assert_eq!(pkg_config(&["--modversion"], &folder), [env!("CARGO_PKG_VERSION")]);
    let private = pkg_config(&["--static", "--libs"], &folder);
    assert!(private.contains(&"-lpthread".to_owned()) || private.contains(&"-lc".to_owned()), "{private:?}");
}

#[test]
fn a_relative_prefix_is_refused() {
    let output = crate::tools::xtask().args(["install", "--prefix", "usr"]).output().expect("it runs");
    assert!(!output.status.success());
    assert!(crate::tools::stderr(&output).contains("--prefix is usr; give an absolute path"));
}
