//! The HIP backend on devices made of threads: what a machine without HIP can show of it.
#![cfg(feature = "hip")]

use std::sync::Arc;

use bagualu_exec::Kernels;
use bagualu_exec::collective::{Collective, CollectiveError, CommunicatorConfig, Rccl};
use bagualu_exec::device::{Backend, Device, DeviceError};
use bagualu_exec::hip::{HipConfig, HipDevice};

#[path = "stub/checks.rs"]
mod checks;
mod stub;

#[test]
fn devices_made_of_threads_conform() {
    let Some(library) = stub::build("libhip-stub.so", &["stub.c", "kernels.c", "hip.c"]) else { return };
    let kernels = checks::kernels(&library);
    let open = |ordinal| {
        let (library, kernels) = (Some(library.clone()), kernels.clone());
        HipDevice::with(&HipConfig { ordinal, library, kernels, ..HipConfig::default() })
    };
    let functions = checks::Stub::of(&library);
    // Not the device that a thread starts on: whoever forgets to make it current fails.
    let device: Arc<dyn Device> = Arc::new(open(1).expect("the stub has two devices"));
    assert_eq!(device.backend(), Backend::Hip);
    checks::conforms(&device, &functions);
    checks::handles_are_checked(&*device, &open(0).unwrap());
    checks::statuses_are_told_apart(&*device, &functions);
    assert_eq!(functions.current(), 0, "the thread is back on its own device");
    for ordinal in [2, u32::MAX] {
        assert_eq!(open(ordinal).unwrap_err(), DeviceError::NoSuchDevice { ordinal, devices: 2 });
    }
}

#[test]
fn ranks_agree_over_devices() {
    let Some(library) = stub::build("librccl-stub.so", &["stub.c", "kernels.c", "hip.c", "nccl.c"]) else {
        return;
    };
    let join = |rank, size, id, timeout| -> Result<Box<dyn Collective>, CollectiveError> {
        let config = HipConfig { ordinal: 1, library: Some(library.clone()), ..HipConfig::default() };
        let device = Arc::new(HipDevice::with(&config)?);
        let config = CommunicatorConfig { rank, size, id, timeout, library: Some(library.clone()) };
        Ok(Box::new(Rccl::join(device, &config)?))
    };
    let id = || Rccl::unique_id(Some(&library)).unwrap();
    checks::ranks_agree(id, join, &checks::Stub::of(&library));
}

#[test]
fn only_casts_need_kernels() {
    let Some(library) = stub::build("libhip-without-kernels.so", &["stub.c", "kernels.c", "hip.c"]) else {
        return;
    };
    let with = |kernels, compiler: Option<&str>| {
        let compiler = compiler.map(Into::into);
        HipDevice::with(&HipConfig {
            library: Some(library.clone()),
            kernels,
            compiler,
            ..HipConfig::default()
        })
    };
    let compiled = with(Kernels::Compiled, Some("/nonexistent/libhiprtc.so")).unwrap();
    checks::only_casts_need_kernels(&compiled, "libhiprtc.so");
    let read = with(Kernels::File("/nonexistent/fp8.co".into()), None).unwrap();
    checks::only_casts_need_kernels(&read, "/nonexistent/fp8.co");
    // One that ends early never reaches the runtime, which would read on behind it.
    let cut = library.with_extension("cut");
    std::fs::write(&cut, [b"\x7fELF\x02\x01\x01".as_slice(), &[0; 33]].concat()).unwrap();
    let cut = with(Kernels::File(cut), None).unwrap();
    checks::only_casts_need_kernels(&cut, "ends early");
    // A file that is not one of kernels is refused by the runtime.
    let other = with(Kernels::File(file!().into()), None).unwrap();
    checks::only_casts_need_kernels(&other, "");
}

/// A framework reads the last error after its own calls; ours leave it clean.
#[test]
fn no_error_is_left_for_the_framework() {
    let Some(library) = stub::build("libhip-last-error.so", &["stub.c", "kernels.c", "hip.c"]) else {
        return;
    };
    let device =
        HipDevice::with(&HipConfig { library: Some(library.clone()), ..HipConfig::default() }).unwrap();
    assert!(matches!(device.allocate(u64::MAX >> 1), Err(DeviceError::OutOfMemory { .. })));
    // SAFETY: the stub has no initialisers, and this is its signature.
    let last_error = unsafe {
        let stub = libloading::Library::new(&library).unwrap();
        stub.get::<unsafe extern "C" fn() -> i32>(b"hipGetLastError").unwrap()()
    };
    assert_eq!(last_error, 0);
}

#[test]
fn a_runtime_that_lacks_functions_is_refused_by_the_first_of_them() {
    let Some(library) = stub::build("libhip-lacking.so", &["stub.c"]) else { return };
    let error = HipDevice::with(&HipConfig { library: Some(library), ..HipConfig::default() }).unwrap_err();
    assert!(matches!(error, DeviceError::Absent { library: "hipGetDeviceCount", .. }), "{error}");
}
