//! The suite for all devices, on the host.

use std::sync::Arc;

use bagualu_exec::conformance::{Options, Outcome, run};
use bagualu_exec::device::Device;
use bagualu_exec::host::{HostConfig, HostDevice, Tier};

fn open(config: HostConfig) -> Arc<dyn Device> {
    Arc::new(HostDevice::open(config).expect("a host device"))
}

fn all_pass(device: &Arc<dyn Device>, options: &Options) {
    let report = run(device, options);
    assert_eq!(report.failures().count(), 0, "{report}");
    // What was not run may only be what these options exclude.
    let not_run: Vec<_> =
        report.cases.iter().filter(|case| matches!(case.outcome, Outcome::NotRun(_))).collect();
    assert!(not_run.iter().all(|case| case.name == "free_memory_moves" && !options.exclusive), "{report}");
    let json = report.to_json();
    assert_eq!(json.matches("\"passed\"").count() + not_run.len(), report.cases.len(), "{json}");
}

#[test]
fn host_with_a_capacity() {
    let device = open(HostConfig { device_bytes: Some(64 << 20), tier: Tier::Memory });
    all_pass(&device, &Options::default());
}

#[test]
fn host_with_the_memory_of_the_machine_and_a_directory() {
    let device = open(HostConfig { device_bytes: None, tier: Tier::Directory(std::env::temp_dir()) });
    all_pass(&device, &Options { exclusive: false, seed: 2, ..Options::default() });
}
