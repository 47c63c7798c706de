//! `computenetwork.dll`, the API of Windows' Host Compute Network (HCN), as safe functions: strings in, strings out.
//!
//! ```text
//!  Hcn (calls) ──► dll (unsafe: load, call, free)
//! ```
//!
//! It decides nothing and knows no JSON. The library is loaded at run time, so that a program starts on a Windows that lacks it and can
//! say so. Handles are closed, and strings freed, by the types that own them, on each way out.
//!
//! It also compiles off Windows, where no program links it: the compiler then compares its signatures with those of `windows-sys`.

mod dll;

use std::{error, fmt};

use dll::{Functions, Handle, Library, Text};

/// What there is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `HCN_NETWORK`
    Network,
    /// `HCN_ENDPOINT`
    Endpoint,
    /// `HCN_LOADBALANCER`
    LoadBalancer,
}

/// A call that did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The function.
    pub call: &'static str,
    /// The HRESULT. It may be one of success: HNS then only wrote an error record.
    pub hresult: i32,
    /// The error record, JSON as HNS wrote it; may be empty.
    pub record: String,
}

/// The library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// The library.
    pub library: &'static str,
    /// The function that it lacks; `None`: it cannot be loaded at all.
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

/// The API. One thread at a time.
#[derive(Debug)]
pub struct Hcn {
    functions: Functions,
    /// Only asked for HNS's version: the newer API does not tell it. `None` if it cannot be loaded, and why.
    vmcompute: Result<dll::HnsCall, LoadError>,
    // Last, so that they are unloaded last.
    _libraries: [Option<Library>; 2],
}

const COMPUTE_NETWORK: &str = "computenetwork.dll";
const VM_COMPUTE: &str = "vmcompute.dll";

impl Hcn {
    /// Loads the libraries, from Windows' own folder and nowhere else.
    ///
    /// # Errors
    /// `computenetwork.dll` is not there, or lacks a function.
    pub fn load() -> Result<Self, LoadError> {
        let library = Library::load(COMPUTE_NETWORK)?;
        let functions = Functions::find(&library)?;
        let (vmcompute, other) = match Library::load(VM_COMPUTE) {
            Ok(library) => (dll::HnsCall::find(&library), Some(library)),
            Err(error) => (Err(error), None),
        };
        Ok(Self { functions, vmcompute, _libraries: [Some(library), other] })
    }

    /// What `HNSCall("GET", path)` answers: the older API, as JSON.
    ///
    /// # Errors
    /// `Ok(Err(_))`: it failed. `Err(_)`: there is no such API.
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

    /// The identifiers of all objects that a query asks for: JSON.
    ///
    /// # Errors
    /// What HNS says.
    pub fn enumerate(&self, kind: Kind, query: &str) -> Result<String, Failure> {
        let (mut found, mut record) = (Text::default(), Text::default());
        let (call, hresult) = self.functions.enumerate(kind, &wide(query), &mut found, &mut record);
        checked(call, hresult, record)?;
        Ok(found.into_string())
    }

    /// The properties of an object: JSON.
    ///
    /// # Errors
    /// What HNS says; that there is no such object, for one.
    pub fn properties(&self, kind: Kind, id: u128, query: &str) -> Result<String, Failure> {
        self.query(kind, &self.open(kind, id)?, query)
    }

    /// Makes an endpoint; its properties, as HNS has them then.
    ///
    /// # Errors
    /// What HNS says.
    pub fn create_endpoint(&self, network: u128, id: u128, settings: &str, query: &str) -> Result<String, Failure> {
        let network = self.open(Kind::Network, network)?;
        let (mut endpoint, mut record) = (Handle::none(&self.functions, Kind::Endpoint), Text::default());
        let (call, hresult) = self.functions.create_endpoint(&network, id, &wide(settings), &mut endpoint, &mut record);
        checked(call, hresult, record)?;
        self.query(Kind::Endpoint, &endpoint, query)
    }

    /// Makes a load balancer; its properties, as HNS has them then.
    ///
    /// # Errors
    /// What HNS says.
    pub fn create_load_balancer(&self, id: u128, settings: &str, query: &str) -> Result<String, Failure> {
        let (mut made, mut record) = (Handle::none(&self.functions, Kind::LoadBalancer), Text::default());
        let (call, hresult) = self.functions.create_load_balancer(id, &wide(settings), &mut made, &mut record);
        checked(call, hresult, record)?;
        self.query(Kind::LoadBalancer, &made, query)
    }

    /// Gives a load balancer other settings; its properties, as HNS has them then.
    ///
    /// # Errors
    /// What HNS says.
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
    /// What HNS says.
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

/// What is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletable {
    /// `HCN_ENDPOINT`
    Endpoint,
    /// `HCN_LOADBALANCER`
    LoadBalancer,
}

/// A call has failed if it says so or if it wrote an error record, as in kube-proxy.
fn checked(call: &'static str, hresult: i32, record: Text) -> Result<(), Failure> {
    let record = record.into_string();
    if hresult < 0 || !record.is_empty() { Err(Failure { call, hresult, record }) } else { Ok(()) }
}

/// UTF-16 that ends with a zero. A zero within would end it early: there is none in JSON.
fn wide(text: &str) -> Vec<u16> {
    text.encode_utf16().filter(|unit| *unit != 0).chain([0]).collect()
}
