//! `computenetwork.dll`, the API of Windows' Host Compute Network (HCN), as safe functions that take and return strings.
//!
//! ```text
//!  Hcn (calls) ──► dll (unsafe: load, call, free)
//! ```
//!
//! This crate makes no decisions and does not parse JSON. It loads the library at run time. If Windows lacks the
//! library, a program can therefore still start and report this. Handles and strings belong to types that close or free them on
//! every path.
//!
//! It also compiles on other systems, where no program links it: the compiler then compares its signatures with those of
//! `windows-sys`.

mod dll;

use std::{error, fmt};

use dll::{Functions, Handle, Library, Text};

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A network, `HCN_NETWORK`.
    Network,
    /// An endpoint, `HCN_ENDPOINT`.
    Endpoint,
    /// A load balancer, `HCN_LOADBALANCER`.
    LoadBalancer,
}

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The name of the function.
    pub call: &'static str,
    /// The HRESULT. It may mean success, because a call also counts as failed if HNS writes an error record.
    pub hresult: i32,
    /// The error record, JSON as HNS wrote it; may be empty.
    pub record: String,
}

/// The error for a library that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// The name of the library.
    pub library: &'static str,
    /// The function that the library lacks; `None` if the library cannot be loaded.
    pub function: Option<&'static str>,
    /// The system's error code.
    pub code: u32,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { library, function, code } = self;
        match function {
            Some(function) => write!(f, "{library} has no function {function}: this Windows is too old (error {code})"),
            None => {
                write!(f, "{library} cannot be loaded: is the Containers feature of Windows installed? (error {code})")
            }
        }
    }
}

impl error::Error for LoadError {}

/// The API. Only one thread may use it at a time.
#[derive(Debug)]
pub struct Hcn {
    functions: Functions,
    /// The older API, or the error if it cannot be loaded. It is used only to read the version of HNS, which the newer API does
    /// not return.
    vmcompute: Result<dll::HnsCall, LoadError>,
    // This is the last field, so that the libraries are unloaded after all other fields are dropped.
    _libraries: [Option<Library>; 2],
}

const COMPUTE_NETWORK: &str = "computenetwork.dll";
const VM_COMPUTE: &str = "vmcompute.dll";

impl Hcn {
    /// Loads the libraries from Windows' own folder only.
    ///
    /// # Errors
    /// Returns an error if `computenetwork.dll` is missing or lacks a function.
    pub fn load() -> Result<Self, LoadError> {
        let library = Library::load(COMPUTE_NETWORK)?;
        let functions = Functions::find(&library)?;
        let (vmcompute, other) = match Library::load(VM_COMPUTE) {
            Ok(library) => (dll::HnsCall::find(&library), Some(library)),
            Err(error) => (Err(error), None),
        };
        Ok(Self { functions, vmcompute, _libraries: [Some(library), other] })
    }

    /// Returns the answer of `HNSCall("GET", path)` in the older API, as JSON.
    ///
    /// # Errors
    /// Returns `Ok(Err(_))` if the call fails, and `Err(_)` if the API is missing.
    pub fn get(&self, path: &str) -> Result<Result<String, Failure>, LoadError> {
        let call = self.vmcompute.as_ref().map_err(Clone::clone)?;
        let mut response = Text::default();
        let hresult = call.call(&wide("GET"), &wide(path), &wide(""), &mut response);
        Ok(if hresult < 0 {
            Err(Failure { call: "HNSCall", hresult, record: response.into_string() })
        } else {
            Ok(response.into_string())
        })
    }

    /// Returns the identifiers of the objects that match a query, as JSON.
    ///
    /// # Errors
    /// Returns the error of HNS if the call fails.
    pub fn enumerate(&self, kind: Kind, query: &str) -> Result<String, Failure> {
        let (mut found, mut record) = (Text::default(), Text::default());
        let (call, hresult) = self.functions.enumerate(kind, &wide(query), &mut found, &mut record);
        checked(call, hresult, record)?;
        Ok(found.into_string())
    }

