//! Log filters, which suppress messages of the libraries that the programs use.

/// The libraries whose messages are useful only to their authors, each with the least severe level that is logged.
///
/// Each suppressed line repeats an event that our programs log once with its cause, or traces a frame of a connection.
/// `h2` and `netlink_proto` warn about each peer that closes its connection early, so a peer could flood the log.
const LIBRARIES: [(&str, &str); 13] = [
    ("kube_runtime", "off"),
    ("kube_client", "off"),
    ("h2", "error"),
    ("notify", "warn"),
    ("netlink_proto", "error"),
    ("netlink_packet_route", "error"),
    ("hyper", "warn"),
    ("hyper_util", "warn"),
    ("hyper_rustls", "warn"),
    ("rustls", "warn"),
    ("tokio_util", "warn"),
    ("tonic", "warn"),
    ("tower", "warn"),
];

/// The log levels, from nothing to everything.
pub const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Checks that each directive of `text` ends with a level, as in `info,localnet_brain=debug`.
///
/// Returns an error with the first directive that has no level. `tracing` would interpret such a directive as the name of
/// a module. Usually no module has this name, and the directive would select nothing.
fn check(text: &str) -> Result<(), String> {
    let (mut depth, mut directives) = (0_u32, vec![String::new()]);
    for character in text.chars() {
        depth = match character {
            '[' | '{' => depth + 1,
            ']' | '}' => depth.saturating_sub(1),
            _ => depth,
        };
        match directives.last_mut() {
            Some(last) if character != ',' || depth > 0 => last.push(character),
            _ => directives.push(String::new()),
        }
    }
    let is_good = |directive: &str| {
        let level = directive.rsplit_once('=').map_or(directive, |(_, level)| level);
        LEVELS.iter().any(|valid| valid.eq_ignore_ascii_case(level.trim()))
    };
    match directives.iter().map(|directive| directive.trim()).find(|directive| !is_good(directive)) {
        Some(bad) => Err(format!(
            "{bad:?} is not a log level; use one of {}, or MODULE=LEVEL; separate several levels with commas",
            LEVELS.join(", ")
        )),
        None => Ok(()),
    }
}

/// Returns the log filter for a level such as `debug`. The filter suppresses messages of libraries. Directives in `level`,
/// as in `debug,h2=debug`, take precedence. The level `trace` logs everything.
///
/// # Errors
/// Returns an error if a directive in `level` has no level, as in `debug,h2`.
pub fn directives(level: &str) -> Result<String, String> {
    check(level)?;
    if level.split(',').any(|directive| directive.trim().eq_ignore_ascii_case("trace")) {
        return Ok(level.to_owned());
    }
    let named = |library: &str| level.split(',').any(|directive| directive.trim().starts_with(library));
    let quiet =
        LIBRARIES.iter().filter(|(library, _)| !named(library)).map(|(library, from)| format!("{library}={from},"));
    Ok(quiet.chain([level.to_owned()]).collect())
}

#[cfg(test)]
mod tests {
    fn directives(level: &str) -> String {
        super::directives(level).unwrap_or_else(|bad| panic!("{bad}"))
    }

    #[test]
    fn unknown_levels_are_refused() {
        for good in ["info", "WARN", "off", "warn,localnet_brain=debug", "a[b{c=1,d=2}]=trace,info", "a::b=error"] {
            assert!(super::directives(good).is_ok(), "{good}");
        }
        for (text, bad) in [
            ("verbose", "verbose"),
            ("warning", "warning"),
            ("info,loud", "loud"),
            ("a=loud", "a=loud"),
            ("", ""),
            ("info,", ""),
            ("localnet_brain", "localnet_brain"),
            ("3", "3"),
        ] {
            let message = super::directives(text);
            let expected = format!(
                "{bad:?} is not a log level; use one of off, error, warn, info, debug, trace, or MODULE=LEVEL; separate several levels with commas"
            );
            assert_eq!(message, Err(expected), "{text}");
        }
    }

    #[test]
    fn libraries_are_quiet_unless_selected() {
        let debug = directives("debug");
        assert!(
            debug.contains("h2=error,") && debug.contains("kube_client=off,") && debug.ends_with(",debug"),
            "{debug}"
        );
        let directives_of_h2 = directives("info,h2=debug");
        assert!(
            !directives_of_h2.contains("h2=error")
                && directives_of_h2.contains("hyper=warn,")
                && directives_of_h2.ends_with(",info,h2=debug"),
            "{directives_of_h2}"
        );
        assert_eq!(directives("trace"), "trace");
    }
}
