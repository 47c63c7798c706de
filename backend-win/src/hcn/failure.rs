//! The errors of HNS and their meanings.

use std::fmt;

use serde_json::Value;

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The name of the function.
    pub call: &'static str,
    /// The HRESULT. It may be a success: a call also fails if HNS writes an error record.
    pub hresult: i32,
    /// The error record as HNS wrote it. It should be JSON but may be empty or anything else.
    pub record: String,
}

/// The meaning of a failure for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The object, or an object that the document refers to, does not exist.
    NotFound,
    /// The identifier, or a port of the load balancer, is taken.
    Exists,
    /// This HNS does not support the request.
    Unsupported,
    /// HNS refuses the document. A retry cannot succeed.
    Invalid,
    /// The caller lacks the privilege.
    Denied,
    /// HNS does not answer: it is starting or stopped.
    Unavailable,
    /// Another object uses this object.
    InUse,
    /// Any other failure.
    Other,
}

/// The codes of each meaning, from `winerror.h`. System error codes are HRESULTs of facility 7.
const MEANINGS: &[(Reason, &[u32])] = &[
    (
        Reason::NotFound,
        // ERROR_NOT_FOUND, ERROR_FILE_NOT_FOUND; HCN_E_…_NOT_FOUND of network, endpoint, layer, switch, subnet, adapter, port,
        // policy
        &[
            0x8007_0490,
            0x8007_0002,
            0x803b_0001,
            0x803b_0002,
            0x803b_0003,
            0x803b_0004,
            0x803b_0005,
            0x803b_0006,
            0x803b_0007,
            0x803b_0008,
        ],
    ),
    // HCN_E_…_ALREADY_EXISTS of network, layer, policy, port; ERROR_ALREADY_EXISTS, ERROR_OBJECT_ALREADY_EXISTS
    (Reason::Exists, &[0x803b_0010, 0x803b_0011, 0x803b_0012, 0x803b_0013, 0x8007_00b7, 0x8007_1392]),
    // E_NOTIMPL, ERROR_NOT_SUPPORTED, ERROR_CALL_NOT_IMPLEMENTED, HCN_E_REQUEST_UNSUPPORTED, HCN_E_MAPPING_NOT_SUPPORTED
    (Reason::Unsupported, &[0x8000_4001, 0x8007_0032, 0x8007_0078, 0x803b_0015, 0x803b_0016]),
    (
        Reason::Invalid,
        // E_INVALIDARG; HCN_E_INVALID_… with NETWORK, NETWORK_TYPE, ENDPOINT, POLICY, POLICY_TYPE, REMOTE_ENDPOINT_OPERATION;
        // HCN_E_GUID_CONVERSION_FAILURE; HCN_E_INVALID_… with JSON, JSON_REFERENCE, IP, INTERNAL_PORT;
        // HCN_E_ADDR_INVALID_OR_RESERVED; HCN_E_INVALID_… with PREFIX, SUBNET, IP_SUBNET
        &[
            0x8007_0057,
            0x803b_000a,
            0x803b_000b,
            0x803b_000c,
            0x803b_000d,
            0x803b_000e,
            0x803b_000f,
            0x803b_0019,
            0x803b_001b,
            0x803b_001c,
            0x803b_001e,
            0x803b_002d,
            0x803b_002f,
            0x803b_0030,
            0x803b_0032,
            0x803b_0033,
        ],
    ),
    // E_ACCESSDENIED, ERROR_PRIVILEGE_NOT_HELD
    (Reason::Denied, &[0x8007_0005, 0x8007_0522]),
    // HCN_E_MANAGER_STOPPED, ERROR_SERVICE_NOT_ACTIVE, RPC_S_UNKNOWN_IF, RPC_S_SERVER_UNAVAILABLE, RPC_S_CALL_FAILED,
    // RPC_S_CALL_FAILED_DNE, EPT_S_NOT_REGISTERED
    (Reason::Unavailable, &[0x803b_0020, 0x8007_0426, 0x8007_06b5, 0x8007_06ba, 0x8007_06be, 0x8007_06bf, 0x8007_06d9]),
    // HCN_E_ENTITY_HAS_REFERENCES
    (Reason::InUse, &[0x803b_002c]),
];

