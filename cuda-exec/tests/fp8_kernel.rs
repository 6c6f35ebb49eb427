//! The kernels' source, compiled and run by the host's C compiler, against the casts of the host: all numbers of 16 bits,
//! every code back, and shapes at random, bit for bit. Without a C compiler the tests say so and pass.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bagualu_exec::fp8::kernel::{self, KernelShape, Launch};
use bagualu_exec::fp8::{Block, Cast, CastShape, Format, Overflow, Scaling, Source};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

#[test]
fn all_numbers_of_16_bits_are_cast_as_on_the_host() {
    let Some(kernels) = HostKernels::build("numbers") else { return };
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
    let mut checks = Vec::new();
    for source in [Source::Bf16, Source::F16] {
        // Without scales, with one for each number, for each 128, and for a whole row.
        for scaling in [Scaling::Unit, blocks(1, 1), blocks(1, 128), blocks(1, u32::MAX)] {
            checks.extend(casts(source, scaling).map(|cast| Check { cast, from: all.clone(), offset: 0 }));
        }
    }
    kernels.compare(&checks);
}

#[test]
fn fp32_numbers_are_cast_as_on_the_host() {
    let Some(kernels) = HostKernels::build("fp32") else { return };
    let lower = [0_u32, 1, 0x7fff, 0x8000, 0xffff];
    let from: Vec<u8> = (0..=u16::MAX)
        .map(|upper| u32::from(upper) << 16 | lower[usize::from(upper) % lower.len()])
        .flat_map(u32::to_ne_bytes)
        .collect();
    let checks: Vec<Check> = [Scaling::Unit, blocks(1, 1), blocks(1, 128)]
        .into_iter()
        .flat_map(|scaling| casts(Source::F32, scaling))
        .map(|cast| Check { cast, from: from.clone(), offset: 0 })
        .collect();
    kernels.compare(&checks);
}

/// Rows and blocks that end early, rows that no vector fits, buffers that are not aligned, more blocks than groups.
#[test]
fn shapes_at_random_are_cast_as_on_the_host() {
    let Some(kernels) = HostKernels::build("shapes") else { return };
    let sizes = (1_u64..=40, 1_u64..=700, 1_u32..=9, prop_oneof![1_u32..=300, Just(128), Just(u32::MAX)]);
    let kind = (0..Source::ALL.len(), 0..Format::ALL.len(), 0..Overflow::ALL.len(), any::<bool>());
    let element = prop_oneof![8 => any::<u32>(), 1 => Just(0), 1 => Just(0x7f80_7f80)];
    let strategy = (sizes, kind, prop::collection::vec(element, 1..64), any::<bool>());
    let mut runner = TestRunner::new(Config { cases: 48, failure_persistence: None, ..Config::default() });
    let result = runner.run(&strategy, |((rows, columns, high, wide), kind, bits, vectors)| {
        // Half of the rows can be moved in vectors.
        let columns = if vectors { columns.next_multiple_of(8) } else { columns };
        let wide = if vectors && wide < 256 { wide.next_multiple_of(8) } else { wide };
        let (source, format, overflow) = (Source::ALL[kind.0], Format::ALL[kind.1], Overflow::ALL[kind.2]);
        let scaling = if kind.3 { blocks(high, wide) } else { Scaling::Unit };
        let shape = CastShape::new(rows, columns, scaling, source).unwrap();
        let words = bits.iter().cycle().flat_map(|bits| bits.to_ne_bytes());
        let from: Vec<u8> = words.take(shape.source_bytes()).collect();
        let cast = Cast { shape, format, overflow };
        for offset in [0, source.bytes()] {
            kernels.compare(&[Check { cast, from: from.clone(), offset }]);
        }
        Ok(())
    });
    result.unwrap();
}

#[test]
fn names_are_those_of_the_source_and_a_wrong_one_is_noticed() {
    let Some(kernels) = HostKernels::build("names") else { return };
    assert_eq!(kernel::names().count(), 12);
    let shape = CastShape::flat(8, Scaling::Unit, Source::Bf16).unwrap();
    let cast = Cast { shape, format: Format::E4m3, overflow: Overflow::Nan };
    let launch = cast.quantize_launch().unwrap();
    let run = |name, bytes| {
        let request = request(&Launch { name, ..launch }, [32, 8, 0], 0);
        kernels.run(&[[request.as_slice(), &vec![0; bytes]].concat()], 32)
    };
    for name in kernel::names() {
        let back = name.contains("dequantize");
        let (given, made) = if back { (8, 32) } else { (32, 8) };
        assert_eq!(run(name, given).map(|answer| answer.len()), Some(made), "{name}");
    }
    assert_eq!(run("another", 32), None);
}

#[test]
fn nothing_is_launched_for_nothing() {
    let shape = CastShape::new(0, 128, blocks(1, 128), Source::Bf16).unwrap();
    let cast = Cast { shape, format: Format::E4m3, overflow: Overflow::Nan };
    assert_eq!((cast.quantize_launch(), cast.dequantize_launch()), (None, None));
}

