//! What of the libraries below the programs belongs into a log.

/// Libraries that log what only their authors can use, at the levels from which on they may.
///
/// Each line repeats something that a program of ours logs once, with its cause, or traces every frame of a connection.
/// `h2` and `netlink_proto` warn for each peer that gives up, so a peer could flood the log.
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

/// The filter for a log level such as `debug`: the libraries are kept quiet. Directives that the text has itself, as in
/// `debug,h2=debug`, count; the level `trace` shows everything.
pub fn directives(level: &str) -> String {
    if level.split(',').any(|directive| directive.trim().eq_ignore_ascii_case("trace")) {
        return level.to_owned();
    }
    let named = |library: &str| level.split(',').any(|directive| directive.trim().starts_with(library));
    let quiet =
        LIBRARIES.iter().filter(|(library, _)| !named(library)).map(|(library, from)| format!("{library}={from},"));
    quiet.chain([level.to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_quiet_unless_they_are_asked_for() {
        let debug = directives("debug");
        assert!(
            debug.contains("h2=error,") && debug.contains("kube_client=off,") && debug.ends_with(",debug"),
            "{debug}"
        );
        let asked = directives("info,h2=debug");
        assert!(
            !asked.contains("h2=error") && asked.contains("hyper=warn,") && asked.ends_with(",info,h2=debug"),
            "{asked}"
        );
        assert_eq!(directives("trace"), "trace");
    }
}