impl Failure {
    /// Creates the failure of a call.
    pub fn new(call: &'static str, hresult: u32, record: impl Into<String>) -> Self {
        Self { call, hresult: hresult.cast_signed(), record: record.into() }
    }

    /// Returns the meaning of the failure. If the HRESULT means success, the meaning follows from the error record.
    pub fn reason(&self) -> Reason {
        let code = if self.hresult < 0 { Some(self.hresult) } else { self.recorded_code() };
        let Some(code) = code.map(i32::cast_unsigned) else { return Reason::Other };
        MEANINGS.iter().find(|(_, codes)| codes.contains(&code)).map_or(Reason::Other, |(reason, _)| *reason)
    }

    fn record(&self) -> Option<Value> {
        serde_json::from_str(&self.record).ok()
    }

    /// The code in the record. HNS writes an HRESULT as a signed or unsigned number.
    fn recorded_code(&self) -> Option<i32> {
        let code = self.record()?.get("ErrorCode")?.as_i64()?;
        i32::try_from(code).ok().or_else(|| u32::try_from(code).ok().map(u32::cast_signed))
    }

    /// The message in the record, if any: one line of limited length, whatever HNS wrote.
    fn text(&self) -> Option<String> {
        let message = self.record().and_then(|record| Some(record.get("Error")?.as_str()?.to_owned()));
        let message = message.unwrap_or_else(|| self.record.clone());
        let line: String = message.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST).collect();
        Some(line.trim().to_owned()).filter(|line| !line.is_empty())
    }
}

