//! [`Subject`]: what a diagnostic concerns.

use std::{borrow::Cow, fmt, net::SocketAddr, path::Path, sync::Arc};

use serde::{Serialize, Serializer};

use super::shown;
use crate::ServiceKey;

/// What a diagnostic concerns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A place in a text, such as a configuration file.
    Text {
        /// The file; `None` while it is unknown.
        file: Option<Arc<Path>>,
        /// The line, from 1; 0 for the text as a whole.
        line: u64,
        /// The object at this line, if there is one.
        object: Option<Box<Object>>,
    },
    /// A flag, named without dashes.
    Flag(&'static str),
    /// An object of the cluster.
    Object(Box<Object>),
    /// An address and port that clients connect to.
    Vip(SocketAddr),
    /// The program itself, which needs no name.
    Program,
}

/// An object, printed as `Service shop/web` or `Node node-a`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Object {
    /// The kind of the object.
    pub kind: Cow<'static, str>,
    /// The namespace; empty if the object has none.
    pub namespace: Arc<str>,
    /// The name; empty if the object has none.
    pub name: Arc<str>,
}

const SERVICE: &str = "Service";

/// Parses the form in which an object is printed.
impl From<&str> for Object {
    fn from(text: &str) -> Self {
        let (kind, name) = text.split_once(' ').unwrap_or((text, ""));
        let (namespace, name) = name.split_once('/').unwrap_or(("", name));
        Self::new(kind.to_owned(), namespace, name)
    }
}

impl Object {
    /// An object of this kind. An empty namespace means that the object has none.
    pub fn new(kind: impl Into<Cow<'static, str>>, namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { kind: kind.into(), namespace: namespace.into(), name: name.into() }
    }

    /// The Service `namespace/name`.
    pub fn service(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self::new(SERVICE, namespace, name)
    }
}

impl Subject {
    /// The Service with this key.
    pub fn service(key: &ServiceKey) -> Self {
        Object::service(Arc::clone(&key.namespace), Arc::clone(&key.name)).into()
    }

    /// The Node with this name.
    pub fn node(name: &str) -> Self {
        Object::new("Node", "", name).into()
    }

    /// A line of a text, from 1; 0 for the text as a whole.
    pub fn text(line: u64) -> Self {
        Self::Text { file: None, line, object: None }
    }

    /// A line of a file, and the object at this line.
    pub fn in_file_of(file: Arc<Path>, line: u64, object: Option<Object>) -> Self {
        Self::Text { file: Some(file), line, object: object.map(Box::new) }
    }

    /// Sets the file of the text to `name`, if the subject is a place in a text.
    #[must_use]
    pub fn in_file(self, name: &Path) -> Self {
        match self {
            Self::Text { line, object, .. } => Self::Text { file: Some(name.into()), line, object },
            other => other,
        }
    }

    /// The subject if it is an object, or the object at the subject's place in a text.
    pub fn object(&self) -> Option<&Object> {
        match self {
            Self::Text { object, .. } => object.as_deref(),
            Self::Object(object) => Some(object),
            Self::Flag(_) | Self::Vip(_) | Self::Program => None,
        }
    }

    /// The key of the Service, if [`object`](Self::object) returns a Service.
    pub fn service_key(&self) -> Option<ServiceKey> {
        let Object { namespace, name, .. } = self.object().filter(|object| object.kind == SERVICE)?;
        Some(ServiceKey { namespace: Arc::clone(namespace), name: Arc::clone(name) })
    }

    /// Whether the subject is printed as an empty string.
    pub fn is_unnamed(&self) -> bool {
        matches!(self, Self::Text { file: None, line: 0, object: None } | Self::Program)
    }
}

impl From<Object> for Subject {
    fn from(object: Object) -> Self {
        Self::Object(Box::new(object))
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text { file, line, object } => {
                match (file, line) {
                    (Some(file), 0) => shown(&file.to_string_lossy()).fmt(f)?,
                    (Some(file), line) => write!(f, "{}:{line}", shown(&file.to_string_lossy()))?,
                    (None, 0) => {}
                    (None, line) => write!(f, "line {line}")?,
                }
                let Some(object) = object else { return Ok(()) };
                let is_first = matches!((file, line), (None, 0));
                write!(f, "{}{object}", if is_first { "" } else { ": " })
            }
            Self::Flag(name) => write!(f, "--{name}"),
            Self::Object(object) => object.fmt(f),
            Self::Vip(vip) => vip.fmt(f),
            Self::Program => Ok(()),
        }
    }
}

impl Serialize for Subject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        shown(&self.kind).fmt(f)?;
        match (&*self.namespace, &*self.name) {
            ("", "") => Ok(()),
            ("", name) => write!(f, " {}", shown(name)),
            (namespace, name) => write!(f, " {}/{}", shown(namespace), shown(name)),
        }
    }
}
