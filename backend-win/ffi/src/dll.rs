//! The unsafe part: it loads libraries, calls functions, closes handles and frees strings.
//!
//! Each function of the API is a field of [`Functions`]. The field has the type that `windows-sys` declares for the function;
//! `Functions::declared` lets the compiler compare the two types. The function is loaded by the name that `windows-sys` declares.

#![expect(unsafe_code, reason = "functions of a library that is written in another language are called")]

use std::{ffi::c_void, fmt, mem, ptr};

use windows_sys::{
    Win32::{
        Foundation::{FARPROC, FreeLibrary, GetLastError, HMODULE},
        System::{
            Com::CoTaskMemFree,
            HostComputeNetwork as hcn,
            LibraryLoader::{GetProcAddress, LOAD_LIBRARY_SEARCH_SYSTEM32, LoadLibraryExW},
        },
    },
    core::{GUID, HRESULT, PCWSTR, PWSTR},
};

use crate::{Deletable, Kind, LoadError};

/// A loaded library. It is unloaded when dropped.
#[derive(Debug)]
pub(crate) struct Library {
    name: &'static str,
    module: HMODULE,
}

// SAFETY: the handle of a module is an address that is the same in all threads of the process.
unsafe impl Send for Library {}

impl Library {
    /// Loads a library from Windows' own folder.
    pub(crate) fn load(name: &'static str) -> Result<Self, LoadError> {
        let wide = crate::wide(name);
        // SAFETY: the name is UTF-16 and ends with a zero; the second argument is reserved and must be null. The library comes
        // from the system's folder only, so the code that runs during the load is part of Windows.
        let module = unsafe { LoadLibraryExW(wide.as_ptr(), ptr::null_mut(), LOAD_LIBRARY_SEARCH_SYSTEM32) };
        if module.is_null() {
            Err(LoadError { library: name, function: None, code: last_error() })
        } else {
            Ok(Self { name, module })
        }
    }

    /// Returns the address of a function. `name` ends with a zero byte.
    fn function(&self, name: &'static str) -> Result<unsafe extern "system" fn() -> isize, LoadError> {
        debug_assert!(name.ends_with('\0'), "{name}");
        // SAFETY: the module is loaded for as long as `self` lives, and the name ends with a zero byte.
        let found: FARPROC = unsafe { GetProcAddress(self.module, name.as_ptr()) };
        found.ok_or_else(|| LoadError {
            library: self.name,
            function: Some(name.trim_end_matches('\0')),
            code: last_error(),
        })
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: `load` loaded the module once, and it is released once here. No function of the library is called after this:
        // `Hcn` owns the functions and the library, drops the functions first, and outlives all borrows of the functions.
        unsafe { FreeLibrary(self.module) };
    }
}

fn last_error() -> u32 {
    // SAFETY: the call only reads the error code of this thread.
    unsafe { GetLastError() }
}

type Enumerate = unsafe extern "system" fn(PCWSTR, *mut PWSTR, *mut PWSTR) -> HRESULT;
type Open = unsafe extern "system" fn(*const GUID, *mut *mut c_void, *mut PWSTR) -> HRESULT;
type Query = unsafe extern "system" fn(*const c_void, PCWSTR, *mut PWSTR, *mut PWSTR) -> HRESULT;
type Close = unsafe extern "system" fn(*const c_void) -> HRESULT;
type CreateIn = unsafe extern "system" fn(*const c_void, *const GUID, PCWSTR, *mut *mut c_void, *mut PWSTR) -> HRESULT;
type Create = unsafe extern "system" fn(*const GUID, PCWSTR, *mut *mut c_void, *mut PWSTR) -> HRESULT;
type Modify = unsafe extern "system" fn(*const c_void, PCWSTR, *mut PWSTR) -> HRESULT;
type Delete = unsafe extern "system" fn(*const GUID, *mut PWSTR) -> HRESULT;

macro_rules! functions {
    ($($field:ident: $kind:ty = $name:ident),+ $(,)?) => {
        /// The functions of the API.
        pub(crate) struct Functions {
            $($field: $kind,)+
        }

        impl Functions {
            /// Finds all functions in the library.
            pub(crate) fn find(library: &Library) -> Result<Self, LoadError> {
                $(
                    let found = library.function(concat!(stringify!($name), "\0"))?;
                    // SAFETY: `found` is the function with that name. `declared` makes the compiler check that it has this type.
                    let $field = unsafe { mem::transmute::<unsafe extern "system" fn() -> isize, $kind>(found) };
                )+
                Ok(Self { $($field,)+ })
            }

            /// The functions as `windows-sys` declares them. Nothing calls `declared`, since that would link the library.
            #[expect(dead_code, reason = "it is compiled, which is all that it is for")]
            fn declared() -> Self {
                Self { $($field: hcn::$name,)+ }
            }
        }
    };
}

