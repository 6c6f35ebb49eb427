//! What a device does and how fast: the conformance suite, copies through the engine against plain ones, casts against a
//! copy on the device, copies beside a matrix product. Prints a summary and writes all of it as JSON.
//!
//! `device_check [--device cuda:0|hip:0|host] [--json FILE] [--megabytes N] [--kernels FILE]`; `scripts/device-check.sh` runs it.
//! Exit status: 0 all passed, 1 something failed, 2 usage, 3 no such device here.

use std::ffi::c_void;
use std::process::ExitCode;
use std::sync::Arc;

#[cfg(any(feature = "cuda", feature = "hip"))]
use bagualu_exec::Kernels;
use bagualu_exec::conformance::{self, Options};
#[cfg(feature = "cuda")]
use bagualu_exec::cuda::{CudaConfig, CudaDevice};
use bagualu_exec::device::{Device, DeviceError, DeviceSlice, Stream};
#[cfg(feature = "hip")]
use bagualu_exec::hip::{HipConfig, HipDevice};
use bagualu_exec::host::{HostConfig, HostDevice};

#[cfg(feature = "cuda")]
mod gemm;
mod json;
mod measure;

use json::Object;

const USAGE: &str =
    "usage: device_check [--device cuda:N|hip:N|host] [--json FILE] [--megabytes N] [--kernels FILE]";

