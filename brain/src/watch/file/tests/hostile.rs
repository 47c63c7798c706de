//! Files that could crash or block a reader: too deep, too large, too large after expansion, or not regular files.

use std::{
    fs,
    os::unix::{fs::symlink, net::UnixListener},
    path::Path,
};

use super::{super::load, WEB, check_problems, loaded, names};

/// Nested Lists, which kubectl never writes.
fn nested_lists(levels: usize) -> String {
    let mut text = String::from("apiVersion: v1\nkind: List\n");
    for level in 0..levels {
        let indent = "  ".repeat(level);
        text += &format!("{indent}items:\n{indent}- apiVersion: v1\n{indent}  kind: List\n");
    }
    text
}

/// A CustomResourceDefinition with a nested schema.
fn custom_resource(levels: usize) -> String {
    let mut text = String::from("apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nspec:\n");
    for level in 1..=levels {
        text += &format!("{}properties:\n", " ".repeat(level));
    }
    text
}

#[test]
fn deep_nesting_is_refused_with_its_line() {
    let deep = |levels: usize| format!("{WEB}status:\n  odd: {}{}\n", "[".repeat(levels), "]".repeat(levels));
    let refused = "is nested too deeply; nest at most 128 levels";
    check_problems(&deep(200), &[&format!("a.yaml:11: {refused}")]);
    check_problems(&deep(100_000), &[&format!("a.yaml:11: {refused}")]);
    check_problems(&nested_lists(500), &[&format!("a.yaml:193: {refused}")]);
    assert_eq!(names(&loaded("a.yaml", &deep(100)).unwrap()), ["Service web"]);
    check_problems(
        &nested_lists(50),
        &["a.yaml:4: List: items[0]: an item of a list must be an object with apiVersion and kind"],
    );
    let json = |levels: usize| format!("{{\"kind\": \"Pod\", \"a\": {}1{}}}", "[".repeat(levels), "]".repeat(levels));
    assert_eq!(loaded("a.json", &json(120)).unwrap().ignored.len(), 1);
    assert_eq!(loaded("a.json", &json(100_000)).unwrap_err(), [format!("a.json:1: {refused}")]);
}

#[test]
fn an_ignored_kind_may_be_nested_deeply() {
    let text = format!("{}---\n{WEB}", custom_resource(1_000));
    let loaded = loaded("a.yaml", &text).unwrap();
    assert_eq!(names(&loaded), ["Service web"]);
    let ignored = loaded.ignored[0].subject.to_string();
    assert!(ignored.ends_with(": apiextensions.k8s.io/v1 CustomResourceDefinition"), "{ignored}");
}

#[test]
fn aliases_that_expand_to_too_much_are_refused() {
    let refused = |text: &str| {
        let problems = loaded("a.yaml", text).unwrap_err();
        assert!(problems[0].contains("aliases (*name) expand to too much; write"), "{problems:?}");
    };
    let mut long = format!("{WEB}status:\n  a: &a \"{}\"\n", "x".repeat(100_000));
    (0..20_000).for_each(|n| long += &format!("  k{n}: *a\n"));
    refused(&long);
    let mut many = format!("{WEB}status:\n  a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..=6 {
        many += &format!("  a{level}: &a{level} [{}]\n", vec![format!("*a{}", level - 1); 9].join(", "));
    }
    refused(&many);
    let mut deep = format!("{WEB}status:\n  a0: &a0 [x]\n");
    (1..=2_000).for_each(|level| deep += &format!("  a{level}: &a{level} [*a{}]\n", level - 1));
    assert!(loaded("a.yaml", &deep).is_err());

    let mut few = format!("{WEB}---\n{}", WEB.replace("name: web", "name: b\n  annotations:\n    k: &a v"));
    few = few.replace(
        "    k: &a v\n",
        &format!("    k: &a v\n{}", (0..500).fold(String::new(), |text, n| text + &format!("    k{n}: *a\n"))),
    );
    assert_eq!(names(&loaded("a.yaml", &few).unwrap()), ["Service web", "Service b"]);
}

/// Regression: a map of 60 MiB that contains only keys took 491 MiB to read. The parser keeps keys until their map ends, so their
/// number is limited.
#[test]
fn a_map_of_too_many_keys_is_refused_with_its_remedy() {
    let mut text = "kind: List\n".to_owned();
    (0..1_500_000).for_each(|number| text += &format!("k{number}:\n"));
    let problems = loaded("a.yaml", &text).unwrap_err();
    assert!(problems[0].contains("has too many values; split it into several documents"), "{problems:?}");
}

#[test]
fn a_file_that_is_too_large_is_refused_unread() {
    let folder = tempfile::tempdir().unwrap();
    fs::File::create(folder.path().join("big.yaml")).unwrap().set_len(1 << 40).unwrap();
    only_problem(folder.path(), "big.yaml", "is larger than 32 MiB; split it into several files");
}

#[track_caller]
fn only_problem(path: &Path, file: &str, expected: &str) {
    let problems: Vec<String> = load(path).unwrap_err().iter().map(ToString::to_string).collect();
    let file = if file.is_empty() { path.to_owned() } else { path.join(file) };
    assert_eq!(problems, [format!("{}: {expected}", file.display())]);
}