fn blocks(rows: u32, columns: u32) -> Scaling {
    Scaling::Blocks(Block { rows, columns })
}

fn casts(source: Source, scaling: Scaling) -> impl Iterator<Item = Cast> {
    let shape = CastShape::new(16, 4_096, scaling, source).unwrap();
    Format::ALL.into_iter().flat_map(move |format| {
        Overflow::ALL.into_iter().map(move |overflow| Cast { shape, format, overflow })
    })
}

/// A cast of these bytes, in buffers that miss their alignment by `offset` bytes.
struct Check {
    cast: Cast,
    from: Vec<u8>,
    offset: usize,
}

/// A program that runs the kernels: kernels/host_main.c.
struct HostKernels {
    program: PathBuf,
}

impl HostKernels {
    /// Built with the sanitizers where the compiler has them; `None`, with the reason printed, without a compiler.
    fn build(test: &str) -> Option<Self> {
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let main = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/host_main.c");
        let program =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fp8-{test}-{}", std::process::id()));
        let compile = |extra: &[&str]| {
            Command::new(&compiler)
                .args(["-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-fno-strict-aliasing"])
                .args(extra)
                .arg(&main)
                .arg("-o")
                .arg(&program)
                .output()
        };
        let sanitized = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
        if compile(&sanitized).is_ok_and(|output| output.status.success()) {
            return Some(Self { program });
        }
        match compile(&[]) {
            Err(error) => {
                println!("skipped: the C compiler {compiler:?} cannot be run ({error})");
                None
            }
            Ok(output) => {
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                println!("built without sanitizers, which {compiler:?} lacks");
                Some(Self { program })
            }
        }
    }

    /// Casts out and back on both sides.
    fn compare(&self, checks: &[Check]) {
        let (mut requests, mut expected) = (Vec::new(), Vec::new());
        for Check { cast, from, offset } in checks {
            let shape = &cast.shape;
            let (mut values, mut scales) = (vec![0; shape.elements()], vec![0.0; shape.scales()]);
            let mut back = vec![0; from.len()];
            cast.quantize(from, &mut values, &mut scales).unwrap();
            cast.dequantize(&values, &scales, &mut back).unwrap();
            let scales: Vec<u8> = scales.into_iter().flat_map(f32::to_ne_bytes).collect();
            let sizes = [from.len(), values.len(), scales.len()];
            let out = request(&cast.quantize_launch().unwrap(), sizes, *offset);
            requests.push([out.as_slice(), from].concat());
            expected.push([values.as_slice(), &scales].concat());
            let in_again = request(&cast.dequantize_launch().unwrap(), sizes, *offset);
            requests.push([in_again.as_slice(), &values, &scales].concat());
            expected.push(back);
        }
        let most = expected.iter().map(Vec::len).sum();
        let answers = self.run(&requests, most).expect("the kernels ran");
        let mut answers = answers.as_slice();
        for (index, expected) in expected.iter().enumerate() {
            let (answer, rest) = answers.split_at(expected.len());
            answers = rest;
            if let Some(at) = answer.iter().zip(expected).position(|(one, other)| one != other) {
                let check = &checks[index / 2];
                panic!("byte {at} is {:#x}, not {:#x}: {:?}", answer[at], expected[at], check.cast);
            }
        }
    }

    /// What the program answers, `most` bytes or less; `None` if it fails.
    fn run(&self, requests: &[Vec<u8>], most: usize) -> Option<Vec<u8>> {
        let mut child = Command::new(&self.program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let bytes = requests.concat();
        // The input is written beside the reading of the output, so that neither pipe fills up.
        let writer = std::thread::spawn(move || input.write_all(&bytes));
        let mut answers = Vec::new();
        child.stdout.take().unwrap().take(most as u64 + 1).read_to_end(&mut answers).unwrap();
        let output = child.wait_with_output().unwrap();
        let written = writer.join().unwrap();
        if !output.status.success() || written.is_err() {
            println!("{}", String::from_utf8_lossy(&output.stderr));
            return None;
        }
        Some(answers)
    }
}

impl Drop for HostKernels {
    fn drop(&mut self) {
        // A program left over does no harm.
        let _ = std::fs::remove_file(&self.program);
    }
}

/// The program's `Request`: a launch and the bytes of its buffers.
fn request(launch: &Launch, [wide, values, scales]: [usize; 3], offset: usize) -> Vec<u8> {
    let mut bytes = launch.name.as_bytes().to_vec();
    bytes.resize(48, 0);
    let KernelShape { rows, columns, block_rows, block_columns, team, scaled, saturate, reserved } =
        launch.shape;
    bytes.extend([rows, columns, block_rows, block_columns].into_iter().flat_map(u64::to_ne_bytes));
    bytes.extend([team, scaled, saturate, reserved].into_iter().flat_map(u32::to_ne_bytes));
    let sizes = [u64::from(launch.grid), wide as u64, values as u64, scales as u64, offset as u64];
    bytes.extend(sizes.into_iter().flat_map(u64::to_ne_bytes));
    bytes
}
