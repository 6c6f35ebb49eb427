//! Answers that practitioners found to be right, from the command itself.

mod common;

use serde_json::Value;

fn answer(command: &str, arguments: &[&str], status: i32) -> Value {
    common::json(command, arguments, &[status])
}

/// GiB, rounded up.
fn gib(bytes: u64) -> String {
    bytes.div_ceil(1 << 30).to_string()
}

const MODEL: [&str; 6] = ["--model", "mixtral-8x7b", "--device", "h200-141g", "--load", "1"];

/// Static bytes of pipeline rank 0.
fn part(plan: &Value, name: &str) -> u64 {
    plan["ranks"][0]["static_bytes"][name].as_u64().expect("bytes")
}

#[test]
fn weights_and_optimizer_that_do_not_fit_are_reported_as_that() {
    let plan = answer("plan", &MODEL, 0);
    let [weights, gradients, optimizer] = ["weights", "gradients", "optimizer"].map(|name| part(&plan, name));
    // So much memory that a part begins to fit and does not end.
    for (memory, named) in [
        (weights - 1, "weights"),
        (weights + gradients - 1, "gradients"),
        (weights + gradients + optimizer - (1 << 30), "optimizer"),
    ] {
        let memory = (memory >> 30).to_string();
        let arguments = [&MODEL[..], &["--memory", &memory, "--margin", "0"]].concat();
        let plan = answer("plan", &arguments, 3);
        assert_eq!(plan["infeasible"]["part"], named, "{memory} GiB");
        assert!(plan["infeasible"]["needed_bytes"].as_u64() > plan["infeasible"]["available_bytes"].as_u64());
    }
}

const ON_HOST: [&str; 2] = ["--use-precision-aware-optimizer", "--optimizer-cpu-offload"];

#[test]
fn an_optimizer_on_the_host_leaves_the_device_and_takes_from_the_host() {
    let (device, host) = (answer("plan", &MODEL, 0), answer("plan", &[&MODEL[..], &ON_HOST].concat(), 0));
    assert_eq!((part(&host, "optimizer"), device["ranks"][0]["optimizer_host_bytes"].as_u64()), (0, Some(0)));
    let bytes = host["ranks"][0]["optimizer_host_bytes"].as_u64().expect("bytes");
    // Parameter, gradient and two moments in FP32, where the device had parameter and moments.
    let expected = part(&device, "optimizer") / 3 * 4;
    assert!(bytes.abs_diff(expected) < 16, "{bytes} {expected}");
    assert_eq!(part(&host, "weights"), part(&device, "weights"));
    assert_eq!(
        host["ranks"][0]["device_bytes"].as_u64().expect("bytes"),
        device["ranks"][0]["device_bytes"].as_u64().expect("bytes") + part(&device, "optimizer")
    );
    // Too small a host is said to be that.
    let little = [&MODEL[..], &ON_HOST, &["--host", "1"]].concat();
    assert_eq!(answer("plan", &little, 3)["infeasible"]["part"], "optimizer_host");
}

#[test]
fn what_the_optimizer_takes_of_the_host_cannot_be_offloaded_to() {
    // A host that holds the optimizer and nothing else, and a device that has to offload without it.
    let free = answer("plan", &[&MODEL[..], &ON_HOST].concat(), 0);
    let optimizer = free["ranks"].as_array().expect("ranks").iter().map(|rank| &rank["optimizer_host_bytes"]);
    let host = gib(optimizer.filter_map(Value::as_u64).max().expect("a rank"));
    let offloaded = |host: &str| {
        let tight = ["--memory", "28.5", "--margin", "0", "--host", host];
        let plan = answer("plan", &[&MODEL[..], &ON_HOST, &tight].concat(), 0);
        let strategies = plan["ranks"][0]["loads"][0]["strategies"].as_array().expect("strategies").clone();
        strategies.iter().filter(|chosen| chosen["strategy"] == "offload").count()
    };
    assert!(offloaded("400") > 0);
    assert!(offloaded(&host) < offloaded("400"));
}

#[test]
fn load_is_the_fullest_rank_s_first_and_averaged_then() {
    let replay = |trace: &str| {
        let small =
            ["--num-layers", "8", "--seq-length", "1024", "--global-batch-size", "64", "--iterations", "2"];
        let model = &MODEL[..4];
        answer("replay", &[model, &small, &["--trace", trace]].concat(), 0)["trace"]["load"].clone()
    };
    let [balanced, hot] = ["w0", "w2"].map(replay);
    let of = |load: &Value, name: &str| load[name].as_u64().expect("thousandths");
    assert_eq!(["average", "worst", "in_flight_worst"].map(|name| of(&balanced, name)), [1_000; 3]);
    // One rank is hot in all layers of all micro-batches: so is the average over micro-batches, and what it holds.
    assert_eq!(of(&hot, "worst"), 2_600);
    assert!(of(&hot, "average") > 1_500 && of(&hot, "in_flight_worst") > 1_500, "{hot}");
    // An even rotation of the hot spot averages to as much at each gate and to less in flight.
    let rotating = replay("w6");
    assert!(of(&rotating, "average") > of(&rotating, "in_flight_worst"), "{rotating}");
}