#[test]
fn the_error_for_a_broken_link_names_the_link() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.yaml"), WEB).unwrap();
    let link = folder.path().join("b.yaml");
    symlink("nowhere", &link).unwrap();
    only_problem(folder.path(), "b.yaml", "is a link to a missing file; correct the link or remove it");
    fs::remove_file(&link).unwrap();
    symlink("b.yaml", &link).unwrap();
    only_problem(folder.path(), "b.yaml", "is a link that leads back to itself; correct the link or remove it");
    fs::remove_file(&link).unwrap();
    assert_eq!(names(&load(folder.path()).unwrap()), ["Service web"]);
}

#[test]
fn anything_but_a_regular_file_is_refused_without_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let (fifo, socket) = (folder.path().join("a.yaml"), folder.path().join("b.yaml"));
    let mode = nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR;
    nix::unistd::mkfifo(&fifo, mode).unwrap();
    let remedy = "use a regular file";
    only_problem(&fifo, "", &format!("is a FIFO; {remedy}"));
    only_problem(folder.path(), "a.yaml", &format!("is a FIFO; {remedy}"));
    fs::remove_file(&fifo).unwrap();
    let _listening = UnixListener::bind(&socket).unwrap();
    only_problem(folder.path(), "b.yaml", &format!("is a socket; {remedy}"));
    only_problem(Path::new("/dev/zero"), "", &format!("is a device; {remedy}"));
}

#[test]
fn only_names_that_kubernetes_allows_are_accepted() {
    let label = "use at most 63 lower case letters, digits and '-', and a letter or digit at each end";
    let at = |line: u32, object: &str, field: &str, text: &str| {
        format!("a.yaml:{line}: {object}: {field}: {text:?} is not a name; {label}")
    };
    for (yaml, name) in
        [("\"a\\nb\"", "a\nb"), ("\"a\\e[31m\"", "a\u{1b}[31m"), ("a/b", "a/b"), ("Web", "Web"), ("-a", "-a")]
    {
        let object = format!("Service default/{}", name.replace('\n', "\\n").replace('\u{1b}', "\\u{1b}"));
        check_problems(&WEB.replace("name: web", &format!("name: {yaml}")), &[&at(4, &object, "metadata.name", name)]);
    }
    check_problems(
        &WEB.replace("name: web", "name: web\n  namespace: a.b"),
        &[&at(5, "Service a.b/web", "metadata.namespace", "a.b")],
    );
    check_problems(
        &WEB.replace("name: http", "name: HTTP"),
        &[&at(8, "Service default/web", "spec.ports[0].name", "HTTP")],
    );
    let long = loaded("a.yaml", &WEB.replace("name: web", &format!("name: {}", "x".repeat(17_000_000)))).unwrap_err();
    assert!(long.len() == 1 && long[0].len() < 2_000 && long[0].contains("is not a name") | long[0].contains('…'));
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a\u{1b}\n.yaml"), "kind: [").unwrap();
    let message = load(folder.path()).unwrap_err()[0].to_string();
    assert!(message.contains("a\\u{1b}\\n.yaml:1") && !message.contains(char::is_control), "{message}");
}

#[test]
fn unsupported_values_are_errors() {
    let rows = [
        (
            "type: Clusterip",
            "spec.type: \"Clusterip\" is not supported; use ClusterIP, NodePort, LoadBalancer or ExternalName",
        ),
        (
            "externalTrafficPolicy: local",
            "spec.externalTrafficPolicy: \"local\" is not supported; use Cluster or Local",
        ),
        ("internalTrafficPolicy: Node", "spec.internalTrafficPolicy: \"Node\" is not supported; use Cluster or Local"),
        ("sessionAffinity: clientIP", "spec.sessionAffinity: \"clientIP\" is not supported; use None or ClientIP"),
        ("healthCheckNodePort: 70000", "spec.healthCheckNodePort: 70000 is not a port; use a number from 1 to 65535"),
    ];
    for (line, problem) in rows {
        let text = WEB.replace("spec:\n", &format!("spec:\n  {line}\n"));
        check_problems(&text, &[&format!("a.yaml:6: Service default/web: {problem}")]);
    }
}

#[test]
fn a_service_without_a_cluster_ip_is_skipped_with_a_diagnostic() {
    let without = loaded("a.yaml", &WEB.replace("  clusterIP: 10.96.0.10\n", "")).unwrap();
    let message = without.ignored[0].to_string();
    let expected = "a.yaml:1: Service default/web: has no ClusterIP and is not proxied; set spec.clusterIP: the brain allocates none";
    assert!(message.ends_with(expected), "{message}");
    let external = WEB.replace("clusterIP: 10.96.0.10", "type: ExternalName\n  externalName: example.com");
    assert_eq!(loaded("a.yaml", &external).unwrap().ignored, []);
    assert_eq!(loaded("a.yaml", &WEB.replace("10.96.0.10", "None")).unwrap().ignored, []);
}

#[test]
fn errors_of_the_parser_are_readable() {
    let rows = [
        (format!("{WEB}spec: {{}}\n"), "the field \"spec\" is set twice; remove one of the two"),
        (WEB.replace("clusterIP: 10.96.0.10", "clusterIP: []"), "is a list, not a string; write one value"),
        (
            WEB.replace("metadata:\n  name: web", "metadata: 7"),
            "is 7, not a map of fields; write its fields as name: value, indented below it",
        ),
        (WEB.replace("10.96.0.10", "*ip"), "an alias (*name) has no anchor; define &name before the alias"),
    ];
    for (text, expected) in rows {
        let problems = loaded("a.yaml", &text).unwrap_err();
        assert!(problems[0].ends_with(expected), "{problems:?}");
    }
}
