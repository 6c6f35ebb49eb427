//! Lays the C and C++ libraries out below a prefix: libraries, headers, pkg-config and CMake files.
//!
//! ```text
//! PREFIX/lib/libbagualu.a, libbagualu.so → libbagualu.so.0 → libbagualu.so.0.1.0
//! PREFIX/lib/pkgconfig/bagualu.pc, PREFIX/lib/cmake/bagualu/
//! PREFIX/include/bagualu.h, bagualu.hpp; with the feature `cxx` bagualu/bridge.h, rust/cxx.h
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::{cargo, root, target_dir};

const USAGE: &str = "\
usage: cargo xtask install --prefix DIR [--destdir DIR] [--profile NAME] [--features LIST]

  --prefix    where the files will be used, an absolute path
  --destdir   where they are put for now, with the prefix below it
  --profile   cargo's profile, release by default
  --features  cargo features of the library, as cxx";

/// What an installation is made with.
struct Options {
    prefix: PathBuf,
    destdir: Option<PathBuf>,
    profile: String,
    features: Option<String>,
}

pub fn run(arguments: &[String]) -> Result<(), String> {
    let options = Options::parse(arguments)?;
    let libraries = build(&options)?;
    let version = Version::of_package();
    let lib = folder(options.staged().join("lib"))?;
    let include = folder(options.staged().join("include"))?;
    install_libraries(&libraries, &lib, &version)?;
    for header in ["bagualu.h", "bagualu.hpp"] {
        copy(&root().join("include").join(header), &include.join(header))?;
    }
    if options.features.as_ref().is_some_and(|features| features.split(',').any(|feature| feature == "cxx")) {
        install_bridge(&include)?;
    }
    let private = libraries.native.join(" ");
    let pc = [
        ("@PREFIX@", options.prefix.display().to_string()),
        ("@VERSION@", version.full()),
        ("@PRIVATE@", private),
    ];
    write(&folder(lib.join("pkgconfig"))?.join("bagualu.pc"), include_str!("install/bagualu.pc.in"), &pc)?;
    let names = libraries.native.iter().map(|flag| flag.trim_start_matches("-l")).collect::<Vec<_>>();
    let cmake = [
        ("@VERSION@", version.full()),
        ("@MAJOR@", version.major.clone()),
        ("@MINOR@", version.minor.clone()),
        ("@NATIVE@", names.join(";")),
    ];
    let package = folder(lib.join("cmake/bagualu"))?;
    write(&package.join("bagualuConfig.cmake"), include_str!("install/bagualuConfig.cmake.in"), &cmake)?;
    let version_file = include_str!("install/bagualuConfigVersion.cmake.in");
    write(&package.join("bagualuConfigVersion.cmake"), version_file, &cmake)?;
    println!("install: {}", options.staged().display());
    Ok(())
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let (mut prefix, mut destdir, mut profile, mut features) = (None, None, None, None);
        let mut rest = arguments.iter();
        while let Some(option) = rest.next() {
            let to = match option.as_str() {
                "--prefix" => &mut prefix,
                "--destdir" => &mut destdir,
                "--profile" => &mut profile,
                "--features" => &mut features,
                _ => return Err(format!("{option:?} is no option\n\n{USAGE}")),
            };
            *to = Some(rest.next().ok_or_else(|| format!("{option} needs a value\n\n{USAGE}"))?.clone());
        }
        let prefix = PathBuf::from(prefix.ok_or_else(|| USAGE.to_owned())?);
        if !prefix.is_absolute() {
            return Err(format!("--prefix is {}; give an absolute path", prefix.display()));
        }
        let profile = profile.unwrap_or_else(|| "release".to_owned());
        Ok(Self { prefix, destdir: destdir.map(PathBuf::from), profile, features })
    }

    /// Where files go now: below the destdir, if there is one.
    fn staged(&self) -> PathBuf {
        match &self.destdir {
            None => self.prefix.clone(),
            Some(destdir) => destdir.join(self.prefix.strip_prefix("/").unwrap_or(&self.prefix)),
        }
    }
}

/// What the build gives.
struct Libraries {
    archive: PathBuf,
    shared: PathBuf,
    /// What a program needs beside the archive, as `-lm`.
    native: Vec<String>,
}

