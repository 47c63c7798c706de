//! The failures of a watch, and their remedies.

use std::error::Error;

use kube::{client::AuthError, core::Status};
use localnet_core::Code;

use localnet_cluster::objects::Kind;

/// A reason why a kind cannot be watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The API server does not answer.
    Unreachable(String),
    /// There are no credentials for the request.
    NoCredentials(String),
    /// The API server does not accept the credentials (401).
    Unauthorized,
    /// The API server does not allow the request (403).
    Forbidden { verb: &'static str },
    /// The API server does not have the kind (404).
    Unknown,
    /// The history of the API server does not contain the last known version (410). The kind has to be listed again.
    Outdated,
    /// The API server answers with another error, or with an invalid document.
    Failing(String),
    /// The stream of changes has broken off.
    Interrupted(String),
    /// The stream of changes is open, but did not deliver a change to the object of this name.
    Silent(String),
}

/// There are no credentials for a request.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct NoCredentials(pub(super) String);

impl Trouble {
    pub(super) fn of_request(verb: &'static str, error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(verb, status),
            kube::Error::SerdeError(_) => Self::Failing(cause(error)),
            kube::Error::Auth(error) => Self::NoCredentials(plugin(error)),
            kube::Error::Service(error) => match (error.downcast_ref(), error.downcast_ref::<NoCredentials>()) {
                (Some(error), _) => Self::NoCredentials(plugin(error)),
                (_, Some(error)) => Self::NoCredentials(one_line(&error.to_string())),
                (None, None) => Self::Unreachable(cause(&**error)),
            },
            _ => Self::Unreachable(cause(error)),
        }
    }

    pub(super) fn of_status(verb: &'static str, status: &Status) -> Self {
        match status.code {
            401 => Self::Unauthorized,
            403 => Self::Forbidden { verb },
            404 => Self::Unknown,
            410 => Self::Outdated,
            // The server was restored from a backup, and has not reached the last known version again.
            504 if status.message.contains("Too large resource version") => Self::Outdated,
            code => Self::Failing(one_line(&format!("{} ({code})", status.message))),
        }
    }

    /// The code of the trouble.
    pub(super) fn code(&self) -> Code {
        match self {
            Self::Unreachable(_) => Code::ApiUnreachable,
            Self::NoCredentials(_) => Code::ApiCredentialsMissing,
            Self::Unauthorized => Code::ApiUnauthorized,
            Self::Forbidden { .. } => Code::ApiForbidden,
            Self::Unknown => Code::ApiResourceUnknown,
            Self::Failing(_) => Code::ApiFails,
            Self::Outdated | Self::Interrupted(_) | Self::Silent(_) => Code::WatchFails,
        }
    }

    /// Whether the API server refuses the field selector because it does not know the field.
    pub(super) fn is_unknown_field(&self) -> bool {
        let refused = ["is not a known field selector", "field label not supported"];
        matches!(self, Self::Failing(why) if why.ends_with("(400)") && refused.iter().any(|text| why.contains(text)))
    }

    /// Whether the trouble affects the watches of all kinds.
    pub(super) fn is_of_all_kinds(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::NoCredentials(_))
    }

    /// One line for the log, with the problem, the URL and the remedy.
    pub(super) fn describe(&self, kind: Kind, url: &str) -> String {
        let resource = resource(kind);
        match self {
            Self::Unreachable(why) => {
                format!(
                    "the API server at {url} cannot be reached: {why}; check that it runs and that its address is correct"
                )
            }
            Self::NoCredentials(why) => format!(
                "there are no credentials for the API server at {url}: {why}; repair the program that the kubeconfig names under exec, or choose another user in the kubeconfig"
            ),
            Self::Unauthorized => {
                format!("the API server at {url} does not accept the credentials; renew the token or the certificate")
            }
            Self::Forbidden { verb } => format!(
                "the API server at {url} does not allow this account to {verb} {resource}; grant the verbs list and watch on {resource} (the ClusterRole system:node-proxier has all required rules)"
            ),
            Self::Unknown => format!("the API server at {url} has no {resource}; use a server that has them"),
            Self::Outdated => format!(
                "the API server at {url} has forgotten the {resource} that it has just listed (410); check its log and that of etcd: the history may be compacted too often"
            ),
            Self::Failing(why) => {
                format!("the API server at {url} fails to serve {resource}: {why}; check its log")
            }
            Self::Interrupted(why) => format!(
                "the API server at {url} ends each watch of {resource} at once: {why}; check its log, and the proxies and load balancers in between"
            ),
            Self::Silent(name) => format!(
                "the API server at {url} does not deliver changes of {resource} (for instance of {name}), so the brain lists {resource} every few minutes; check its log, and the proxies and load balancers in between"
            ),
        }
    }
}

