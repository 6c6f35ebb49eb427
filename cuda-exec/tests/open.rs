//! Devices that are not here are typed errors, each time they are asked for.

use bagualu_exec::device::{Backend, DeviceError};
use bagualu_exec::{Choice, open};

/// The error of opening a device of `choice` that this machine does not have; where it has one, says so and returns `None`.
fn absent(choice: Choice) -> Option<DeviceError> {
    match open(choice) {
        Err(error) => Some(error),
        Ok(device) => {
            assert!(device.memory().expect("an open device knows its memory").total > 0);
            println!("{choice:?} is here; its absence is not tested");
            None
        }
    }
}

#[test]
fn the_host_is_always_there() {
    assert_eq!(open(Choice::Host).unwrap().backend(), Backend::Host);
}

#[test]
fn an_absent_driver_is_an_error_each_time() {
    for (choice, backend) in [(Choice::Cuda(0), Backend::Cuda), (Choice::Hip(0), Backend::Hip)] {
        for _ in 0..3 {
            match absent(choice) {
                None | Some(DeviceError::NoSuchDevice { ordinal: 0, devices: 0 }) => {}
                Some(DeviceError::Absent { backend: found, reason, .. }) => {
                    assert_eq!(found, backend);
                    assert!(!reason.is_empty());
                }
                Some(other) => panic!("{choice:?}: {other}"),
            }
        }
    }
}

#[test]
fn a_number_beyond_the_devices_is_an_error() {
    for choice in [Choice::Cuda(u32::MAX), Choice::Hip(u32::MAX)] {
        let error = open(choice).expect_err("no machine has as many");
        let expected = matches!(error, DeviceError::NoSuchDevice { ordinal: u32::MAX, .. });
        assert!(expected || matches!(error, DeviceError::Absent { .. }), "{choice:?}: {error}");
    }
}

#[test]
fn auto_finds_a_device() {
    let found = open(Choice::Auto).expect("there is always the host");
    let expected = match (absent(Choice::Cuda(0)), absent(Choice::Hip(0))) {
        (None, _) => Backend::Cuda,
        (_, None) => Backend::Hip,
        _ => Backend::Host,
    };
    assert_eq!(found.backend(), expected);
}

/// Libraries at a path that is not one, and of another kind.
#[cfg(feature = "hip")]
#[test]
fn a_library_that_is_not_hip_is_refused() {
    use bagualu_exec::hip::{HipConfig, HipDevice};

    let with = |library: &str| {
        let config = HipConfig { library: Some(library.into()), ..HipConfig::default() };
        HipDevice::with(&config).expect_err("not HIP")
    };
    let missing = with("/nonexistent/libamdhip64.so");
    assert!(
        matches!(&missing, DeviceError::Absent { reason, .. } if reason.contains("/nonexistent/")),
        "{missing}"
    );
    let other = with("libc.so.6");
    assert!(
        matches!(
            other,
            DeviceError::Absent { library: "hipGetDeviceCount", .. }
                | DeviceError::Absent { library: "libamdhip64.so", .. }
        ),
        "{other}"
    );
}
