//! Constants of the kernel's user API: `linux/genetlink.h` and `linux/ip_vs.h`.

/// `GENL_ID_CTRL`, `enum CTRL_CMD_*`, `enum CTRL_ATTR_*`: the lookup of families by name.
pub(super) mod control {
    pub(crate) const FAMILY: u16 = 0x10;
    pub(crate) const VERSION: u8 = 1;
    pub(crate) const GET_FAMILY: u8 = 3;
    pub(crate) const FAMILY_ID: u16 = 1;
    pub(crate) const FAMILY_NAME: u16 = 2;
}

/// `IPVS_GENL_NAME`
pub(super) const NAME: &str = "IPVS";
/// `IPVS_GENL_VERSION`
pub(super) const VERSION: u8 = 1;

/// `enum IPVS_CMD_*`
pub(super) mod command {
    pub(crate) const NEW_SERVICE: u8 = 1;
    pub(crate) const SET_SERVICE: u8 = 2;
    pub(crate) const DELETE_SERVICE: u8 = 3;
    pub(crate) const GET_SERVICE: u8 = 4;
    pub(crate) const NEW_DESTINATION: u8 = 5;
    pub(crate) const SET_DESTINATION: u8 = 6;
    pub(crate) const DELETE_DESTINATION: u8 = 7;
    pub(crate) const GET_DESTINATION: u8 = 8;
    pub(crate) const SET_CONFIG: u8 = 12;
    pub(crate) const GET_CONFIG: u8 = 13;
}

/// `enum IPVS_CMD_ATTR_*`
pub(super) mod attribute {
    pub(crate) const SERVICE: u16 = 1;
    pub(crate) const DESTINATION: u16 = 2;
    pub(crate) const TIMEOUT_TCP: u16 = 4;
    pub(crate) const TIMEOUT_TCP_FIN: u16 = 5;
    pub(crate) const TIMEOUT_UDP: u16 = 6;
}

/// `enum IPVS_SVC_ATTR_*`
pub(super) mod service {
    pub(crate) const FAMILY: u16 = 1;
    pub(crate) const PROTOCOL: u16 = 2;
    pub(crate) const ADDRESS: u16 = 3;
    pub(crate) const PORT: u16 = 4;
    pub(crate) const FIREWALL_MARK: u16 = 5;
    pub(crate) const SCHEDULER: u16 = 6;
    pub(crate) const FLAGS: u16 = 7;
    pub(crate) const TIMEOUT: u16 = 8;
    pub(crate) const NETMASK: u16 = 9;

    /// `IP_VS_SVC_F_PERSISTENT`
    pub(crate) const PERSISTENT: u32 = 0x1;
    /// `IP_VS_SVC_F_HASHED`: internal to the kernel.
    pub(crate) const HASHED: u32 = 0x2;
}

/// `enum IPVS_DEST_ATTR_*`
pub(super) mod destination {
    pub(crate) const ADDRESS: u16 = 1;
    pub(crate) const PORT: u16 = 2;
    pub(crate) const FORWARDING: u16 = 3;
    pub(crate) const WEIGHT: u16 = 4;
    pub(crate) const UPPER_THRESHOLD: u16 = 5;
    pub(crate) const LOWER_THRESHOLD: u16 = 6;
    pub(crate) const ACTIVE_CONNECTIONS: u16 = 7;
    pub(crate) const INACTIVE_CONNECTIONS: u16 = 8;
    pub(crate) const PERSISTENT_CONNECTIONS: u16 = 9;
    pub(crate) const FAMILY: u16 = 11;
    /// `IPVS_DEST_ATTR_STATS64`
    pub(crate) const STATISTICS: u16 = 12;

    /// `IP_VS_CONN_F_FWD_MASK`
    pub(crate) const FORWARDING_MASK: u32 = 0x7;
}

/// `enum IPVS_STATS_ATTR_*`
pub(super) mod statistics {
    pub(crate) const CONNECTIONS: u16 = 1;
    pub(crate) const PACKETS_IN: u16 = 2;
    pub(crate) const PACKETS_OUT: u16 = 3;
    pub(crate) const BYTES_IN: u16 = 4;
    pub(crate) const BYTES_OUT: u16 = 5;
}