/// Describes the failure of a credential plugin. The description contains at most the first line of the plugin's standard
/// error, because the error text of the crate `kube` contains the plugin's whole output, which may be secret.
pub(super) fn plugin(error: &AuthError) -> String {
    match error {
        AuthError::AuthExecRun { out, .. } => {
            let stderr = String::from_utf8_lossy(&out.stderr);
            let stderr = stderr.trim();
            match stderr {
                "" => format!("it ended with {}", out.status),
                stderr => format!("it ended with {}: {}", out.status, one_line(stderr)),
            }
        }
        AuthError::AuthExecStart(error) => format!("it cannot be started: {error}"),
        AuthError::AuthExecParse(_) => "it has not written an ExecCredential".to_owned(),
        AuthError::ExecPluginFailed => "the ExecCredential that it has written has no status".to_owned(),
        error => cause(error),
    }
}

/// The name of a kind in RBAC rules and in `kubectl`.
pub(super) fn resource(kind: Kind) -> &'static str {
    match kind {
        Kind::Service => "services",
        Kind::Slice => "endpointslices.discovery.k8s.io",
        Kind::Node => "nodes",
        Kind::ServiceCidr => "servicecidrs.networking.k8s.io",
    }
}

/// The label of a kind's undecodable objects in [`Troubles`](crate::metrics::Troubles).
pub(super) fn unreadable(kind: Kind) -> &'static str {
    match kind {
        Kind::Service => "unreadable services",
        Kind::Slice => "unreadable endpointslices.discovery.k8s.io",
        Kind::Node => "unreadable nodes",
        Kind::ServiceCidr => "unreadable servicecidrs.networking.k8s.io",
    }
}

/// The error and its sources, on one line and without repetitions.
pub(super) fn cause(error: &dyn Error) -> String {
    let mut text = one_line(&error.to_string());
    let mut source = error.source();
    while let Some(error) = source {
        let more = one_line(&error.to_string());
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16, message: &str) -> kube::Error {
        kube::Error::Api(Status { code, message: message.to_owned(), ..Status::default() }.boxed())
    }

    fn request(verb: &'static str, code: u16, message: &str) -> Trouble {
        Trouble::of_request(verb, &status(code, message))
    }

    #[track_caller]
    fn check(trouble: &Trouble, expected: &Trouble, words: &[&str]) {
        assert_eq!(trouble, expected);
        let text = trouble.describe(Kind::Slice, "https://api:6443");
        for word in words {
            assert!(text.contains(word), "{word:?} is missing in {text:?}");
        }
        assert!(!text.contains('\n'));
    }

    #[test]
    fn each_description_has_the_problem_the_url_and_the_remedy() {
        let refused = Trouble::of_request("list", &kube::Error::Service("connection refused\nand more".into()));
        let interrupted = Trouble::Interrupted("reset".to_owned());
        let rows = [
            (request("list", 401, ""), Trouble::Unauthorized, ["https://api:6443", "credentials", "renew"]),
            (
                request("list", 403, "no"),
                Trouble::Forbidden { verb: "list" },
                ["list endpointslices.discovery.k8s.io", "list and watch", "system:node-proxier"],
            ),
            (
                request("watch", 403, "no"),
                Trouble::Forbidden { verb: "watch" },
                ["allow this account to watch", "grant", "https"],
            ),
            (request("list", 404, ""), Trouble::Unknown, ["has no endpointslices", "https", "use"]),
            (request("watch", 410, ""), Trouble::Outdated, ["has forgotten", "https", "compacted"]),
            (request("watch", 504, "Too large resource version: 9"), Trouble::Outdated, ["410", "check", "log"]),
            (
                request("list", 500, "etcd\nis unavailable"),
                Trouble::Failing("etcd\nis unavailable (500)".lines().next().unwrap().to_owned()),
                ["etcd", "https", "log"],
            ),
            (
                refused,
                Trouble::Unreachable("connection refused".to_owned()),
                ["https://api:6443 cannot be reached", "refused", "check"],
            ),
            (interrupted.clone(), interrupted, ["reset", "https", "load balancers"]),
            (
                Trouble::Silent("web".to_owned()),
                Trouble::Silent("web".to_owned()),
                ["instance of web", "https", "load balancers"],
            ),
        ];
        for (trouble, expected, words) in rows {
            check(&trouble, &expected, &words);
        }
    }
}
