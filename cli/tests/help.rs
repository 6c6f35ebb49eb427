//! Help, manual pages and completion: every command has an example that works as written.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const BAGUALU: &str = env!("CARGO_BIN_EXE_bagualu");

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn run(arguments: &[&str]) -> Output {
    Command::new(BAGUALU).args(arguments).current_dir(repository()).output().expect("the command runs")
}

fn text(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Every command with all its words, `bagualu` itself among them as none.
fn commands() -> Vec<Vec<String>> {
    let mut found = vec![Vec::new()];
    let mut next = 0;
    while next < found.len() {
        let words: Vec<String> = found[next].clone();
        let mut arguments: Vec<&str> = words.iter().map(String::as_str).collect();
        arguments.push("--help");
        let help = text(&arguments);
        let section = help.split("Commands:\n").nth(1).unwrap_or_default();
        let names = section.lines().take_while(|line| !line.is_empty()).filter_map(|line| {
            // Names stand two spaces in, continued descriptions further.
            let name = line.strip_prefix("  ").filter(|rest| !rest.starts_with(' '))?;
            name.split_whitespace().next().filter(|&name| name != "help")
        });
        found.extend(names.map(|name| [&words[..], &[name.to_owned()]].concat()));
        next += 1;
    }
    found
}

/// The examples of a help text, as a shell script.
fn examples(help: &str) -> String {
    let lines = help.lines().skip_while(|line| !matches!(*line, "Example:" | "Examples:")).skip(1);
    lines.take_while(|line| line.starts_with("  ")).fold(String::new(), |script, line| script + line + "\n")
}

#[test]
fn every_command_shows_examples_that_work_as_written() {
    let path = format!(
        "{}:{}",
        Path::new(BAGUALU).parent().expect("a folder").display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let commands = commands();
    assert!(commands.len() >= 9, "{commands:?}");
    for words in commands {
        let arguments: Vec<&str> = words.iter().map(String::as_str).chain(["--help"]).collect();
        let script = examples(&text(&arguments));
        let name =
            ["bagualu"].into_iter().chain(words.iter().map(String::as_str)).collect::<Vec<_>>().join(" ");
        assert!(script.contains(&name), "{name} --help has no example");
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", &script]).env("PATH", &path).current_dir(repository());
        let output = shell.output().expect("a shell");
        assert!(output.status.success(), "{script}{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn every_shell_has_a_completion_script() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = text(&["completion", shell]);
        let words = ["replay", "mitigate", "num-layers", "glm-423b-a30b", "gb200-186g"];
        // clap completes values for these three only.
        let known = if ["bash", "zsh", "fish"].contains(&shell) { 5 } else { 3 };
        for word in &words[..known] {
            assert!(script.contains(word), "{shell} lacks {word}");
        }
    }
    let script = text(&["completion", "bash"]);
    let completed = format!(
        "{script}\nCOMP_WORDS=(bagualu plan --device b2) COMP_CWORD=3\n_bagualu bagualu b2 --device\necho \"${{COMPREPLY[@]}}\"\n"
    );
    let Ok(output) = Command::new("bash").args(["-c", &completed]).output() else { return };
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "b200-180g", "{output:?}");
    assert_eq!(run(&["completion", "csh"]).status.code(), Some(2));
}

#[test]
fn every_command_has_a_manual_page() {
    let dir = std::env::temp_dir().join(format!("bagualu-man-{}", std::process::id()));
    text(&["man", "--dir", dir.to_str().expect("UTF-8")]);
    for words in commands() {
        let name =
            ["bagualu"].into_iter().chain(words.iter().map(String::as_str)).collect::<Vec<_>>().join("-");
        let page = std::fs::read_to_string(dir.join(format!("{name}.1"))).expect("a page");
        assert!(page.contains(".TH") && page.contains("Example"), "{page}");
        let mut arguments = vec!["man"];
        arguments.extend(words.iter().map(String::as_str));
        assert!(text(&arguments).contains("Example"), "{arguments:?}");
    }
    std::fs::remove_dir_all(&dir).expect("the pages");
    let output = run(&["man", "solve", "everything"]);
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        message.contains("no command \"everything\"; give one of budget, mitigate, interleave"),
        "{message}"
    );
}

#[test]
fn progress_is_not_drawn_into_a_pipe() {
    let output = run(&["replay", "--model", "glm-188b-a20b", "--trace", "w0", "--iterations", "8"]);
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}
