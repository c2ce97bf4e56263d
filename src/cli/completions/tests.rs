use std::process::{Command as Program, Stdio};

use argh::{FromArgs, Optionality};

use super::super::help;
use super::super::{Leap, commands};
use super::values::choices;
use super::*;

/// Output of a shell that runs `input`; `None` if the shell is not installed.
fn told(shell: &str, args: &[&str], input: &str) -> Option<String> {
    let path = std::env::temp_dir().join(format!(
        "leap-completions-{}-{shell}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    std::fs::write(&path, input).unwrap();
    let output = Program::new(shell).args(args).arg(&path).stdin(Stdio::null()).output();
    std::fs::remove_file(&path).unwrap();
    let output = output.ok()?;
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{shell}");
    assert!(output.status.success(), "{shell}: {output:?}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn scripts_parse() {
    let commands = commands();
    for (shell, args) in [
        (Shell::Bash, &["--norc", "-n"][..]),
        (Shell::Zsh, &["-f", "-n"]),
        (Shell::Fish, &["--no-config", "--no-execute"]),
    ] {
        let said = told(shell.name(), args, &script(shell, &commands));
        assert_eq!(said.unwrap_or_default(), "", "{shell:?}");
    }
}

#[test]
fn scripts_name_every_command_and_option() {
    let commands = commands();
    let [bash, zsh, fish] = Shell::ALL.map(|shell| script(shell, &commands));
    for (command, info) in help::typed(&commands) {
        let name = command.shown();
        let (_, of_bash) = bash.split_once(&format!("\n        {name})\n")).expect(name);
        let of_bash = of_bash.split("\n            esac\n").next().unwrap();
        let (_, of_zsh) = zsh.split_once(&format!("\n    {name})\n")).expect(name);
        let of_zsh = of_zsh.split(";;").next().unwrap();
        let begin = format!("complete -c leap -n '__fish_seen_subcommand_from {name}'");
        for flag in help::current(command, info) {
            let long = flag.long;
            let options = of_bash.rsplit("words='").find(|words| words.contains("--help")).unwrap();
            assert!(options.split([' ', '\'']).any(|word| word == long), "bash {name} {long}");
            let is_there = |line: &str| {
                let words = line.trim_start().split(['[', '=', '}', ',', ')', ' ', '\'']);
                words.take(8).any(|word| word == long)
            };
            assert!(of_zsh.lines().any(is_there), "zsh {name} {long}");
            let long = format!("-l {} ", long.trim_start_matches('-'));
            let is_there = |line: &str| line.starts_with(&begin) && line.contains(&long);
            assert!(fish.lines().any(is_there), "fish {name} {long}");
        }
    }
}

#[test]
fn choices_are_understood() {
    let mut n_choices = 0;
    for info in commands() {
        let positionals = info.positionals.iter().map(|_| "bash");
        let positionals: Vec<&str> = positionals.collect();
        let needed = info.flags.iter().filter(|flag| flag.optionality == Optionality::Required);
        let needed: Vec<&str> = needed.flat_map(|flag| [flag.long, "a"]).collect();
        for flag in info.flags.iter() {
            for choice in choices(flag.long, flag.description) {
                let words = [&[info.name], &*positionals, &*needed, &[flag.long, choice]].concat();
                assert!(Leap::from_args(&["leap"], &words).is_ok(), "{words:?}");
                n_choices += 1;
            }
        }
    }
    assert!(n_choices > 20, "{n_choices}");
    let carriers = "ring: auto (default), kernel, udp or tcp";
    assert_eq!(choices("--transport", carriers), ["auto", "kernel", "udp", "tcp"]);
}

/// Words that bash offers for the last word of `line`.
fn completed(line: &[&str]) -> Vec<String> {
    let words: Vec<String> = line.iter().map(|word| format!("'{word}'")).collect();
    let script = format!(
        "set -u\n{}\nCOMP_WORDS=({})\nCOMP_CWORD={}\n_leap\nprintf '%s\\n' ${{COMPREPLY[@]+\"${{COMPREPLY[@]}}\"}}\n",
        script(Shell::Bash, &commands()),
        words.join(" "),
        line.len() - 1
    );
    let said = told("bash", &["--norc"], &script).expect("bash is there, as for the scripts");
    said.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn bash_completes() {
    assert_eq!(completed(&["leap", "ru"]), ["run"]);
    assert_eq!(completed(&["leap", "ma"]), ["master"]);
    assert_eq!(completed(&["leap", "--v"]), ["--version"]);
    assert_eq!(completed(&["leap", "run", "--tem"]), ["--temp"]);
    assert_eq!(completed(&["leap", "run", "m.bin", "--reb"]), ["--rebalance-after"]);
    assert_eq!(completed(&["leap", "run", "--transport", "k"]), ["kernel"]);
    assert_eq!(completed(&["leap", "ring", "re"]), ["resize", "replan"]);
    assert_eq!(completed(&["leap", "master", "--control", "o"]), ["off"]);
    assert_eq!(completed(&["leap", "run", "--transport", "=", "u"]), ["udp"]);
    assert_eq!(completed(&["leap", "worker", "--wire", "="]), ["f16", "f32"]);
    assert_eq!(completed(&["leap", "help", "wo"]), ["worker"]);
    assert_eq!(completed(&["leap", "completions", ""]), ["bash", "zsh", "fish"]);
    // The script offers no words: bash completes names of files.
    assert_eq!(completed(&["leap", "run", "mod"]), [""; 0]);
    assert_eq!(completed(&["leap", "run", "--prompt-file", ""]), [""; 0]);
    // A worker has no prompts.
    assert_eq!(completed(&["leap", "worker", "--tem"]), [""; 0]);
}

#[test]
fn fish_completes() {
    for (line, wanted) in
        [("ru", "run\t"), ("run --tem", "--temp\t"), ("run --transport k", "kernel")]
    {
        let script = format!("{}\ncomplete -C 'leap {line}'\n", script(Shell::Fish, &commands()));
        // If fish is not installed, the other tests must do.
        if let Some(said) = told("fish", &["--no-config"], &script) {
            assert!(said.starts_with(wanted) && said.lines().count() == 1, "{line}: {said}");
        }
    }
}