const LONGEST: usize = 256;

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.call)?;
        match self.text() {
            Some(text) => write!(f, "{text} (0x{:08x})", self.hresult)?,
            None => write!(f, "error 0x{:08x}", self.hresult)?,
        }
        f.write_str(match self.reason() {
            Reason::Denied => "; run as Administrator or as a HostProcess container",
            Reason::Unavailable => "; check that the service hns is running",
            _ => "",
        })
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use windows_sys::Win32::{Foundation as win32, System::Rpc as rpc};

    use super::*;

    fn reason(hresult: i32) -> Reason {
        Failure { call: "Hcn", hresult, record: String::new() }.reason()
    }

    /// `HRESULT_FROM_WIN32`
    fn system(code: u32) -> i32 {
        (0x8007_0000 | code).cast_signed()
    }

    #[test]
    fn codes_have_their_meaning_in_windows() {
        for (codes, expected) in [
            (
                &[
                    system(win32::ERROR_NOT_FOUND),
                    win32::HCN_E_NETWORK_NOT_FOUND,
                    win32::HCN_E_ENDPOINT_NOT_FOUND,
                    win32::HCN_E_POLICY_NOT_FOUND,
                ][..],
                Reason::NotFound,
            ),
            (
                &[
                    win32::HCN_E_PORT_ALREADY_EXISTS,
                    win32::HCN_E_POLICY_ALREADY_EXISTS,
                    system(win32::ERROR_ALREADY_EXISTS),
                    system(win32::ERROR_OBJECT_ALREADY_EXISTS),
                ],
                Reason::Exists,
            ),
            (
                &[
                    win32::E_NOTIMPL,
                    system(win32::ERROR_NOT_SUPPORTED),
                    system(win32::ERROR_CALL_NOT_IMPLEMENTED),
                    win32::HCN_E_REQUEST_UNSUPPORTED,
                    win32::HCN_E_MAPPING_NOT_SUPPORTED,
                ],
                Reason::Unsupported,
            ),
            (
                &[
                    win32::E_INVALIDARG,
                    win32::HCN_E_INVALID_NETWORK,
                    win32::HCN_E_INVALID_NETWORK_TYPE,
                    win32::HCN_E_INVALID_ENDPOINT,
                    win32::HCN_E_INVALID_POLICY,
                    win32::HCN_E_INVALID_POLICY_TYPE,
                    win32::HCN_E_INVALID_REMOTE_ENDPOINT_OPERATION,
                    win32::HCN_E_GUID_CONVERSION_FAILURE,
                    win32::HCN_E_INVALID_JSON,
                    win32::HCN_E_INVALID_JSON_REFERENCE,
                    win32::HCN_E_INVALID_IP,
                    win32::HCN_E_INVALID_INTERNAL_PORT,
                    win32::HCN_E_ADDR_INVALID_OR_RESERVED,
                    win32::HCN_E_INVALID_PREFIX,
                    win32::HCN_E_INVALID_SUBNET,
                    win32::HCN_E_INVALID_IP_SUBNET,
                ],
                Reason::Invalid,
            ),
            (&[win32::E_ACCESSDENIED, system(win32::ERROR_PRIVILEGE_NOT_HELD)], Reason::Denied),
            (
                &[
                    win32::HCN_E_MANAGER_STOPPED,
                    system(win32::ERROR_SERVICE_NOT_ACTIVE),
                    // A stopped HNS answers with this code, which counted as an unknown failure (kubernetes/kubernetes#139519).
                    system(rpc::RPC_S_UNKNOWN_IF.cast_unsigned()),
                    system(rpc::RPC_S_SERVER_UNAVAILABLE.cast_unsigned()),
                    system(rpc::EPT_S_NOT_REGISTERED.cast_unsigned()),
                ],
                Reason::Unavailable,
            ),
            (&[win32::HCN_E_ENTITY_HAS_REFERENCES], Reason::InUse),
            (&[win32::E_FAIL, win32::HCN_E_REGKEY_FAILURE, 0], Reason::Other),
        ] {
            for code in codes {
                assert_eq!(reason(*code), expected, "{code:#x}");
            }
        }
    }

    #[test]
    fn an_error_record_counts_despite_success() {
        let failure = |record: &str| Failure { call: "HcnOpenNetwork", hresult: 0, record: record.to_owned() };
        assert_eq!(
            failure(r#"{"Success":false,"ErrorCode":2147943568,"Error":"Element not found."}"#).reason(),
            Reason::NotFound
        );
        assert_eq!(failure(r#"{"ErrorCode":-2147023728}"#).reason(), Reason::NotFound);
        for record in
            ["", "nonsense", "[]", r#"{"ErrorCode":"x"}"#, r#"{"ErrorCode":1e300}"#, r#"{"ErrorCode":99999999999}"#]
        {
            assert_eq!(failure(record).reason(), Reason::Other, "{record}");
        }
    }

    #[test]
    fn failures_are_printed_on_one_line() {
        for (failure, expected) in [
            (
                Failure::new(
                    "HcnCreateLoadBalancer",
                    0x803b_0013,
                    r#"{"Error":"The specified port already exists.\r\n"}"#,
                ),
                "HcnCreateLoadBalancer: The specified port already exists. (0x803b0013)",
            ),
            (Failure::new("HcnDeleteEndpoint", 0x8007_0490, ""), "HcnDeleteEndpoint: error 0x80070490"),
            (
                Failure::new("HNSCall", 0x8007_06ba, "oh\n\0"),
                "HNSCall: oh (0x800706ba); check that the service hns is running",
            ),
            (
                Failure::new("HcnOpenNetwork", 0x8007_0005, "{}"),
                "HcnOpenNetwork: {} (0x80070005); run as Administrator or as a HostProcess container",
            ),
        ] {
            assert_eq!(failure.to_string(), expected);
        }
        assert!(Failure::new("HNSCall", 1, "x".repeat(10_000)).to_string().len() < 300);
    }
}