/// Builds the library; rustc says itself what the archive needs.
fn build(options: &Options) -> Result<Libraries, String> {
    let mut cargo = cargo();
    cargo.args(["rustc", "--package", "bagualu-ffi", "--lib", "--profile", &options.profile]);
    if let Some(features) = &options.features {
        cargo.args(["--features", features]);
    }
    cargo.args(["--", "--print", "native-static-libs"]).stderr(Stdio::piped());
    let output = cargo.output().map_err(|e| format!("cargo: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{cargo:?}: {}\n{said}", output.status));
    }
    let line = said.lines().find_map(|line| line.split_once("native-static-libs:"));
    let (_, native) = line.ok_or_else(|| format!("rustc did not say what the archive needs:\n{said}"))?;
    let profile = if options.profile == "dev" { "debug" } else { &options.profile };
    let built = target_dir(profile);
    Ok(Libraries {
        archive: built.join("libbagualu_ffi.a"),
        shared: built.join("libbagualu_ffi.so"),
        native: native.split_whitespace().map(str::to_owned).collect(),
    })
}

/// The version of the workspace's packages.
struct Version {
    major: String,
    minor: String,
    patch: String,
}

impl Version {
    fn of_package() -> Self {
        let [major, minor, patch] = [
            env!("CARGO_PKG_VERSION_MAJOR"),
            env!("CARGO_PKG_VERSION_MINOR"),
            env!("CARGO_PKG_VERSION_PATCH"),
        ]
        .map(str::to_owned);
        Self { major, minor, patch }
    }

    fn full(&self) -> String {
        format!("{}.{}.{}", self.major, self.minor, self.patch)
    }
}

fn install_libraries(libraries: &Libraries, lib: &Path, version: &Version) -> Result<(), String> {
    copy(&libraries.archive, &lib.join("libbagualu.a"))?;
    let (full, major) =
        (format!("libbagualu.so.{}", version.full()), format!("libbagualu.so.{}", version.major));
    copy(&libraries.shared, &lib.join(&full))?;
    link(&full, &lib.join(&major))?;
    link(&major, &lib.join("libbagualu.so"))
}

/// The headers of the cxx bridge, where cxx leaves them.
fn install_bridge(include: &Path) -> Result<(), String> {
    let made = target_dir("cxxbridge");
    copy(&made.join("bagualu/src/bridge.rs.h"), &folder(include.join("bagualu"))?.join("bridge.h"))?;
    copy(&made.join("rust/cxx.h"), &folder(include.join("rust"))?.join("cxx.h"))
}

fn write(path: &Path, template: &str, values: &[(&str, String)]) -> Result<(), String> {
    let text = values.iter().fold(template.to_owned(), |text, (name, value)| text.replace(name, value));
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

fn folder(path: PathBuf) -> Result<PathBuf, String> {
    fs::create_dir_all(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(path)
}

/// A new file, not the old one's bytes: programs that run with the old one go on.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let _ = fs::remove_file(to);
    fs::copy(from, to).map(drop).map_err(|e| format!("{} → {}: {e}", from.display(), to.display()))
}

fn link(target: &str, link: &Path) -> Result<(), String> {
    let _ = fs::remove_file(link);
    #[cfg(unix)]
    let made = std::os::unix::fs::symlink(target, link);
    #[cfg(not(unix))]
    let made = Err(std::io::Error::other("no symbolic links here; install on a Unix"));
    made.map_err(|e| format!("{}: {e}", link.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<PathBuf, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(&words).map(|options| options.staged())
    }

    #[test]
    fn files_are_staged_below_the_destdir() {
        assert_eq!(parse("--prefix /usr"), Ok(PathBuf::from("/usr")));
        assert_eq!(parse("--prefix /usr --destdir /tmp/s"), Ok(PathBuf::from("/tmp/s/usr")));
        assert!(parse("--prefix usr").is_err_and(|text| text.contains("absolute")));
        assert!(parse("--prefix").is_err_and(|text| text.contains("needs a value")));
        assert!(parse("--root /usr").is_err_and(|text| text.contains("no option")));
    }
}
