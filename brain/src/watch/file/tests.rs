//! Tests the content of files, and the problems with their positions.

mod fuzz;
mod hostile;
pub(super) mod watching;

use std::{fs, path::Path, time::SystemTime};

use localnet_core::{Code, Severity};

use super::{Loaded, contents::Contents, load};
use localnet_cluster::objects::{Event, Kind, Object};

pub(super) const WEB: &str = "apiVersion: v1
kind: Service
metadata:
  name: web
spec:
  clusterIP: 10.96.0.10
  ports:
  - name: http
    port: 80
";

const SLICE: &str = "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
ports:
- name: http
  port: 8080
endpoints:
- addresses: [10.1.0.1]
";

/// The names of the objects of each kind in a text.
#[track_caller]
pub(super) fn names(loaded: &Loaded) -> Vec<String> {
    let mut names = Vec::new();
    let kinds: Vec<Kind> = loaded
        .events
        .iter()
        .map(|event| {
            let Event::Replace { kind, objects } = event else { panic!("{event:?}") };
            names.extend(objects.iter().map(|object| format!("{} {}", object.kind().as_str(), object.name())));
            *kind
        })
        .collect();
    assert_eq!(kinds, Kind::ALL);
    names
}

pub(super) fn loaded(name: &str, text: &str) -> Result<Loaded, Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(name), text).unwrap();
    load(folder.path()).map_err(|problems| {
        let prefix = format!("{}/", folder.path().display());
        problems.iter().map(|problem| problem.to_string().replace(&prefix, "")).collect()
    })
}

/// Checks the problems of a text.
#[track_caller]
pub(super) fn check_problems(text: &str, expected: &[&str]) {
    assert_eq!(loaded("a.yaml", text).unwrap_err(), expected);
}

#[test]
fn documents_lists_and_json_are_read() {
    let two = loaded("a.yaml", &format!("# both\n---\n{WEB}---\n{SLICE}")).unwrap();
    assert_eq!(names(&two), ["Service web", "EndpointSlice web-1"]);

    let list = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Node\n  metadata: {name: n1}\n- kind: Pod\n  apiVersion: v1\n  metadata: {name: p}\n- metadata: {name: kubernetes}\n  spec: {cidrs: [10.96.0.0/16]}\n  kind: ServiceCIDR\n  apiVersion: networking.k8s.io/v1\n";
    let list = loaded("a.yml", list).unwrap();
    assert_eq!(names(&list), ["Node n1", "ServiceCIDR kubernetes"]);
    assert_eq!(list.ignored[0].subject.to_string().rsplit(": ").next(), Some("v1 Pod"));

    let json = "{\n\t\"kind\": \"Service\",\n\t\"apiVersion\": \"v1\",\n\t\"metadata\": {\"name\": \"web\", \"namespace\": \"shop\"},\n\t\"spec\": {\"clusterIP\": \"10.96.0.1\", \"ports\": [{\"port\": 80}]}\n}\n";
    assert_eq!(names(&loaded("a.json", json).unwrap()), ["Service web"]);
    let json = json.replace("Service", "ServiceList").replace("\"spec\"", "\"items\": [], \"spec\"");
    assert_eq!(names(&loaded("a.json", &json).unwrap()), [""; 0]);
    assert_eq!(names(&loaded("a.yaml", "").unwrap()), [""; 0]);
}

#[test]
fn a_slice_without_a_service_is_reported() {
    let orphan = loaded("a.yaml", &SLICE.replace("  labels: {kubernetes.io/service-name: web}\n", "")).unwrap();
    let [orphan] = orphan.ignored.as_slice() else { panic!("{orphan:?}") };
    assert!(orphan.subject.to_string().ends_with("a.yaml:1: EndpointSlice default/web-1"), "{orphan}");
    assert_eq!((orphan.code, orphan.severity), (Code::SliceWithoutService, Severity::Warning));
}

#[test]
fn the_namespace_defaults_to_default() {
    let both = loaded("a.yaml", &format!("{WEB}---\n{}", WEB.replace("name: web", "namespace: shop\n  name: web")));
    let Event::Replace { objects, .. } = &both.unwrap().events[0] else { panic!() };
    assert_eq!(objects.iter().map(Object::namespace).collect::<Vec<_>>(), ["default", "shop"]);
}

