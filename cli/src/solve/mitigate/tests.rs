use super::*;

const EXAMPLE: &str = r#"{"limit_bytes": 100, "allow_collectives": ["ep"], "layers": [{"name": "0",
  "tensors": [{"name": "x", "bytes": 64, "block_input": true},
              {"name": "a", "bytes": 100, "producer": "ln", "copy_out_ns": 20, "copy_in_ns": 20, "cast_ns": 5, "uncast_ns": 5, "quantized_bytes": 52}],
  "ops": [{"name": "ln", "reads": ["x"], "makes": ["a"], "forward_ns": 25}, {"name": "fc", "reads": ["a"], "saves": ["a"], "forward_ns": 90, "collective": "tp"}]}]}"#;

fn message(json: &str) -> String {
    solve(json.as_bytes(), Method::Exact).expect_err(json).to_string()
}

/// The message about the example with `old` replaced by `new`.
fn with(old: &str, new: &str) -> String {
    assert!(EXAMPLE.contains(old), "{old}");
    message(&EXAMPLE.replacen(old, new, 1))
}

#[test]
fn the_example_of_the_format() {
    let answer = solve(EXAMPLE.as_bytes(), Method::Exact).expect("feasible");
    assert_eq!(
        serde_json::to_string(&answer).expect("JSON"),
        r#"{"method":"exact","bytes":64,"added_ns":25,"optimal":true,"gap_ns":0,"strategies":[{"layer":"0","tensor":"a","strategy":"recompute"}]}"#
    );
}

#[test]
fn every_method_answers() {
    for (method, name) in [(Method::Ratio, "ratio"), (Method::Paper, "paper")] {
        let answer = solve(EXAMPLE.as_bytes(), method).expect("feasible");
        assert!(answer.bytes <= 100 && answer.added_ns >= 25, "{answer:?}");
        assert_eq!(serde_json::to_value(&answer).expect("JSON")["method"], name);
    }
}

#[test]
fn infeasible_says_by_how_much() {
    let json = EXAMPLE.replacen("100", "63", 1);
    for method in [Method::Exact, Method::Ratio, Method::Paper] {
        let error = solve(json.as_bytes(), method).expect_err("below the block input");
        assert!(
            matches!(error, Error::Infeasible { needed_bytes: 64, available_bytes: 63, .. }),
            "{error:?}"
        );
    }
}

#[test]
fn names_must_be_there_and_once() {
    assert_eq!(
        with(r#"["x"]"#, r#"["q"]"#),
        "layers[0].ops[0].reads[0]: no tensor \"q\"; name a tensor of the same layer"
    );
    assert!(
        with(r#""makes": ["a"]"#, r#""makes": ["b"]"#)
            .starts_with("layers[0].ops[0].makes[0]: no tensor \"b\"")
    );
    assert!(
        with(r#""saves": ["a"]"#, r#""saves": ["a", ""]"#)
            .starts_with("layers[0].ops[1].saves[1]: no tensor \"\"")
    );
    assert_eq!(
        with(r#""name": "a""#, r#""name": "x""#),
        "layers[0].tensors[1].name: \"x\" is also the name of layers[0].tensors[0]; give each its own name"
    );
    assert!(with(r#""name": "fc""#, r#""name": "ln""#).starts_with("layers[0].ops[1].name: \"ln\" is also"));
    assert!(
        with(r#""producer": "ln""#, r#""producer": "no""#)
            .starts_with("layers[0].tensors[1].producer: no op \"no\"")
    );
    assert!(with(r#""producer": "ln""#, r#""producer": "fc""#).contains("op \"fc\" does not make \"a\""));
    assert!(
        with(r#""producer": "ln""#, r#""source": "z""#)
            .starts_with("layers[0].tensors[1].source: no tensor \"z\"")
    );
    let layer = r#"{"name": "0", "tensors": [], "ops": []}"#;
    assert!(
        message(&format!(r#"{{"limit_bytes": 1, "layers": [{layer}, {layer}]}}"#))
            .starts_with("layers[1].name: \"0\"")
    );
}

#[test]
fn pairs_are_whole() {
    assert_eq!(
        with(r#""copy_out_ns": 20, "#, ""),
        "layers[0].tensors[1].copy_in_ns: given without copy_out_ns; give both or neither"
    );
    assert!(
        with(r#""cast_ns": 5, "#, "").starts_with("layers[0].tensors[1].uncast_ns: given without cast_ns")
    );
    assert!(
        with(r#", "quantized_bytes": 52"#, "")
            .starts_with("layers[0].tensors[1].cast_ns: given without quantized_bytes")
    );
}

#[test]
fn graphs_are_acyclic() {
    assert!(with(r#""reads": ["x"]"#, r#""reads": ["a"]"#).starts_with("layers[0].ops[0].reads: a cycle"));
    assert!(
        with(r#""saves": ["a"]"#, r#""makes": ["a"]"#)
            .starts_with("layers[0].ops[1].makes: \"a\" is already made by")
    );
    assert!(with(r#""producer": "ln""#, r#""source": "a""#).starts_with("layers[0].tensors[1].source: "));
    let both = EXAMPLE.replacen(r#""block_input": true"#, r#""source": "a""#, 1);
    assert!(
        message(&both.replacen(r#""producer": "ln""#, r#""source": "x""#, 1))
            .contains("a copy of a copy of itself")
    );
}

#[test]
fn numbers_are_in_range() {
    assert!(with("64", "-1").starts_with("layers[0].tensors[0].bytes: invalid type: integer `-1`"));
    assert!(with("64", "1.5").contains("expected a whole number"));
    assert!(with("64", "18446744073709551616").contains("expected a whole number"));
    assert!(
        with("64", "18446744073709551615").starts_with("layers[0].tensors[1]: the layer's bytes or times")
    );
    assert!(with("90", "18446744073709551615").starts_with("layers[0].ops[1].forward_ns: the layer's times"));
    assert!(
        with(r#""ep""#, r#""xp""#).starts_with("allow_collectives[0]: unknown variant `xp`, expected one of")
    );
    assert!(with(r#""limit_bytes""#, r#""limit""#).contains("unknown field `limit`"));
}

#[test]
fn build_time_limits_are_named() {
    let layers: Vec<String> =
        (0..=MAX_LAYERS).map(|i| format!(r#"{{"name": "{i}", "tensors": [], "ops": []}}"#)).collect();
    let json = format!(r#"{{"limit_bytes": 1, "layers": [{}]}}"#, layers.join(","));
    assert!(message(&json).contains("rebuild with BAGUALU_MAX_LAYERS"));
    let tensors: Vec<String> =
        (0..=MAX_TENSORS).map(|i| format!(r#"{{"name": "{i}", "bytes": 1}}"#)).collect();
    let json = format!(
        r#"{{"limit_bytes": 1, "layers": [{{"name": "0", "tensors": [{}], "ops": []}}]}}"#,
        tensors.join(",")
    );
    assert!(message(&json).starts_with("layers[0].tensors: 65 tensors"));
    let ops: Vec<String> = (0..=MAX_OPS).map(|i| format!(r#"{{"name": "{i}"}}"#)).collect();
    let json = format!(
        r#"{{"limit_bytes": 1, "layers": [{{"name": "0", "tensors": [], "ops": [{}]}}]}}"#,
        ops.join(",")
    );
    assert!(message(&json).starts_with("layers[0].ops: 65 operators"));
}