functions! {
    enumerate_networks: Enumerate = HcnEnumerateNetworks,
    enumerate_endpoints: Enumerate = HcnEnumerateEndpoints,
    enumerate_load_balancers: Enumerate = HcnEnumerateLoadBalancers,
    open_network: Open = HcnOpenNetwork,
    open_endpoint: Open = HcnOpenEndpoint,
    open_load_balancer: Open = HcnOpenLoadBalancer,
    query_network: Query = HcnQueryNetworkProperties,
    query_endpoint: Query = HcnQueryEndpointProperties,
    query_load_balancer: Query = HcnQueryLoadBalancerProperties,
    close_network: Close = HcnCloseNetwork,
    close_endpoint: Close = HcnCloseEndpoint,
    close_load_balancer: Close = HcnCloseLoadBalancer,
    create_endpoint: CreateIn = HcnCreateEndpoint,
    create_load_balancer: Create = HcnCreateLoadBalancer,
    modify_load_balancer: Modify = HcnModifyLoadBalancer,
    delete_endpoint: Delete = HcnDeleteEndpoint,
    delete_load_balancer: Delete = HcnDeleteLoadBalancer,
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Functions").finish_non_exhaustive()
    }
}

// All calls below have this in common: the function has the name of its field and its library is loaded (see `Library`); input
// texts are UTF-16 with a final zero and outlive the call; each output pointer points to an empty field of a `Text` or
// `Handle`, which no other code uses during the call and which owns the output.
impl Functions {
    pub(crate) fn enumerate(
        &self,
        kind: Kind,
        query: &[u16],
        found: &mut Text,
        record: &mut Text,
    ) -> (&'static str, HRESULT) {
        let (name, function) = match kind {
            Kind::Network => ("HcnEnumerateNetworks", self.enumerate_networks),
            Kind::Endpoint => ("HcnEnumerateEndpoints", self.enumerate_endpoints),
            Kind::LoadBalancer => ("HcnEnumerateLoadBalancers", self.enumerate_load_balancers),
        };
        // SAFETY: as described above.
        (name, unsafe { function(query.as_ptr(), &mut found.0, &mut record.0) })
    }

    pub(crate) fn open(&self, id: u128, handle: &mut Handle<'_>, record: &mut Text) -> (&'static str, HRESULT) {
        let (name, function) = match handle.kind {
            Kind::Network => ("HcnOpenNetwork", self.open_network),
            Kind::Endpoint => ("HcnOpenEndpoint", self.open_endpoint),
            Kind::LoadBalancer => ("HcnOpenLoadBalancer", self.open_load_balancer),
        };
        // SAFETY: as described above; the identifier outlives the call, and the handle is of the kind that the function opens.
        (name, unsafe { function(&GUID::from_u128(id), &mut handle.raw, &mut record.0) })
    }

    pub(crate) fn query(
        &self,
        kind: Kind,
        handle: &Handle<'_>,
        query: &[u16],
        properties: &mut Text,
        record: &mut Text,
    ) -> (&'static str, HRESULT) {
        let (name, function) = match kind {
            Kind::Network => ("HcnQueryNetworkProperties", self.query_network),
            Kind::Endpoint => ("HcnQueryEndpointProperties", self.query_endpoint),
            Kind::LoadBalancer => ("HcnQueryLoadBalancerProperties", self.query_load_balancer),
        };
        debug_assert_eq!(kind, handle.kind);
        // SAFETY: as described above; the handle is open, and of the kind that the function takes.
        (name, unsafe { function(handle.raw, query.as_ptr(), &mut properties.0, &mut record.0) })
    }

    pub(crate) fn create_endpoint(
        &self,
        network: &Handle<'_>,
        id: u128,
        settings: &[u16],
        made: &mut Handle<'_>,
        record: &mut Text,
    ) -> (&'static str, HRESULT) {
        let (id, function) = (GUID::from_u128(id), self.create_endpoint);
        debug_assert_eq!((network.kind, made.kind), (Kind::Network, Kind::Endpoint));
        // SAFETY: as described above; the handle is an open network, the output is an endpoint, and the identifier outlives the
        // call.
        ("HcnCreateEndpoint", unsafe { function(network.raw, &id, settings.as_ptr(), &mut made.raw, &mut record.0) })
    }

    pub(crate) fn create_load_balancer(
        &self,
        id: u128,
        settings: &[u16],
        made: &mut Handle<'_>,
        record: &mut Text,
    ) -> (&'static str, HRESULT) {
        let (id, function) = (GUID::from_u128(id), self.create_load_balancer);
        debug_assert_eq!(made.kind, Kind::LoadBalancer);
        // SAFETY: as described above; the output is a load balancer, and the identifier outlives the call.
        ("HcnCreateLoadBalancer", unsafe { function(&id, settings.as_ptr(), &mut made.raw, &mut record.0) })
    }