fn main() -> ExitCode {
    let settings = match Settings::parse(std::env::args().skip(1)) {
        Ok(settings) => settings,
        Err(message) => {
            eprintln!("device_check: {message}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let mut report = Object::default();
    report.text("version", env!("CARGO_PKG_VERSION")).text("device", &settings.device.to_string());
    let status = match settings.open() {
        Ok(bench) => check(&bench, &settings, &mut report),
        Err(error) => {
            println!("no device: {error}");
            report.text("reason", &error.to_string());
            Status::NoDevice
        }
    };
    report.text("status", status.word());
    println!("{}: {}", settings.device, status.word());
    if let Some(file) = &settings.json
        && let Err(error) = std::fs::write(file, report.finish() + "\n")
    {
        eprintln!("device_check: {file}: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::from(status.code())
}

fn check(bench: &Bench, settings: &Settings, report: &mut Object) -> Status {
    let mut status = Status::Passed;
    // The host's free memory is everybody's. Small allocations of a device come out of what its library took before.
    let bytes = settings.megabytes << 20;
    let options =
        Options { buffer_bytes: bytes / 4, exclusive: settings.device != Kind::Host, ..Options::default() };
    let conformance = conformance::run(&bench.device, &options);
    println!("{conformance}");
    report.raw("conformance", conformance.to_json().trim());
    if conformance.failures().count() > 0 {
        status = Status::Failed;
    }
    for (name, part) in [
        ("copies", measure::copies as fn(&Bench, u64) -> Result<Object, String>),
        ("casts", measure::casts),
        ("overlap", measure::overlap),
    ] {
        let part = part(bench, bytes).unwrap_or_else(|error| {
            status = Status::Failed;
            let mut failed = Object::default();
            failed.text("failed", &error);
            failed
        });
        let part = part.finish();
        println!("{name}: {part}");
        report.raw(name, &part);
    }
    status
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    Passed,
    Failed,
    NoDevice,
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::NoDevice => "no device",
        }
    }

    fn code(self) -> u8 {
        match self {
            Self::Passed => 0,
            Self::Failed => 1,
            Self::NoDevice => 3,
        }
    }
}

struct Settings {
    device: Kind,
    json: Option<String>,
    megabytes: u64,
    /// Compiled kernels of the casts; else they are compiled by NVRTC or hiprtc.
    kernels: Option<String>,
}

impl Settings {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut settings = Self { device: Kind::Cuda(0), json: None, megabytes: 256, kernels: None };
        while let Some(option) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{option} needs a value"))?;
            match option.as_str() {
                "--device" => settings.device = Kind::parse(&value)?,
                "--json" => settings.json = Some(value),
                "--kernels" => settings.kernels = Some(value),
                "--megabytes" => {
                    let number = value.parse().ok().filter(|number| (1..=65_536).contains(number));
                    settings.megabytes =
                        number.ok_or_else(|| format!("--megabytes {value}: give 1 to 65536"))?;
                }
                _ => return Err(format!("unknown option {option}")),
            }
        }
        Ok(settings)
    }
    fn open(&self) -> Result<Bench, DeviceError> {
        #[cfg(any(feature = "cuda", feature = "hip"))]
        let kernels = self.kernels.as_ref().map_or(Kernels::Compiled, |file| Kernels::File(file.into()));
        match self.device {
            Kind::Host => {
                let device = HostDevice::open(HostConfig::default())?;
                Ok(Bench { device: Arc::new(device), copy_within: None, products: None })
            }
            #[cfg(feature = "cuda")]
            Kind::Cuda(ordinal) => {
                let config = CudaConfig { ordinal, kernels, ..CudaConfig::default() };
                let device = Arc::new(CudaDevice::with(&config)?);
                let (copies, products) = (Arc::clone(&device), Arc::clone(&device));
                // SAFETY: `measure` keeps both buffers until the stream has run empty.
                let copy = move |from, to, stream| unsafe { copies.copy_within(from, to, stream) };
                let products = move |bench: &Bench| -> Result<Box<dyn Products>, String> {
                    Ok(Box::new(gemm::Gemm::new(bench, &products)?))
                };
                Ok(Bench { device, copy_within: Some(Box::new(copy)), products: Some(Box::new(products)) })
            }
            #[cfg(feature = "hip")]
            Kind::Hip(ordinal) => {
                let device =
                    Arc::new(HipDevice::with(&HipConfig { ordinal, kernels, ..HipConfig::default() })?);
                let copies = Arc::clone(&device);
                // SAFETY: `measure` keeps both buffers until the stream has run empty.
                let copy = move |from, to, stream| unsafe { copies.copy_within(from, to, stream) };
                Ok(Bench { device, copy_within: Some(Box::new(copy)), products: None })
            }
            // Built without it, which `open` says.
            #[cfg(not(feature = "cuda"))]
            Kind::Cuda(ordinal) => plain(bagualu_exec::Choice::Cuda(ordinal)),
            #[cfg(not(feature = "hip"))]
            Kind::Hip(ordinal) => plain(bagualu_exec::Choice::Hip(ordinal)),
        }
    }
}

#[cfg(not(all(feature = "cuda", feature = "hip")))]
fn plain(choice: bagualu_exec::Choice) -> Result<Bench, DeviceError> {
    let device = bagualu_exec::open(choice)?;
    Ok(Bench { device, copy_within: None, products: None })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Host,
    Cuda(u32),
    Hip(u32),
}

impl Kind {
    fn parse(text: &str) -> Result<Self, String> {
        let unknown = || format!("--device {text}: give cuda:N, hip:N or host");
        let number = |number: &str| number.parse().map_err(|_| unknown());
        match text.split_once(':') {
            None if text == "host" => Ok(Self::Host),
            Some(("cuda", ordinal)) => number(ordinal).map(Self::Cuda),
            Some(("hip", ordinal)) => number(ordinal).map(Self::Hip),
            _ => Err(unknown()),
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::Hip(ordinal) => write!(f, "hip:{ordinal}"),
        }
    }
}

type CopyWithin = dyn Fn(DeviceSlice, DeviceSlice, Stream) -> Result<(), DeviceError>;
type MakeProducts = dyn Fn(&Bench) -> Result<Box<dyn Products>, String>;

/// Matrix products of a vendor's library.
trait Products {
    /// Submits `count` of them to a stream of the vendor's.
    fn submit(&self, stream: *mut c_void, count: u32) -> Result<(), String>;
}

/// The device, and what it can do beyond the trait.
struct Bench {
    device: Arc<dyn Device>,
    copy_within: Option<Box<CopyWithin>>,
    products: Option<Box<MakeProducts>>,
}
