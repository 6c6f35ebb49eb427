//! Devices of one's own: what a file says counts, what it leaves out is its base's, and what is wrong is
//! one error with field, value and fix.

use bagualu_model::{Device, MAX_DEVICE_FILE};

fn device(text: &str) -> Device {
    Device::from_toml(text.as_bytes(), "mine").expect("a device")
}

fn refused(text: &str) -> String {
    Device::from_toml(text.as_bytes(), "mine").expect_err("no device").to_string()
}

#[test]
fn the_example_says_everything() {
    let text = include_bytes!("../../examples/devices/my-cluster.toml");
    let device = Device::from_toml(text, "file").expect("the example");
    assert_eq!(device.name, "my-cluster");
    assert_eq!(device.memory_bytes, 80 << 30);
    assert_eq!((device.copy_out_bytes_per_s, device.copy_in_bytes_per_s), (21_500_000_000, 49_000_000_000));
    assert_eq!(device.inter_bytes_per_s, 25_000_000_000);
    // Every field that a device has is in the example.
    let absent = ["base", "name", "memory", "margin", "host", "bf16", "fp32", "fp8", "memory_bandwidth"]
        .into_iter()
        .chain(["devices_per_node", "intra_node", "inter_node", "copy_out", "copy_in"])
        .find(|field| {
            !String::from_utf8_lossy(text).lines().any(|line| line.starts_with(&format!("{field} = ")))
        });
    assert_eq!(absent, None);
}

#[test]
fn what_is_left_out_is_the_base_s() {
    let h100 = Device::named("h100-80g").expect("a preset");
    assert_eq!(device(""), Device { name: "mine".into(), ..h100.clone() });
    let slow = device("copy_out = \"10 GB/s\"\n");
    assert_eq!(slow, Device { name: "mine".into(), copy_out_bytes_per_s: 10_000_000_000, ..h100 });
    let base = Device::named("b200-180g").expect("a preset");
    assert_eq!(device("base = \"b200-180g\""), Device { name: "mine".into(), ..base });
}

#[test]
fn quantities_have_units() {
    let memory = |text: &str| device(&format!("margin = \"0 B\"\nmemory = \"{text}\"")).memory_bytes;
    assert_eq!(memory("80GiB"), 80 << 30);
    assert_eq!(memory("80 GB"), 80_000_000_000);
    assert_eq!(memory("81559 MiB"), 81_559 << 20);
    assert_eq!(memory("0.5 TiB"), 1 << 39);
    let rate = |text: &str| device(&format!("inter_node = \"{text}\"")).inter_bytes_per_s;
    assert_eq!((rate("400 Gbit/s"), rate("24.3 GB/s")), (50_000_000_000, 24_300_000_000));
    assert_eq!(device("bf16 = \"2.25 PFLOP/s\"").bf16_flops, 2_250_000_000_000_000);
}

#[test]
fn wrong_values_are_refused_with_field_value_and_fix() {
    for (text, words) in [
        ("memory = 80", ["memory is 80", "as \"80 GiB\""]),
        ("memory = \"80\"", ["memory is \"80\"", "as \"80 GiB\""]),
        ("memory = \"0 GiB\"", ["memory is \"0 GiB\"", "from 1 MiB"]),
        ("memory = \"2000 TiB\"", ["memory is \"2000 TiB\"", "to 1024 TiB"]),
        ("memory = \"99999999999999999999999 TiB\"", ["memory is", "to 1024 TiB"]),
        ("memory = \"2 GiB\"", ["margin is 5368709120 bytes", "below the memory, 2147483648"]),
        ("copy_out = \"-5 GB/s\"", ["copy_out is \"-5 GB/s\"", "from 1 MB/s"]),
        ("copy_in = \"0 GB/s\"", ["copy_in is \"0 GB/s\"", "from 1 MB/s"]),
        ("copy_in = \"5 GiB\"", ["copy_in is \"5 GiB\"", "\"52 GB/s\""]),
        ("copy_in = \"1.1234567 GB/s\"", ["copy_in is", "\"52 GB/s\""]),
        ("copy_in = \". GB/s\"", ["copy_in is", "\"52 GB/s\""]),
        ("bf16 = 989.5", ["bf16 is 989.5", "\"989 TFLOP/s\""]),
        ("intra_node = [1]", ["intra_node is [1]", "\"52 GB/s\""]),
        ("devices_per_node = 0", ["devices_per_node is 0", "from 1 to"]),
        ("devices_per_node = -8", ["devices_per_node is -8", "from 1 to"]),
        ("devices_per_node = \"8\"", ["devices_per_node is \"8\"", "as 8"]),
        ("base = \"tpu\"", ["\"tpu\"", "h100-80g"]),
        ("base = 3", ["base is 3", "\"h100-80g\""]),
        ("name = \"a\\nb\"", ["name is", "1 to 64 characters"]),
        ("name = \"\"", ["name is \"\"", "1 to 64 characters"]),
        ("memmory = \"80 GiB\"", ["\"memmory\" is no field", "memory"]),
        ("[device]\nmemory = \"80 GiB\"", ["\"device\" is no field", "memory"]),
        ("name = \"a\"\nmemory = ", ["line 2 is not TOML", "write field"]),
        ("name = \"a\"\nname = \"b\"", ["line 2 is not TOML", "duplicate"]),
    ] {
        let message = refused(text);
        assert!(words.iter().all(|word| message.contains(word)), "{text:?}: {message:?} lacks {words:?}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    assert!(refused(&"#".repeat(MAX_DEVICE_FILE + 1)).contains("more than 65536 bytes"));
    let error = Device::from_toml(b"name = \"a\"\n# \xff", "mine").expect_err("not UTF-8").to_string();
    assert!(error.contains("line 2 is not TOML: not UTF-8"), "{error}");
    assert!(refused(&format!("a = {}", "[".repeat(60_000))).contains("line 1 is not TOML"));
}
