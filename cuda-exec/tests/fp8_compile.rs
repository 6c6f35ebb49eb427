//! The kernels' source through every device compiler that is on this machine: scripts/kernels/compile.py. None of them
//! needs a device. What is absent is named and skipped.

use std::path::Path;
use std::process::Command;

#[test]
fn the_kernels_compile_for_devices() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/kernels/compile.py");
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let output = match Command::new(&python).arg(script).output() {
        Ok(output) => output,
        Err(error) => return println!("skipped: {python} cannot be run ({error})"),
    };
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{problem}");
    // One line or more for each compiler, whether it is here or not.
    for compiler in ["nvrtc", "nvcc", "hiprtc", "hipcc"] {
        assert!(said.lines().any(|line| line.starts_with(&format!("{compiler}: "))), "{said}");
    }
}
