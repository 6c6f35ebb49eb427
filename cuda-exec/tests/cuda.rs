//! The CUDA backend on devices made of threads: what a machine without CUDA can show of it.
#![cfg(feature = "cuda")]

use std::env;
use std::sync::Arc;

use bagualu_exec::Kernels;
use bagualu_exec::collective::{Collective, CollectiveError, CommunicatorConfig, Nccl};
use bagualu_exec::cuda::{CudaConfig, CudaDevice, probe};
use bagualu_exec::device::{Backend, Device, DeviceError};

#[path = "stub/checks.rs"]
mod checks;
mod stub;

/// Set in the process that finds the stub in the driver's place: the driver is loaded by name, once a process.
const STUB: &str = "BAGUALU_TEST_CUDA_STUB";

/// Builds the driver of `sources` and runs `test` with it; in that process, returns where it is.
fn in_its_own_process(
    test: &str,
    sources: &[&str],
    variables: &[(&str, &str)],
) -> Option<std::path::PathBuf> {
    if let Some(library) = env::var_os(STUB) {
        return Some(library.into());
    }
    // A folder each, since the name is the driver's.
    let library = stub::build(&format!("{test}.so"), sources)?;
    let folder = library.with_extension("d");
    std::fs::create_dir_all(&folder).expect("a folder for the driver");
    let driver = folder.join("libcuda.so");
    std::fs::rename(&library, &driver).expect("the stub in the driver's place");
    let mut all = vec![(STUB, driver.to_str().expect("a path in UTF-8"))];
    all.extend(variables);
    stub::run_again(test, &folder, &all);
    None
}

#[test]
fn devices_made_of_threads_conform() {
    let test = "devices_made_of_threads_conform";
    let Some(library) = in_its_own_process(test, &["stub.c", "kernels.c", "cuda.c"], &[]) else { return };
    let functions = checks::Stub::of(&library);
    let kernels = checks::kernels(&library);
    let open = |ordinal| CudaDevice::with(&CudaConfig { ordinal, kernels: kernels.clone(), compiler: None });
    let device: Arc<dyn Device> = Arc::new(open(1).expect("the stub has two devices"));
    assert_eq!(device.backend(), Backend::Cuda);
    checks::conforms(&device, &functions);
    checks::handles_are_checked(&*device, &open(0).unwrap());
    checks::statuses_are_told_apart(&*device, &functions);
    assert_eq!(functions.current(), -1, "the thread is back without a context");
    for ordinal in [2, u32::MAX] {
        assert_eq!(open(ordinal).unwrap_err(), DeviceError::NoSuchDevice { ordinal, devices: 2 });
    }
}

#[test]
fn ranks_agree_over_devices() {
    let test = "ranks_agree_over_devices";
    let Some(library) = in_its_own_process(test, &["stub.c", "kernels.c", "cuda.c", "nccl.c"], &[]) else {
        return;
    };
    let join = |rank, size, id, timeout| -> Result<Box<dyn Collective>, CollectiveError> {
        let config = CommunicatorConfig { rank, size, id, timeout, library: Some(library.clone()) };
        Ok(Box::new(Nccl::join(Arc::new(CudaDevice::open(1)?), &config)?))
    };
    let id = || Nccl::unique_id(Some(&library)).unwrap();
    checks::ranks_agree(id, join, &checks::Stub::of(&library));
}

#[test]
fn only_casts_need_kernels() {
    let test = "only_casts_need_kernels";
    let Some(_) = in_its_own_process(test, &["stub.c", "kernels.c", "cuda.c"], &[]) else { return };
    let compiler = Some("/nonexistent/libnvrtc.so".into());
    let compiled = CudaDevice::with(&CudaConfig { compiler, ..CudaConfig::default() }).unwrap();
    checks::only_casts_need_kernels(&compiled, "libnvrtc.so");
    let kernels = Kernels::File("/nonexistent/fp8.ptx".into());
    let read = CudaDevice::with(&CudaConfig { kernels, ..CudaConfig::default() }).unwrap();
    checks::only_casts_need_kernels(&read, "/nonexistent/fp8.ptx");
}

#[test]
fn a_driver_without_a_device_says_so() {
    let test = "a_driver_without_a_device_says_so";
    let Some(_) = in_its_own_process(test, &["stub.c", "kernels.c", "cuda.c"], &[("STUB_INIT", "100")])
    else {
        return;
    };
    assert_eq!(CudaDevice::open(0).unwrap_err(), DeviceError::NoSuchDevice { ordinal: 0, devices: 0 });
}

#[test]
fn the_toolkits_stub_is_not_a_driver() {
    let test = "the_toolkits_stub_is_not_a_driver";
    let Some(_) = in_its_own_process(test, &["stub.c", "kernels.c", "cuda.c"], &[("STUB_INIT", "34")]) else {
        return;
    };
    let error = CudaDevice::open(0).unwrap_err();
    assert!(matches!(error, DeviceError::Absent { library: "libcuda.so.1", .. }), "{error}");
}

/// cudarc would panic at the first call of a missing function.
#[test]
fn a_driver_that_lacks_functions_is_refused_by_the_first_of_them() {
    let test = "a_driver_that_lacks_functions_is_refused_by_the_first_of_them";
    let Some(_) = in_its_own_process(test, &["stub.c"], &[]) else { return };
    for _ in 0..2 {
        let error = probe().unwrap_err();
        assert!(matches!(error, DeviceError::Absent { library: "cuInit", .. }), "{error}");
        assert_eq!(CudaDevice::open(0).unwrap_err(), error);
    }
}