#[test]
fn a_missing_node_matters_only_to_node_ports() {
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\n";
    let text = format!("{WEB}    nodePort: 30080\n---\n{node}");
    let lacks = |text: &str, name| {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, text).unwrap();
        let mut contents = Contents::default();
        contents.take(contents.read(file.path(), SystemTime::now()).unwrap());
        contents.lacks_node(name)
    };
    assert!(lacks(&text, "node-2"));
    assert!(!lacks(&text, "node-1"));
    assert!(!lacks(WEB, "node-2"), "no Service needs the Node");
}

#[test]
fn only_yaml_and_json_files_of_the_folder_itself_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str| fs::write(folder.path().join(name), WEB.replace("web", &name.replace(['.', '~'], "-")));
    for name in ["a.yaml", "b.yml", "c.json", ".hidden.yaml", "d.yaml~", "e.txt"] {
        write(name).unwrap();
    }
    fs::create_dir(folder.path().join("sub.yaml")).unwrap();
    fs::write(folder.path().join("sub.yaml/f.yaml"), "not: read").unwrap();
    assert_eq!(names(&load(folder.path()).unwrap()), ["Service a-yaml", "Service b-yml", "Service c-json"]);
    let hidden = load(&folder.path().join("e.txt")).unwrap();
    assert_eq!(names(&hidden), ["Service e-txt"], "a file that is named is read whatever its name");
}

#[test]
fn a_problem_names_file_line_object_and_field() {
    check_problems(
        &format!("{WEB}---\n{}", WEB.replace("port: 80", "port: eighty")),
        &[
            "a.yaml:19: Service default/web: spec.ports[0].port: is \"eighty\", not a number; write it in digits, without quotes",
        ],
    );
    check_problems(
        &WEB.replace("10.96.0.10", "10.96.0.300"),
        &[
            "a.yaml:6: Service default/web: spec.clusterIP: \"10.96.0.300\" is not an IP address; write it like 10.0.0.1 or 2001:db8::1",
        ],
    );
    check_problems(
        &format!("{WEB}  - name: http\n    port: 81\n"),
        &[
            "a.yaml:10: Service default/web: spec.ports[1].name: the name \"http\" is used twice; give each port its own name",
        ],
    );
    check_problems(
        &format!("{WEB}  - name: other\n    port: 80\n    protocol: ICMP\n"),
        &["a.yaml:12: Service default/web: spec.ports[1].protocol: \"ICMP\" is not a protocol; use TCP, UDP or SCTP"],
    );
    check_problems(
        &format!("{SLICE}- addresses: [10.1.0]\n"),
        &[
            "a.yaml:12: EndpointSlice default/web-1: endpoints[1].addresses[0]: \"10.1.0\" is not an IP address; write it like 10.0.0.1 or 2001:db8::1",
        ],
    );
    check_problems(
        &WEB.replace("  name: web\n", "  labels: {a: b}\n"),
        &["a.yaml:4: Service default/: metadata.name: is missing; give the object a name"],
    );
    check_problems(
        "metadata: {name: x}\n",
        &["a.yaml:1: object: kind: is missing; every document must be a Kubernetes object with apiVersion and kind"],
    );
}

#[test]
fn a_value_of_another_type_is_refused_with_its_remedy() {
    let port = |text: &str| WEB.replace("port: 80", &format!("port: {text}"));
    let rows = [
        ("eighty # http", "is \"eighty\", not a number; write it in digits, without quotes"),
        ("'8o'", "is \"8o\", not a number; write it in digits, without quotes"),
        ("80.5", "is 80.5, not a whole number; remove the fraction"),
        ("99999999999", "99999999999 is out of range; use a smaller number"),
        ("[80]", "is a list, not a number; write it in digits"),
    ];
    for (text, problem) in rows {
        check_problems(&port(text), &[&format!("a.yaml:9: Service default/web: spec.ports[0].port: {problem}")]);
    }
    check_problems(
        &WEB.replace("  - name: http\n    port: 80\n", "  - {port: many, name: http}\n"),
        &[
            "a.yaml:8: Service default/web: spec.ports[0].port: is \"many\", not a number; write it in digits, without quotes",
        ],
    );
    // As in kubectl, a number is no text.
    check_problems(
        &WEB.replace("name: http", "name: 80"),
        &["a.yaml:8: Service default/web: spec.ports[0].name: is 80, not a string; put it in quotes"],
    );
    check_problems(
        &SLICE.replace("[10.1.0.1]", "[10.1.0.1]\n  conditions: {ready: perhaps}"),
        &[
            "a.yaml:12: EndpointSlice default/web-1: endpoints[0].conditions.ready: is \"perhaps\", not true or false; write true or false, without quotes",
        ],
    );
}

