//! Input of any kind ends in an answer or one error, within bounds, in every format; nothing in it is run.

use std::path::Path;

use bagualu_model::read::{FORMATS, Format, HuggingFace, ReadError, YamlError, read};
use bagualu_model::script::{Given, Launch, MAX_INPUT};

fn given() -> Given {
    Given { gpus: Some(8), ..Given::default() }
}

/// The answer of each format and of the one that the content decides; errors have a text of one line.
fn answers(text: &[u8]) -> Vec<Result<Launch, ReadError>> {
    let formats = FORMATS.map(|(_, format)| Some(format));
    let answers: Vec<_> = [&formats[..], &[None]].concat().iter().map(|f| read(text, *f, &given())).collect();
    for error in answers.iter().filter_map(|answer| answer.as_ref().err()) {
        assert!(!error.to_string().is_empty());
    }
    answers
}

fn yaml(text: &str) -> Result<Launch, ReadError> {
    read(text.as_bytes(), Some(Format::Yaml), &given())
}

const SMALL: &str = "num_layers: 2\nhidden_size: 64\nnum_attention_heads: 4\nseq_length: 32\nvocab_size: 100\n\
                     micro_batch_size: 1\nbf16: true\n";

#[test]
fn what_is_too_long_is_refused_unread() {
    for filler in [b'a', b' ', b'{', b'[', b'"', b'-', b'\n', 0] {
        for answer in answers(&vec![filler; 10 << 20]) {
            assert_eq!(answer, Err(ReadError::TooLong { limit: MAX_INPUT }));
        }
    }
}

#[test]
fn as_much_as_is_read_of_any_character_is_an_error() {
    for filler in [
        &b"a"[..],
        b"{",
        b"[",
        b"[\n",
        b"{a: ",
        b"\"",
        b"'",
        b"- ",
        b"? ",
        b"&a ",
        b"*a ",
        b"\\",
        b"\0",
        b"#",
        b"--a ",
        b"a: ",
        b"!!",
        b"|\n",
        b"$(",
        b"\t",
    ] {
        let text = filler.repeat(MAX_INPUT / filler.len());
        for answer in answers(&text) {
            assert!(answer.is_err(), "{:?}", String::from_utf8_lossy(filler));
        }
    }
}

#[test]
fn binary_is_an_error() {
    let mut state = 1u64;
    for _ in 0..200 {
        let bytes: Vec<u8> = (0..2_000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        assert!(answers(&bytes).iter().all(Result::is_err));
    }
}

#[test]
fn cut_and_garbled_examples_never_panic() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    for part in ["launchers", "configs"] {
        for entry in std::fs::read_dir(folder.join(part)).expect("a folder") {
            let text = std::fs::read(entry.expect("an entry").path()).expect("a file");
            for cut in (0..text.len()).step_by(97) {
                read(&text[..cut], None, &given()).err().map(|error| error.to_string());
                let mut garbled = text.clone();
                garbled[cut] ^= 0x15;
                read(&garbled, None, &given()).err().map(|error| error.to_string());
            }
        }
    }
}

#[test]
fn nesting_is_bounded() {
    let deep = |open: &str, close: &str| format!("a: {}{}", open.repeat(40), close.repeat(40));
    for text in [deep("[", "]"), deep("{a: ", "}")] {
        assert!(matches!(yaml(&text), Err(ReadError::Yaml(YamlError::TooDeep { limit: 32, .. }))), "{text}");
    }
    // Each alias holds the one before it: no list is deep by itself.
    let chain: String = (1..2_000).map(|n| format!("a{n}: &a{n} [*a{}]\n", n - 1)).collect();
    let text = format!("a0: &a0 [1]\n{chain}");
    assert!(matches!(yaml(&text), Err(ReadError::Yaml(YamlError::TooDeep { .. }))));
    let text = format!("{{\"model_type\": {}1{}}}", "[".repeat(10_000), "]".repeat(10_000));
    let error = HuggingFace::parse(text.as_bytes()).expect_err("refused").to_string();
    assert!(error.contains("recursion limit"), "{error}");
}

#[test]
fn aliases_expand_to_a_bound() {
    let mut text = "a0: &a0 {x: 1, y: 2}\n".to_owned();
    for n in 1..20 {
        let fields: String = (0..9).map(|field| format!("f{field}: *a{}, ", n - 1)).collect();
        text.push_str(&format!("a{n}: &a{n} {{{fields}}}\n"));
    }
    assert_eq!(yaml(&text), Err(ReadError::Yaml(YamlError::TooMuch { limit: 1 << 15 })));
    assert!(matches!(yaml("a: &a [*a]"), Err(ReadError::Yaml(YamlError::Alias { line: 1 }))));
    assert!(matches!(yaml("a: *nowhere"), Err(ReadError::Yaml(_))));
}

