//! Renders a command as a shell script, for a place that only files can reach.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

/// A script that runs `command` as it would run here: in its working directory (by default `folder`), and with exactly its environment
/// on top of `environment`, plus the variable `marker`, set to 1.
pub(crate) fn script(
    command: &Command,
    folder: &Path,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    marker: &str,
) -> Vec<u8> {
    let mut variables: BTreeMap<OsString, OsString> = environment.into_iter().collect();
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => variables.insert(name.to_owned(), value.to_owned()),
            None => variables.remove(name),
        };
    }
    variables.insert(marker.into(), "1".into());

    let mut script = b"cd ".to_vec();
    quote(&mut script, command.get_current_dir().unwrap_or(folder).as_os_str());
    script.extend_from_slice(b" && exec env -i");
    for (name, value) in &variables {
        let mut pair = name.clone();
        pair.push("=");
        pair.push(value);
        script.push(b' ');
        quote(&mut script, &pair);
    }
    for word in std::iter::once(command.get_program()).chain(command.get_args()) {
        script.push(b' ');
        quote(&mut script, word);
    }
    script.push(b'\n');
    script
}

/// Appends a word in single quotes, within which the shell interprets only the closing quote.
fn quote(script: &mut Vec<u8>, word: &OsStr) {
    script.push(b'\'');
    for byte in word.as_bytes() {
        match byte {
            b'\'' => script.extend_from_slice(br"'\''"),
            byte => script.push(*byte),
        }
    }
    script.push(b'\'');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(command: &Command, environment: &[(&str, &str)]) -> String {
        let environment = environment.iter().map(|(name, value)| (name.into(), value.into()));
        let script = script(command, Path::new("/"), environment, "INSIDE");
        let output = Command::new("sh").arg("-c").arg(OsStr::from_bytes(&script)).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn arguments_arrive_unchanged() {
        let words = ["plain", "two words", "it's", "$HOME `id` \\ \"", "", "*", "a\nb", "ü"];
        let mut command = Command::new("printf");
        command.arg("%s|").args(words);
        assert_eq!(run(&command, &[("PATH", "/usr/bin:/bin")]), words.join("|") + "|");
    }

    #[test]
    fn the_environment_is_exactly_the_command_s() {
        let mut command = Command::new("env");
        command.env("ADDED", "it's new").env("CHANGED", "to this").env_remove("REMOVED");
        let environment = [("PATH", "/usr/bin:/bin"), ("CHANGED", "from that"), ("REMOVED", "1"), ("KEPT", "2")];
        let mut seen: Vec<_> = run(&command, &environment).lines().map(str::to_owned).collect();
        seen.sort();
        assert_eq!(seen, ["ADDED=it's new", "CHANGED=to this", "INSIDE=1", "KEPT=2", "PATH=/usr/bin:/bin"]);
    }

    #[test]
    fn the_working_directory_is_the_command_s_or_the_default() {
        let environment = [("PATH", "/usr/bin:/bin")];
        assert_eq!(run(&Command::new("pwd"), &environment), "/\n");
        assert_eq!(run(Command::new("pwd").current_dir("/tmp"), &environment), "/tmp\n");
    }
}
