//! Constants of the kernel's user API (`linux/netfilter/nf_tables.h`), of TCP, and of nft's userdata.

/// `NFNL_SUBSYS_NFTABLES`
pub(super) const SUBSYSTEM: u16 = 10;
/// `NFNL_MSG_BATCH_BEGIN`
pub(super) const BATCH_BEGIN: u16 = 16;
/// `NFNL_MSG_BATCH_END`
pub(super) const BATCH_END: u16 = 17;
/// `NFNLGRP_NFTABLES`
pub(super) const MULTICAST_GROUP: u32 = 7;

/// `enum nf_tables_msg_types`
pub(super) mod msg {
    pub(crate) const NEW_TABLE: u16 = 0;
    pub(crate) const GET_TABLE: u16 = 1;
    pub(crate) const DEL_TABLE: u16 = 2;
    pub(crate) const NEW_CHAIN: u16 = 3;
    pub(crate) const GET_CHAIN: u16 = 4;
    pub(crate) const DEL_CHAIN: u16 = 5;
    pub(crate) const NEW_RULE: u16 = 6;
    pub(crate) const GET_RULE: u16 = 7;
    pub(crate) const DEL_RULE: u16 = 8;
    pub(crate) const NEW_SET: u16 = 9;
    pub(crate) const GET_SET: u16 = 10;
    pub(crate) const DEL_SET: u16 = 11;
    pub(crate) const NEW_ELEMENTS: u16 = 12;
    pub(crate) const GET_ELEMENTS: u16 = 13;
    pub(crate) const DEL_ELEMENTS: u16 = 14;
    pub(crate) const NEW_GENERATION: u16 = 15;
    pub(crate) const GET_GENERATION: u16 = 16;
}

/// `enum nft_table_attributes`
pub(super) mod table {
    pub(crate) const NAME: u16 = 1;
    pub(crate) const FLAGS: u16 = 2;
    /// `NFT_TABLE_F_DORMANT`
    pub(crate) const FLAG_DORMANT: u32 = 1;
}

/// `enum nft_chain_attributes`, `enum nft_hook_attributes`
pub(super) mod chain {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const NAME: u16 = 3;
    pub(crate) const HOOK: u16 = 4;
    pub(crate) const POLICY: u16 = 5;
    pub(crate) const TYPE: u16 = 7;
    pub(crate) const USERDATA: u16 = 12;
    pub(crate) const HOOK_POINT: u16 = 1;
    pub(crate) const HOOK_PRIORITY: u16 = 2;
}

/// `enum nft_rule_attributes`
pub(super) mod rule {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const CHAIN: u16 = 2;
    pub(crate) const HANDLE: u16 = 3;
    pub(crate) const EXPRESSIONS: u16 = 4;
    pub(crate) const USERDATA: u16 = 7;
}

/// `enum nft_set_attributes`, `enum nft_set_desc_attributes`, `enum nft_set_flags`
pub(super) mod set {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const NAME: u16 = 2;
    pub(crate) const FLAGS: u16 = 3;
    pub(crate) const KEY_TYPE: u16 = 4;
    pub(crate) const KEY_LEN: u16 = 5;
    pub(crate) const DATA_TYPE: u16 = 6;
    pub(crate) const DATA_LEN: u16 = 7;
    pub(crate) const DESC: u16 = 9;
    pub(crate) const ID: u16 = 10;
    pub(crate) const TIMEOUT: u16 = 11;
    pub(crate) const USERDATA: u16 = 13;
    pub(crate) const DESC_SIZE: u16 = 1;
    pub(crate) const DESC_CONCAT: u16 = 2;
    pub(crate) const FIELD_LEN: u16 = 1;
    pub(crate) const FLAG_INTERVAL: u32 = 0x4;
    pub(crate) const FLAG_MAP: u32 = 0x8;
    pub(crate) const FLAG_TIMEOUT: u32 = 0x10;
    pub(crate) const FLAG_DYNAMIC: u32 = 0x20;
    pub(crate) const FLAG_CONCAT: u32 = 0x80;
    /// `NFT_DATA_VERDICT`, the type of a verdict map's data.
    pub(crate) const TYPE_VERDICT: u32 = 0xffff_ff00;
}

