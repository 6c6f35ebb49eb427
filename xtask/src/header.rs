//! Writes `include/bagualu.h` from the comments and signatures in `ffi/src`, or checks that it is up to date.
//!
//! The header is committed, so that nobody who builds the library needs cbindgen.

use std::fs;

use crate::root;

/// What rustdoc calls it, and what it is to a reader of the header.
const SAFETY: (&str, &str) = ("# Safety", "The caller sees to it that:");

pub fn run(arguments: &[String]) -> Result<(), String> {
    let check = match arguments {
        [] => false,
        [flag] if flag == "--check" => true,
        _ => return Err("usage: cargo xtask header [--check]".to_owned()),
    };
    let path = root().join("include/bagualu.h");
    let fresh = generate()?;
    if !check {
        return fs::write(&path, fresh).map_err(|e| format!("{}: {e}", path.display()));
    }
    let committed = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    if committed == fresh {
        println!("header: include/bagualu.h is up to date");
        return Ok(());
    }
    let differs = committed.lines().zip(fresh.lines()).position(|(a, b)| a != b);
    let line = differs.unwrap_or_else(|| committed.lines().count().min(fresh.lines().count())) + 1;
    let shown = |text: &str| text.lines().nth(line - 1).unwrap_or("(its end)").to_owned();
    Err(format!(
        "include/bagualu.h is not what ffi/src says; run `cargo xtask header`. The first difference is in line {line}:\n\
         committed: {}\nfresh:     {}",
        shown(&committed),
        shown(&fresh)
    ))
}

fn generate() -> Result<String, String> {
    let ffi = root().join("ffi");
    let config = cbindgen::Config::from_file(ffi.join("cbindgen.toml"))?;
    let bindings = cbindgen::Builder::new().with_crate(&ffi).with_config(config).generate();
    let mut header = Vec::new();
    bindings.map_err(|e| format!("cbindgen: {e}"))?.write(&mut header);
    let header = String::from_utf8(header).map_err(|e| format!("cbindgen: {e}"))?;
    Ok(readable(&header))
}

/// Comments as C has them: without rustdoc's headings and fences.
fn readable(header: &str) -> String {
    let lines = header.lines().filter(|line| !line.trim_start().starts_with("* ```"));
    let mut text = String::new();
    for line in lines {
        text.push_str(line.replace(SAFETY.0, SAFETY.1).trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_those_of_c() {
        let header = "/**\n * Does.\n *\n * # Safety\n * - `to` is valid.\n * ```text\n * a  \n * ```\n */\n";
        let expected = "/**\n * Does.\n *\n * The caller sees to it that:\n * - `to` is valid.\n * a\n */\n";
        assert_eq!(readable(header), expected);
    }
}