    pub(crate) fn modify_load_balancer(
        &self,
        open: &Handle<'_>,
        settings: &[u16],
        record: &mut Text,
    ) -> (&'static str, HRESULT) {
        let function = self.modify_load_balancer;
        debug_assert_eq!(open.kind, Kind::LoadBalancer);
        // SAFETY: as described above; the handle is an open load balancer.
        ("HcnModifyLoadBalancer", unsafe { function(open.raw, settings.as_ptr(), &mut record.0) })
    }

    pub(crate) fn delete(&self, kind: Deletable, id: u128, record: &mut Text) -> (&'static str, HRESULT) {
        let (name, function) = match kind {
            Deletable::Endpoint => ("HcnDeleteEndpoint", self.delete_endpoint),
            Deletable::LoadBalancer => ("HcnDeleteLoadBalancer", self.delete_load_balancer),
        };
        // SAFETY: as described above; the identifier outlives the call.
        (name, unsafe { function(&GUID::from_u128(id), &mut record.0) })
    }

    fn close(&self, kind: Kind, raw: *mut c_void) {
        let function = match kind {
            Kind::Network => self.close_network,
            Kind::Endpoint => self.close_endpoint,
            Kind::LoadBalancer => self.close_load_balancer,
        };
        // SAFETY: the handle is open, and `function` closes handles of its kind. The handle is not used again, because only the
        // `drop` of its owner calls `close`.
        unsafe { function(raw) };
    }
}

/// A handle. It is closed when dropped.
pub(crate) struct Handle<'a> {
    functions: &'a Functions,
    kind: Kind,
    /// Null until a function of the API has written it.
    raw: *mut c_void,
}

impl<'a> Handle<'a> {
    pub(crate) fn none(functions: &'a Functions, kind: Kind) -> Self {
        Self { functions, kind, raw: ptr::null_mut() }
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            self.functions.close(self.kind, self.raw);
        }
    }
}

/// A string of the API. It is freed when dropped.
pub(crate) struct Text(PWSTR);

impl Default for Text {
    fn default() -> Self {
        Self(ptr::null_mut())
    }
}

impl Text {
    /// Converts the string to a `String`. Invalid UTF-16 becomes replacement characters.
    pub(crate) fn into_string(self) -> String {
        if self.0.is_null() {
            return String::new();
        }
        let length = (0..).take_while(|at| self.unit(*at) != 0).count();
        // SAFETY: `length` units before the zero were just read one by one. They are freed when `self` is dropped, after the
        // last use here, and no code writes to them.
        String::from_utf16_lossy(unsafe { std::slice::from_raw_parts(self.0, length) })
    }

    /// Returns the UTF-16 unit at an index. All units before it must be non-zero.
    fn unit(&self, at: usize) -> u16 {
        // SAFETY: the text ends with a zero, and no unit before this one is zero, so this unit is part of the text.
        let unit = unsafe { self.0.add(at) };
        // SAFETY: as described above; units are aligned, because the API returns a pointer to `WCHAR`.
        unsafe { unit.read() }
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        // SAFETY: the API allocates its strings with `CoTaskMemAlloc`. The caller must free them, and this call does so once.
        // Null is allowed.
        unsafe { CoTaskMemFree(self.0.cast()) };
    }
}

type HnsCallFunction = unsafe extern "system" fn(PCWSTR, PCWSTR, PCWSTR, *mut PWSTR) -> HRESULT;

/// The function `HNSCall` of `vmcompute.dll`. No header declares it; Microsoft's Go library for HNS calls it with this
/// signature.
pub(crate) struct HnsCall(HnsCallFunction);

impl HnsCall {
    pub(crate) fn find(library: &Library) -> Result<Self, LoadError> {
        let found = library.function("HNSCall\0")?;
        // SAFETY: `found` is the function with that name, and `HnsCallFunction` is its type.
        Ok(Self(unsafe { mem::transmute::<unsafe extern "system" fn() -> isize, HnsCallFunction>(found) }))
    }

    pub(crate) fn call(&self, method: &[u16], path: &[u16], object: &[u16], response: &mut Text) -> HRESULT {
        // SAFETY: the library is loaded; the texts end with a zero and outlive the call; the response is empty and owns the
        // output.
        unsafe { (self.0)(method.as_ptr(), path.as_ptr(), object.as_ptr(), &mut response.0) }
    }
}

impl fmt::Debug for HnsCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HnsCall")
    }
}