/// `enum nft_set_elem_list_attributes`, `enum nft_set_elem_attributes`, `enum nft_data_attributes`
pub(super) mod element {
    pub(crate) const LIST_TABLE: u16 = 1;
    pub(crate) const LIST_SET: u16 = 2;
    pub(crate) const LIST_ELEMENTS: u16 = 3;
    pub(crate) const LIST_ITEM: u16 = 1;
    pub(crate) const KEY: u16 = 1;
    pub(crate) const DATA: u16 = 2;
    pub(crate) const FLAGS: u16 = 3;
    pub(crate) const TIMEOUT: u16 = 4;
    pub(crate) const EXPIRATION: u16 = 5;
    pub(crate) const USERDATA: u16 = 6;
    /// `NFTA_SET_ELEM_EXPR`
    pub(crate) const EXPRESSION: u16 = 7;
    pub(crate) const KEY_END: u16 = 10;
    pub(crate) const FLAG_INTERVAL_END: u32 = 1;
}

/// `enum nft_data_attributes`, `enum nft_verdict_attributes`, `enum nft_verdicts`
pub(super) mod data {
    pub(crate) const VALUE: u16 = 1;
    pub(crate) const VERDICT: u16 = 2;
    pub(crate) const VERDICT_CODE: u16 = 1;
    pub(crate) const VERDICT_CHAIN: u16 = 2;
    pub(crate) const DROP: i32 = 0;
    pub(crate) const ACCEPT: i32 = 1;
    pub(crate) const JUMP: i32 = -3;
    pub(crate) const GOTO: i32 = -4;
    pub(crate) const RETURN: i32 = -5;
}

/// `enum nft_payload_bases`
pub(super) mod payload {
    pub(crate) const NETWORK: u32 = 1;
    pub(crate) const TRANSPORT: u32 = 2;
}

/// `enum nft_meta_keys`
pub(super) mod meta {
    pub(crate) const PRIORITY: u32 = 2;
    pub(crate) const MARK: u32 = 3;
    pub(crate) const IIFNAME: u32 = 6;
    pub(crate) const NFPROTO: u32 = 15;
    pub(crate) const L4PROTO: u32 = 16;
}

/// `enum nft_ct_keys`
pub(super) mod ct {
    pub(crate) const STATE: u32 = 0;
    pub(crate) const STATUS: u32 = 2;
    pub(crate) const PROTO_DST: u32 = 12;
    pub(crate) const DST_IP: u32 = 20;
    pub(crate) const DST_IP6: u32 = 22;
    /// `NF_CT_STATE_BIT(IP_CT_NEW)`
    pub(crate) const STATE_NEW: u32 = 1 << 3;
    /// `IPS_DST_NAT`
    pub(crate) const STATUS_DNAT: u32 = 1 << 5;
}

/// The offset of the flags in the TCP header, and some of the flags.
pub(super) mod tcp {
    pub(crate) const FLAGS: u32 = 13;
    pub(crate) const SYN: u8 = 0x02;
    pub(crate) const FIN_SYN_RST_ACK: u8 = 0x17;
}

/// `enum nft_gen_attributes`
pub(super) mod generation {
    pub(crate) const ID: u16 = 1;
    pub(crate) const PROCESS_ID: u16 = 2;
    pub(crate) const PROCESS_NAME: u16 = 3;
}

/// Userdata belongs to nft: a byte for the kind, a byte for the length, and the value. The kernel only stores it.
pub(super) mod userdata {
    /// `NFTNL_UDATA_RULE_COMMENT`, also for elements and chains.
    pub(crate) const COMMENT: u8 = 0;
    /// `NFTNL_UDATA_SET_ELEM_FLAGS`
    pub(crate) const ELEMENT_FLAGS: u8 = 1;
    /// `NFTNL_SET_ELEM_F_INTERVAL_OPEN`: the interval has no end element.
    pub(crate) const INTERVAL_OPEN: u32 = 1;
    pub(crate) const KEY_BYTE_ORDER: u8 = 0;
    pub(crate) const DATA_BYTE_ORDER: u8 = 1;
    pub(crate) const KEY_TYPEOF: u8 = 3;
    pub(crate) const DATA_TYPEOF: u8 = 4;
    pub(crate) const DATA_INTERVAL: u8 = 6;
    pub(crate) const SET_COMMENT: u8 = 7;
    /// The kernel refuses more than 256 bytes.
    pub(crate) const MAX: usize = 256;
}