#[test]
fn what_aliases_stand_for_is_not_copied_without_bound() {
    let big = format!("x: &a {}\n", "a".repeat(120_000));
    let many = |count: usize, line: &dyn Fn(usize) -> String| (0..count).map(line).collect::<String>();
    let too_long = Err(ReadError::Yaml(YamlError::TooLong { limit: 1 << 22 }));
    // As a value, as an item, and as the name that every setting below it has in its path.
    assert_eq!(yaml(&(big.clone() + &many(9_000, &|n| format!("k{n}: *a\n")))), too_long);
    assert_eq!(yaml(&(big.clone() + &many(9_000, &|n| format!("k{n}: [*a]\n")))), too_long);
    let items = format!("k: [{}]\n", "*a,".repeat(9_000));
    assert_eq!(yaml(&(big.clone() + &items)), too_long);
    let below = format!("*a : {{{}}}\n", many(9_000, &|n| format!("k{n}: 1,")));
    assert_eq!(yaml(&(big.clone() + &below)), too_long);
    // Names of mappings that are no settings: they are shared. (A copy of each would be 1 GB.)
    let names = "- {*a : 1}\n".repeat(9_000);
    assert!(matches!(yaml(&format!("{big}l:\n{names}")), Err(ReadError::Flags(_))));
    // Every one of the settings that fit has been kept.
    let few = yaml(&format!("{SMALL}{big}{}", many(30, &|n| format!("k{n}: *a\n")))).expect("a launch");
    assert_eq!(few.warnings.iter().filter(|line| line.contains("not a flag known here")).count(), 31);
}

#[test]
fn a_mapping_of_many_names_is_read_in_a_pass() {
    // Each name is looked up in a set, not compared with all before it; the duplicate is still found.
    let names: String = (0..30_000).map(|n| format!("k{n}:\n")).collect();
    assert!(matches!(yaml(&names), Err(ReadError::Flags(_))));
    let twice = yaml(&format!("{names}k7:\n")).expect_err("refused");
    assert_eq!(twice, ReadError::Yaml(YamlError::Twice { line: 30_001, key: "k7".to_owned() }));
}

#[test]
fn a_name_is_set_once() {
    let twice = yaml("a: 1\nb: 2\na: 3\n").expect_err("refused");
    assert_eq!(twice, ReadError::Yaml(YamlError::Twice { line: 3, key: "a".to_owned() }));
    assert!(matches!(yaml("? [a]\n: 1\n"), Err(ReadError::Yaml(YamlError::Key { .. }))));
    let twice = HuggingFace::parse(b"{\"vocab_size\": 1, \"vocab_size\": 1}").expect_err("refused");
    assert!(twice.to_string().contains("\"vocab_size\" is given twice"), "{twice}");
}

#[test]
fn numbers_are_whole_and_in_range() {
    let list = |layers: &str| {
        let text = SMALL.replace("num_layers: 2", &format!("num_layers: {layers}"));
        yaml(&text).expect_err("refused").to_string()
    };
    for layers in ["1e99", "-1", ".nan", ".inf", "0x10", "99999999999999999999", "2.5", "!!int '2x'", "two"] {
        assert!(list(layers).contains("num_layers"), "{layers}");
    }
    for value in ["1e999", "-1", "NaN", "Infinity", "99999999999999999999", "1.5", "\"4\"", "[4]", "{}"] {
        let text = format!(
            "{{\"model_type\": \"llama\", \"hidden_size\": 64, \"num_hidden_layers\": {value}, \
             \"num_attention_heads\": 4, \"vocab_size\": 9, \"intermediate_size\": 64}}"
        );
        let error = HuggingFace::parse(text.as_bytes()).expect_err("refused").to_string();
        assert!(error.contains("num_hidden_layers is ") || error.contains("not a JSON object"), "{error}");
    }
}

#[test]
fn marks_and_line_ends_of_other_editors_do_no_harm() {
    let plain = yaml(SMALL).expect("a launch");
    assert_eq!(plain.config.layers, 2);
    let windows = format!("\u{feff}{}", SMALL.replace('\n', "\r\n"));
    assert_eq!(read(windows.as_bytes(), None, &given()), Ok(plain.clone()));
    let flags = "--num-layers 2 \\\r\n--hidden-size 64\r\n--num-attention-heads 4\r\n--seq-length 32 --vocab-size 100\r\n\
                 --micro-batch-size 1 # one\r\n--bf16\r\n";
    let list = read(format!("\u{feff}{flags}").as_bytes(), None, &given()).expect("a launch");
    assert_eq!(list.config, plain.config);
    let joined = flags.replace("\\\r\n", "").replace("# one", "").replace("\r\n", " \\\r\n");
    let script = format!("torchrun --nproc_per_node 8 x.py {joined}\r\n");
    assert_eq!(read(script.as_bytes(), None, &given()).expect("a launch").config, plain.config);
}

#[test]
fn nothing_is_run() {
    let file = std::env::temp_dir().join(format!("bagualu-never-{}", std::process::id()));
    let touch = format!("$(touch {}) `touch {0}`", file.display());
    let flags =
        "--hidden-size 64 --num-attention-heads 4 --seq-length 32 --vocab-size 100 --micro-batch-size 1";
    for text in [
        format!(
            "X={touch}\n{touch}\ntorchrun --nproc_per_node 8 x.py --num-layers 2 {flags} --save {touch}\n"
        ),
        format!("--num-layers 2 {flags} --save \"{touch}\"\n"),
        format!(
            "{SMALL}save: \"{touch}\"\nload: !!python/object/apply:os.system ['touch {}']\n",
            file.display()
        ),
        format!("{{\"model_type\": \"llama\", \"auto_map\": \"{touch}\"}}"),
    ] {
        answers(text.as_bytes());
        assert!(!file.exists(), "{text}");
    }
    let text = format!("{SMALL}save: \"{touch}\"\n");
    assert_eq!(yaml(&text).expect("a launch").config.layers, 2);
    assert!(!file.exists());
}
