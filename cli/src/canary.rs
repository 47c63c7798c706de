//! `localnet canary`: the commands of kubectl that move Services from kube-proxy to a canary, and back. Pure.
//!
//! A label of a Service decides which proxy serves it on nodes with a canary.

use std::str::FromStr;

use crate::takeover::Step;

/// Services of one namespace.
#[derive(Clone, Debug)]
pub struct Services {
    /// Flags of kubectl that select the cluster.
    pub flags: Vec<String>,
    /// The namespace.
    pub namespace: String,
    /// Which of its Services.
    pub which: Which,
    /// The label of the Services that the canary serves.
    pub label: Label,
}

/// Which Services of a namespace.
#[derive(Clone, Debug)]
pub enum Which {
    /// All of them.
    All,
    /// Those that match a label selector.
    Selected(String),
    /// Those with these names.
    Named(Vec<String>),
}

/// A label with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    key: String,
    value: String,
}

impl FromStr for Label {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() && !value.is_empty() && !value.contains('=') => {
                Ok(Self { key: key.to_owned(), value: value.to_owned() })
            }
            _ => Err("expected a label with its value, such as proxy=localnet"),
        }
    }
}

impl Services {
    /// The step that lets the canary serve the Services. It fails at a Service whose label has another value.
    pub fn add(&self) -> Step {
        let Label { key, value } = &self.label;
        let objects = match &self.which {
            Which::All => vec!["--all".to_owned()],
            Which::Selected(selector) => vec!["--selector".to_owned(), selector.clone()],
            Which::Named(names) => names.clone(),
        };
        self.step(format!("let localnet serve {self}"), objects, format!("{key}={value}"))
    }

    /// The step that lets kube-proxy serve the Services again. If no names are given, it leaves Services alone whose label has another
    /// value.
    pub fn remove(&self) -> Step {
        let Label { key, value } = &self.label;
        let objects = match &self.which {
            Which::All => vec!["--selector".to_owned(), format!("{key}={value}")],
            Which::Selected(selector) => vec!["--selector".to_owned(), format!("{key}={value},{selector}")],
            Which::Named(names) => names.clone(),
        };
        self.step(format!("let kube-proxy serve {self}"), objects, format!("{key}-"))
    }

    fn step(&self, purpose: String, objects: Vec<String>, label: String) -> Step {
        let fixed = ["--namespace", &self.namespace, "label", "services"].map(str::to_owned);
        let arguments = self.flags.iter().cloned().chain(fixed).chain(objects).chain([label]).collect();
        Step { purpose, arguments, repeats: false }
    }
}

impl std::fmt::Display for Services {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.which {
            Which::All => write!(f, "all Services of namespace {}", self.namespace),
            Which::Selected(selector) => write!(f, "the Services of namespace {} with {selector}", self.namespace),
            Which::Named(names) => write!(f, "{} of namespace {}", names.join(", "), self.namespace),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_move_by_namespace_selector_or_name() {
        let services = |which| Services {
            flags: vec!["--context=west".to_owned()],
            namespace: "shop".to_owned(),
            which,
            label: "proxy=localnet".parse().unwrap(),
        };
        for (which, purpose, add, remove) in [
            (
                Which::All,
                "let localnet serve all Services of namespace shop",
                "--all proxy=localnet",
                "--selector proxy=localnet proxy-",
            ),
            (
                Which::Selected("tier!=back".to_owned()),
                "let localnet serve the Services of namespace shop with tier!=back",
                "--selector 'tier!=back' proxy=localnet",
                "--selector 'proxy=localnet,tier!=back' proxy-",
            ),
            (
                Which::Named(vec!["web".to_owned(), "api".to_owned()]),
                "let localnet serve web, api of namespace shop",
                "web api proxy=localnet",
                "web api proxy-",
            ),
        ] {
            let services = services(which);
            let command = |rest: &str| format!("kubectl --context=west --namespace shop label services {rest}");
            assert_eq!((services.add().purpose, services.add().command()), (purpose.to_owned(), command(add)));
            assert_eq!(services.remove().command(), command(remove));
        }
    }

    #[test]
    fn a_label_has_a_key_and_a_value() {
        assert!("proxy=localnet".parse::<Label>().is_ok());
        for text in ["proxy", "proxy=", "=localnet", "proxy==localnet", ""] {
            assert!(text.parse::<Label>().is_err(), "{text}");
        }
    }
}