#[test]
fn a_problem_in_a_list_names_the_item() {
    let item = "- apiVersion: v1\n  kind: Service\n  metadata: {name: web}\n  spec:\n    clusterIP: 10.96.0.1\n    ports:\n    - port: 80\n";
    let list = format!("apiVersion: v1\nkind: List\nitems:\n{item}{}", item.replace("name: web", "name: b"));
    assert_eq!(names(&loaded("a.yaml", &list).unwrap()), ["Service web", "Service b"]);
    let at = list.rfind("80").unwrap();
    let bad = format!("{}x{}", &list[..at], &list[at + 2..]);
    check_problems(
        &bad,
        &[
            "a.yaml:17: Service default/b: spec.ports[0].port: is \"x\", not a number; write it in digits, without quotes",
        ],
    );
    let bad = format!("{}99999{}", &list[..at], &list[at + 2..]);
    check_problems(
        &bad,
        &["a.yaml:17: Service default/b: spec.ports[0].port: 99999 is not a port; use a number from 1 to 65535"],
    );
}

#[test]
fn invalid_yaml_is_refused_with_its_line() {
    let problems = loaded("a.yaml", &format!("{WEB}---\nkind: Service\n  name: [\n")).unwrap_err();
    assert!(problems[0].starts_with("a.yaml:1"), "{problems:?}");
    assert!(!problems[0].contains('\n') && problems.len() == 1, "{problems:?}");
    let problems = loaded("a.json", "{\"kind\": \"Service\",\n \"apiVersion\": \"v1\",\n \"spec\": }\n").unwrap_err();
    assert!(problems[0].starts_with("a.json:"), "{problems:?}");
}

#[test]
fn a_duplicate_object_is_refused_with_both_places() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.yaml"), WEB).unwrap();
    fs::write(folder.path().join("b.yaml"), format!("\n\n{WEB}")).unwrap();
    let problem = load(folder.path()).unwrap_err()[0].to_string();
    let (a, b) = (folder.path().join("a.yaml"), folder.path().join("b.yaml"));
    let expected = format!(
        "{}:3: Service default/web: is defined twice, first in {}:1; remove one of the two",
        b.display(),
        a.display()
    );
    assert_eq!(problem, expected);
}

#[test]
fn the_error_for_an_unreadable_path_names_it() {
    let problem = load(Path::new("/nonexistent/x.yaml")).unwrap_err()[0].to_string();
    assert!(problem.starts_with("/nonexistent/x.yaml: cannot be read: "), "{problem}");
}

mod any_text {
    use proptest::prelude::*;

    proptest! {
        /// Every file is read, or refused with the line at fault.
        #[test]
        fn is_read_or_refused(lines in prop::collection::vec(line(), 0..12)) {
            let text = lines.join("\n");
            if let Err(problems) = super::loaded("a.yaml", &text) {
                prop_assert!(!problems.is_empty());
                for problem in problems {
                    prop_assert!(problem.starts_with("a.yaml:") && !problem.contains('\n'), "{problem}");
                }
            }
        }
    }

    fn line() -> impl Strategy<Value = String> {
        let contents = prop::sample::select(super::WEB.lines().chain(super::SLICE.lines()).collect::<Vec<_>>());
        let odd = prop::sample::select(vec![
            "---",
            "...",
            "items:",
            "kind: List",
            "- kind: Service",
            "  - port: 1",
            "a: &a [*a]",
            "? ",
            "{",
            "]",
            "\t",
            "\u{feff}",
            "%YAML 1.2",
            "spec: null",
            "metadata: 7",
            "items: [[], {}, 1]",
            "  ports: {}",
        ]);
        prop_oneof![6 => contents.prop_map(str::to_owned), 3 => odd.prop_map(str::to_owned), 1 => "\\PC{0,12}"]
    }
}