    /// Returns the properties of an object, as JSON.
    ///
    /// # Errors
    /// Returns the error of HNS, for example if the object does not exist.
    pub fn properties(&self, kind: Kind, id: u128, query: &str) -> Result<String, Failure> {
        self.query(kind, &self.open(kind, id)?, query)
    }

    /// Creates an endpoint and returns its properties.
    ///
    /// # Errors
    /// Returns the error of HNS if a call fails.
    pub fn create_endpoint(&self, network: u128, id: u128, settings: &str, query: &str) -> Result<String, Failure> {
        let network = self.open(Kind::Network, network)?;
        let (mut endpoint, mut record) = (Handle::none(&self.functions, Kind::Endpoint), Text::default());
        let (call, hresult) = self.functions.create_endpoint(&network, id, &wide(settings), &mut endpoint, &mut record);
        checked(call, hresult, record)?;
        self.query(Kind::Endpoint, &endpoint, query)
    }

    /// Creates a load balancer and returns its properties.
    ///
    /// # Errors
    /// Returns the error of HNS if a call fails.
    pub fn create_load_balancer(&self, id: u128, settings: &str, query: &str) -> Result<String, Failure> {
        let (mut made, mut record) = (Handle::none(&self.functions, Kind::LoadBalancer), Text::default());
        let (call, hresult) = self.functions.create_load_balancer(id, &wide(settings), &mut made, &mut record);
        checked(call, hresult, record)?;
        self.query(Kind::LoadBalancer, &made, query)
    }

    /// Changes the settings of a load balancer and returns its properties.
    ///
    /// # Errors
    /// Returns the error of HNS if a call fails.
    pub fn modify_load_balancer(&self, id: u128, settings: &str, query: &str) -> Result<String, Failure> {
        let open = self.open(Kind::LoadBalancer, id)?;
        let mut record = Text::default();
        let (call, hresult) = self.functions.modify_load_balancer(&open, &wide(settings), &mut record);
        checked(call, hresult, record)?;
        self.query(Kind::LoadBalancer, &open, query)
    }

    /// Deletes an object. Networks are never deleted.
    ///
    /// # Errors
    /// Returns the error of HNS if the call fails.
    pub fn delete(&self, kind: Deletable, id: u128) -> Result<(), Failure> {
        let mut record = Text::default();
        let (call, hresult) = self.functions.delete(kind, id, &mut record);
        checked(call, hresult, record)
    }

    fn open(&self, kind: Kind, id: u128) -> Result<Handle<'_>, Failure> {
        let (mut handle, mut record) = (Handle::none(&self.functions, kind), Text::default());
        let (call, hresult) = self.functions.open(id, &mut handle, &mut record);
        checked(call, hresult, record)?;
        Ok(handle)
    }

    fn query(&self, kind: Kind, handle: &Handle<'_>, query: &str) -> Result<String, Failure> {
        let (mut properties, mut record) = (Text::default(), Text::default());
        let (call, hresult) = self.functions.query(kind, handle, &wide(query), &mut properties, &mut record);
        checked(call, hresult, record)?;
        Ok(properties.into_string())
    }
}

/// The kind of an object that can be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletable {
    /// An endpoint, `HCN_ENDPOINT`.
    Endpoint,
    /// A load balancer, `HCN_LOADBALANCER`.
    LoadBalancer,
}

/// Returns an error if a call has failed: its HRESULT is an error, or it wrote an error record. kube-proxy uses the same rule.
fn checked(call: &'static str, hresult: i32, record: Text) -> Result<(), Failure> {
    let record = record.into_string();
    if hresult < 0 || !record.is_empty() { Err(Failure { call, hresult, record }) } else { Ok(()) }
}

/// Converts a text to UTF-16 with a final zero. A zero within the text would end it early, so zeros are removed; JSON contains
/// none.
fn wide(text: &str) -> Vec<u16> {
    text.encode_utf16().filter(|unit| *unit != 0).chain([0]).collect()
}
