//! C++ programs through `find_package`, from the prefix and from a staged destdir.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::tools::{cxx, has, prefix, root, scratch, staged, stderr, stdout, succeed};

fn tools_are_there(test: &str) -> bool {
    has(&cxx(), test) && has("cmake", test)
}

/// Configures the CMake project at `source` with the library below `prefix`.
fn configure(source: &Path, prefix: &Path, name: &str) -> (Output, PathBuf) {
    let folder = scratch(name);
    let mut cmake = Command::new("cmake");
    cmake.arg("-S").arg(source).arg("-B").arg(&folder);
    cmake.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
    (cmake.output().expect("it runs"), folder)
}

/// Builds a target of `tests/cpp`.
fn build(prefix: &Path, name: &str, target: &str) -> PathBuf {
    let (configured, folder) = configure(&root().join("tests/cpp"), prefix, name);
    assert!(configured.status.success(), "{}", stderr(&configured));
    succeed(Command::new("cmake").arg("--build").arg(&folder).args(["--target", target]));
    folder.join(target)
}

#[test]
fn cpp_programs_are_found_by_cmake() {
    if !tools_are_there("cpp_programs_are_found_by_cmake") {
        return;
    }
    for library in ["shared", "static"] {
        let output = succeed(&mut Command::new(build(prefix(), "cmake", &format!("api-{library}"))));
        assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("api: ok\n", ""));
        let output = succeed(&mut Command::new(build(prefix(), "cmake", &format!("pipeline-{library}"))));
        assert!(stdout(&output).ends_with("768 tensors checked, 0 wrong\n"), "{}", stdout(&output));
    }
}

#[test]
fn a_staged_package_can_be_used_where_it_lies() {
    if !tools_are_there("a_staged_package_can_be_used_where_it_lies") {
        return;
    }
    let output = succeed(&mut Command::new(build(staged(), "cmake-staged", "api-shared")));
    assert_eq!(stdout(&output), "api: ok\n");
}

#[test]
fn the_cpp_example_has_a_project_of_its_own() {
    if !tools_are_there("the_cpp_example_has_a_project_of_its_own") {
        return;
    }
    let (configured, _) = configure(&root().join("examples/cpp"), prefix(), "example-cpp");
    assert!(configured.status.success(), "{}", stderr(&configured));
}

#[test]
fn another_minor_version_is_not_compatible() {
    if !tools_are_there("another_minor_version_is_not_compatible") {
        return;
    }
    let source = scratch("cmake-version-source");
    for (version, found) in
        [("0.1", true), ("0.1.0", true), ("0", true), ("0.2", false), ("0.0.9", false), ("1", false)]
    {
        let project = format!(
            "cmake_minimum_required(VERSION 3.13)\nproject(version NONE)\nset(CMAKE_SIZEOF_VOID_P 8)\n\
             set_property(GLOBAL PROPERTY TARGET_SUPPORTS_SHARED_LIBS TRUE)\nfind_package(bagualu {version} REQUIRED)\n"
        );
        fs::write(source.join("CMakeLists.txt"), project).expect("written");
        let (configured, folder) = configure(&source, prefix(), "cmake-version");
        assert_eq!(configured.status.success(), found, "{version}: {}", stderr(&configured));
        fs::remove_dir_all(folder).expect("removed");
    }
}
