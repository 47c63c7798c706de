//! `localnet takeover` and `localnet give-back`: the commands of kubectl that move nodes from kube-proxy to localnet, and back. Pure.
//!
//! Labels of a node decide which proxy runs on it: localnet on nodes with `localnet=on`, and kube-proxy on nodes without `kube-proxy`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

/// Both DaemonSets, as far as the steps depend on them.
#[derive(Clone, Debug)]
pub struct Proxies {
    /// Flags of kubectl that select the cluster.
    pub flags: Vec<String>,
    /// The namespace of both.
    pub namespace: String,
    /// localnet's DaemonSet.
    pub localnet: DaemonSet,
    /// kube-proxy's DaemonSet.
    pub kube_proxy: DaemonSet,
}

/// A DaemonSet, as the API server returns it.
#[derive(Clone, Debug, Deserialize)]
pub struct DaemonSet {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Clone, Debug, Deserialize)]
struct Metadata {
    name: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Spec {
    selector: Selector,
    template: Template,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Selector {
    #[serde(default)]
    match_labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Template {
    spec: Value,
}

/// A command of kubectl.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What it does, as an imperative sentence without a full stop.
    pub purpose: String,
    /// The arguments of kubectl.
    pub arguments: Vec<String>,
    /// Whether the command is repeated until it succeeds.
    pub repeats: bool,
}

/// The node label of localnet's nodes, with its value.
const LOCALNET: (&str, &str) = ("localnet", "on");
/// The node label that keeps kube-proxy away.
const KUBE_PROXY: &str = "kube-proxy";

/// The steps that let localnet serve a node instead of kube-proxy.
///
/// # Errors
///
/// If localnet's DaemonSet has no backend, or does not run on nodes with the label `localnet=on`.
pub fn takeover(proxies: &Proxies, node: &str) -> Result<Vec<Step>, String> {
    let Proxies { localnet, kube_proxy, .. } = proxies;
    if localnet.backends().next().is_none() {
        return Err(format!(
            "DaemonSet {}: spec.template.spec.containers has no backend, so nothing would serve the node: choose one with helm upgrade \
             --reuse-values --set backend=nft",
            localnet.name()
        ));
    }
    let others =
        localnet.node_selector().filter(|(key, _)| *key != "kubernetes.io/os").find(|label| *label != LOCALNET);
    if let Some((key, value)) = others {
        return Err(format!(
            "DaemonSet {}: spec.template.spec.nodeSelector has {key}={value}, but takeover only sets the label localnet=on: remove it with \
             helm upgrade --reuse-values --set nodeSelector=null --set nodeSelector.localnet=on",
            localnet.name()
        ));
    }
    let mut steps = Vec::new();
    if let Some(terms) = kube_proxy.terms_without_label() {
        let patch = json!({"spec": {"template": {"spec": {"affinity": {"nodeAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}}}});
        steps.push(proxies.namespaced(
            format!("let {} run only on nodes without the label {KUBE_PROXY}", kube_proxy.name()),
            ["patch", "daemonset", kube_proxy.name(), "--patch", &patch.to_string()],
        ));
        steps.push(proxies.namespaced(
            format!("wait until the pods of {} are replaced", kube_proxy.name()),
            ["rollout", "status", &format!("daemonset/{}", kube_proxy.name())],
        ));
    }
    let (key, value) = LOCALNET;
    steps.push(
        proxies.step(
            format!("start localnet on {node}"),
            ["label", "node", node, "--overwrite", &format!("{key}={value}")],
        ),
    );
    steps.push(Step {
        repeats: true,
        ..proxies.of_pods(
            localnet,
            node,
            format!("wait until localnet serves on {node}"),
            ["wait", "--for=condition=Ready"],
        )
    });
    let off = format!("{KUBE_PROXY}=off");
    steps.push(
        proxies.step(format!("stop {} on {node}", kube_proxy.name()), ["label", "node", node, "--overwrite", &off]),
    );
    steps.push(proxies.deleted(kube_proxy, node));
    Ok(steps)
}

/// The steps that let kube-proxy serve a node again.
///
/// # Errors
///
/// If localnet would keep running without its label.
pub fn give_back(proxies: &Proxies, node: &str) -> Result<Vec<Step>, String> {
    let Proxies { localnet, kube_proxy, .. } = proxies;
    if !localnet.node_selector().any(|label| label == LOCALNET) {
        return Err(format!(
            "DaemonSet {}: spec.template.spec.nodeSelector lacks localnet=on, so localnet runs on all nodes, and kube-proxy's ports may be \
             taken: follow \"Go back to kube-proxy\" in docs/migrating.md, then repeat this command",
            localnet.name()
        ));
    }
    let health = format!("/api/v1/nodes/http:{node}:10256/proxy/healthz");
    let mut steps = vec![
        proxies
            .step(format!("start {} on {node}", kube_proxy.name()), ["label", "node", node, &format!("{KUBE_PROXY}-")]),
        Step {
            repeats: true,
            ..proxies.step(format!("wait until {} serves on {node}", kube_proxy.name()), ["get", "--raw", &health])
        },
        proxies.step(format!("stop localnet on {node}"), ["label", "node", node, &format!("{}-", LOCALNET.0)]),
        proxies.deleted(localnet, node),
    ];
    for (name, pod) in localnet.cleanups(node) {
        let (image, overrides) =
            (pod.pointer("/spec/containers/0/image").and_then(Value::as_str).unwrap_or_default(), pod.to_string());
        let arguments = [
            "run",
            &format!("localnet-cleanup-{name}-{node}"),
            "--rm",
            "--attach",
            "--restart=Never",
            &format!("--image={image}"),
            "--overrides",
            &overrides,
        ];
        steps.push(proxies.namespaced(format!("remove the rules of localnet-{name} from {node}"), arguments));
    }
    Ok(steps)
}

impl Proxies {
    fn step<const N: usize>(&self, purpose: String, arguments: [&str; N]) -> Step {
        let arguments = arguments.into_iter().map(str::to_owned);
        Step { purpose, arguments: self.flags.iter().cloned().chain(arguments).collect(), repeats: false }
    }

    /// A command about objects in the namespace of the proxies.
    fn namespaced<const N: usize>(&self, purpose: String, arguments: [&str; N]) -> Step {
        let mut step = self.step(purpose, arguments);
        step.arguments.splice(self.flags.len()..self.flags.len(), ["--namespace".to_owned(), self.namespace.clone()]);
        step
    }

    /// A command about the pods of a proxy on a node.
    fn of_pods(&self, proxy: &DaemonSet, node: &str, purpose: String, [verb, condition]: [&str; 2]) -> Step {
        let labels: Vec<String> =
            proxy.spec.selector.match_labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let node = format!("spec.nodeName={node}");
        self.namespaced(
            purpose,
            [verb, condition, "pod", "--selector", &labels.join(","), "--field-selector", &node, "--timeout=5m"],
        )
    }

    fn deleted(&self, proxy: &DaemonSet, node: &str) -> Step {
        self.of_pods(
            proxy,
            node,
            format!("wait until {} has stopped on {node}", proxy.name()),
            ["wait", "--for=delete"],
        )
    }
}

impl DaemonSet {
    fn name(&self) -> &str {
        &self.metadata.name
    }

    fn node_selector(&self) -> impl Iterator<Item = (&str, &str)> {
        let labels = self.spec.template.spec["nodeSelector"].as_object().into_iter().flatten();
        labels.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
    }

    /// The terms of the node affinity with the condition that a node has no label `kube-proxy`. `None` if all have it already.
    fn terms_without_label(&self) -> Option<Vec<Value>> {
        let condition = json!({"key": KUBE_PROXY, "operator": "DoesNotExist"});
        let terms =
            &self.spec.template.spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        // A node must match one of the terms.
        let before = terms["nodeSelectorTerms"].as_array().cloned().unwrap_or_else(|| vec![json!({})]);
        let mut after = before.clone();
        for term in &mut after {
            let mut conditions = term["matchExpressions"].as_array().cloned().unwrap_or_default();
            if !conditions.contains(&condition) {
                conditions.push(condition.clone());
            }
            term["matchExpressions"] = conditions.into();
        }
        (after != before).then_some(after)
    }

    /// The containers that program the node, by name. The chart's backend `shadow` only compares.
    fn backends(&self) -> impl Iterator<Item = (&str, &Value)> {
        let containers = self.spec.template.spec["containers"].as_array().into_iter().flatten();
        let named = containers.filter_map(|container| Some((container["name"].as_str()?, container)));
        named.filter(|(name, _)| !["brain", "shadow"].contains(name))
    }

    /// For each backend of the pod, its name, and a pod that removes its rules from a node.
    fn cleanups(&self, node: &str) -> Vec<(String, Value)> {
        let template = &self.spec.template.spec;
        let pod = |(name, container): (&str, &Value)| {
            let program = container["command"][0].clone();
            // It must find the same tables as the backend did.
            let flags = container["command"].as_array().into_iter().flatten();
            let flags = flags.filter(|flag| flag.as_str().is_some_and(|flag| flag.starts_with("--iptables-flavour=")));
            let command: Vec<Value> = [program, "cleanup".into()].into_iter().chain(flags.cloned()).collect();
            let mut cleanup = json!({"name": "cleanup", "command": command});
            for field in ["image", "imagePullPolicy", "securityContext", "volumeMounts"] {
                cleanup[field] = container[field].clone();
            }
            let spec = json!({"nodeName": node, "hostNetwork": true, "tolerations": [{"operator": "Exists"}],
                "securityContext": template["securityContext"], "volumes": template["volumes"], "containers": [cleanup]});
            (name.to_owned(), json!({"apiVersion": "v1", "spec": spec}))
        };
        self.backends().map(pod).collect()
    }
}

impl Step {
    /// The command, as a shell reads it.
    pub fn command(&self) -> String {
        let words = self.arguments.iter().map(|word| {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,".contains(c);
            if word.chars().all(is_plain) { word.clone() } else { format!("'{}'", word.replace('\'', r"'\''")) }
        });
        std::iter::once("kubectl".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(localnet: &Value, affinity: &Value) -> Proxies {
        let daemon_set = |name: &str, spec: Value| {
            let whole = json!({"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"app": name}}, "template": {"spec": spec}}});
            serde_json::from_value(whole).unwrap()
        };
        let containers = json!([{"name": "brain"}, {"name": "nft", "image": "r/localnet-nft:1", "command": ["/usr/bin/localnet-nft", "--config=x"]}]);
        Proxies {
            flags: Vec::new(),
            namespace: "kube-system".into(),
            localnet: daemon_set("localnet", json!({"nodeSelector": localnet, "containers": containers})),
            kube_proxy: daemon_set("kube-proxy", json!({"affinity": {"nodeAffinity": affinity}})),
        }
    }

    fn lines(steps: &[Step]) -> Vec<String> {
        steps.iter().map(Step::command).collect()
    }

    const ON: &str = r#"{"kubernetes.io/os": "linux", "localnet": "on"}"#;

    fn on() -> Value {
        serde_json::from_str(ON).unwrap()
    }

    #[test]
    fn localnet_serves_before_kube_proxy_stops() {
        let affinity = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "kube-proxy", "operator": "DoesNotExist"}]}]}});
        assert_eq!(
            lines(&takeover(&proxies(&on(), &affinity), "n1").unwrap()),
            [
                "kubectl label node n1 --overwrite localnet=on",
                "kubectl --namespace kube-system wait --for=condition=Ready pod --selector app=localnet --field-selector spec.nodeName=n1 --timeout=5m",
                "kubectl label node n1 --overwrite kube-proxy=off",
                "kubectl --namespace kube-system wait --for=delete pod --selector app=kube-proxy --field-selector spec.nodeName=n1 --timeout=5m",
            ]
        );
    }

    #[test]
    fn kube_proxy_keeps_the_conditions_of_its_affinity() {
        let zone = json!({"key": "zone", "operator": "Exists"});
        let affinity = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}});
        let steps = takeover(&proxies(&on(), &affinity), "n1").unwrap();
        assert!(
            lines(&steps)[0].contains(
                r#""nodeSelectorTerms":[{"matchExpressions":[{"key":"zone","operator":"Exists"},{"key":"kube-proxy","operator":"DoesNotExist"}]}]"#
            ),
            "{}",
            lines(&steps)[0]
        );
        let steps = takeover(&proxies(&on(), &Value::Null), "n1").unwrap();
        let only = r#""nodeSelectorTerms":[{"matchExpressions":[{"key":"kube-proxy","operator":"DoesNotExist"}]}]"#;
        assert!(lines(&steps)[0].contains(only), "{}", lines(&steps)[0]);
    }

    #[test]
    fn kube_proxy_serves_before_localnet_stops_and_its_rules_go_last() {
        let steps = give_back(&proxies(&on(), &Value::Null), "n1").unwrap();
        let lines = lines(&steps);
        assert_eq!(
            lines[..4],
            [
                "kubectl label node n1 kube-proxy-",
                "kubectl get --raw /api/v1/nodes/http:n1:10256/proxy/healthz",
                "kubectl label node n1 localnet-",
                "kubectl --namespace kube-system wait --for=delete pod --selector app=localnet --field-selector spec.nodeName=n1 --timeout=5m",
            ]
        );
        assert!(lines[4].contains(" run localnet-cleanup-nft-n1 "), "{}", lines[4]);
        assert!(lines[4].contains(r#""command":["/usr/bin/localnet-nft","cleanup"]"#), "{}", lines[4]);
        assert_eq!(lines.len(), 5);
    }

    /// Regression: kube-proxy stopped although localnet's pod only compared.
    #[test]
    fn a_shadow_takes_no_node_over() {
        let mut proxies = proxies(&on(), &Value::Null);
        proxies.localnet.spec.template.spec["containers"] = json!([{"name": "brain"}, {"name": "shadow"}]);
        let error = takeover(&proxies, "n1").unwrap_err();
        assert!(error.contains("has no backend"), "{error}");
        assert_eq!(give_back(&proxies, "n1").unwrap().len(), 4, "it has no rules to remove");
    }

    #[test]
    fn a_node_selector_that_the_steps_cannot_use_is_refused() {
        let everywhere = give_back(&proxies(&json!({}), &Value::Null), "n1").unwrap_err();
        assert!(everywhere.contains("lacks localnet=on"), "{everywhere}");
        let other = takeover(&proxies(&json!({"pool": "a"}), &Value::Null), "n1").unwrap_err();
        assert!(other.contains("has pool=a"), "{other}");
    }
}
