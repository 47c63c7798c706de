//! The codes with which HNS refuses requests, and their texts, from `winerror.h` and Microsoft's table [HCN Error Code].
//!
//! [HCN Error Code]: https://learn.microsoft.com/virtualization/api/hcn/reference/hcnhresult

use serde_json::json;

use crate::hcn::Failure;

/// Returns the failure of a call. HNS ends the text of the code with a full stop and a space, before any explanation.
pub fn failure(call: &'static str, code: u32, detail: &str) -> Failure {
    let text = TEXTS.iter().find(|(of, _)| *of == code).map_or("Unspecified error", |(_, text)| *text);
    let record = json!({"Success": false, "Error": format!("{text}. {detail}"), "ErrorCode": code});
    Failure::new(call, code, record.to_string())
}

/// `ERROR_NOT_FOUND`.
pub const NOT_FOUND: u32 = 0x8007_0490;
/// `E_NOTIMPL`.
pub const NOT_IMPLEMENTED: u32 = 0x8000_4001;
/// `HCN_E_NETWORK_NOT_FOUND`.
pub const NETWORK_NOT_FOUND: u32 = 0x803b_0001;
/// `HCN_E_ENDPOINT_NOT_FOUND`.
pub const ENDPOINT_NOT_FOUND: u32 = 0x803b_0002;
/// `HCN_E_INVALID_JSON`.
pub const INVALID_JSON: u32 = 0x803b_001b;
/// `HCN_E_ENTITY_HAS_REFERENCES`.
pub const HAS_REFERENCES: u32 = 0x803b_002c;
/// `E_INVALIDARG`.
pub const INVALID_ARGUMENT: u32 = 0x8007_0057;
/// `ERROR_ALREADY_EXISTS`.
pub const ALREADY_EXISTS: u32 = 0x8007_00b7;
/// `ERROR_OBJECT_ALREADY_EXISTS`.
pub const OBJECT_ALREADY_EXISTS: u32 = 0x8007_1392;
/// `HCN_E_INVALID_POLICY`.
pub const INVALID_POLICY: u32 = 0x803b_000d;
/// `HCN_E_INVALID_POLICY_TYPE`.
pub const INVALID_POLICY_TYPE: u32 = 0x803b_000e;
/// `HCN_E_PORT_ALREADY_EXISTS`.
pub const PORT_ALREADY_EXISTS: u32 = 0x803b_0013;
/// `HCN_E_REQUEST_UNSUPPORTED`.
pub const REQUEST_UNSUPPORTED: u32 = 0x803b_0015;
/// `HCN_E_GUID_CONVERSION_FAILURE`.
pub const GUID_CONVERSION_FAILURE: u32 = 0x803b_0019;
/// `HCN_E_INVALID_JSON_REFERENCE`.
pub const INVALID_JSON_REFERENCE: u32 = 0x803b_001c;
/// `HCN_E_INVALID_IP`.
pub const INVALID_IP: u32 = 0x803b_001e;
/// `HCN_E_INVALID_INTERNAL_PORT`.
pub const INVALID_INTERNAL_PORT: u32 = 0x803b_002d;
/// `HCN_E_ADDR_INVALID_OR_RESERVED`.
pub const ADDRESS_INVALID_OR_RESERVED: u32 = 0x803b_002f;
/// `HCN_E_INVALID_PREFIX`.
pub const INVALID_PREFIX: u32 = 0x803b_0030;

/// The texts of the codes.
const TEXTS: &[(u32, &str)] = &[
    (NOT_FOUND, "Element not found"),
    (NOT_IMPLEMENTED, "Not implemented"),
    (INVALID_ARGUMENT, "The parameter is incorrect"),
    (ALREADY_EXISTS, "Cannot create a file when that file already exists"),
    (OBJECT_ALREADY_EXISTS, "The object already exists"),
    (NETWORK_NOT_FOUND, "The network was not found"),
    (ENDPOINT_NOT_FOUND, "The endpoint was not found"),
    (INVALID_POLICY, "The provided policy configuration is invalid or missing parameters"),
    (INVALID_POLICY_TYPE, "Invalid policy type"),
    (PORT_ALREADY_EXISTS, "The specified port already exists"),
    (REQUEST_UNSUPPORTED, "The specified request is unsupported"),
    (GUID_CONVERSION_FAILURE, "Failed to interpret a parameter as a GUID"),
    (INVALID_JSON, "Invalid JSON document string"),
    (INVALID_JSON_REFERENCE, "The reference is invalid in the JSON document"),
    (INVALID_IP, "IP address is either invalid or not part of any configured subnet(s)"),
    (HAS_REFERENCES, "The specified entity cannot be removed while it still has references"),
    (INVALID_INTERNAL_PORT, "The internal port must exist and cannot be zero"),
    (ADDRESS_INVALID_OR_RESERVED, "An address provided is invalid or reserved"),
    (INVALID_PREFIX, "The prefix provided is invalid"),
];
