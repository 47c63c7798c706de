//! Paths of fields in the two versions, for messages.

use crate::{
    field::Formerly,
    table::{DROPPED, FIELDS},
};

/// Converts the path of a v1alpha2 field, with or without an index, to the path in a v1alpha1 document with this mode.
pub(crate) fn v1alpha1_path(path: &str, mode: &str) -> String {
    let (name, index) = path.split_at(path.find('[').unwrap_or(path.len()));
    let Some(field) = FIELDS.iter().find(|field| field.path == name) else { return path.to_owned() };
    match (field.formerly, field.v1alpha1_path(mode)) {
        (Formerly::Text(..), Some(formerly)) => formerly.to_owned(),
        (_, Some(formerly)) => formerly.to_owned() + index,
        (_, None) => path.to_owned(),
    }
}

/// Returns the remedy for a v1alpha2 document that contains a field or section of v1alpha1.
pub(crate) fn remedy_in_v1alpha2(path: &str) -> Option<String> {
    if let Some((_, remedy)) = DROPPED.iter().find(|(dropped, _)| *dropped == path) {
        return Some((*remedy).to_owned());
    }
    let moved = FIELDS.iter().filter(|field| field.formerly != Formerly::Same);
    moved.flat_map(|field| field.in_v1alpha1().into_iter().map(|old| (old.path, field.path))).find_map(|(old, new)| {
        let tail = old.strip_prefix(path).filter(|tail| tail.is_empty() || tail.starts_with('.'))?;
        Some(format!("in v1alpha2 it is {}", new.strip_suffix(tail)?))
    })
}

/// Whether v1alpha2 has a field or section with this path.
pub(crate) fn is_in_v1alpha2(path: &str) -> bool {
    FIELDS.iter().filter_map(|field| field.path.strip_prefix(path)).any(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_called_as_their_document_calls_them() {
        for (path, mode, expected) in [
            ("linux.conntrack.min", "", "conntrack.min"),
            ("syncPeriod", "", "iptables.syncPeriod"),
            ("syncPeriod", "ipvs", "ipvs.syncPeriod"),
            ("minSyncPeriod", "nftables", "nftables.minSyncPeriod"),
            ("linux.masqueradeAll", "ipvs", "iptables.masqueradeAll"),
            ("linux.masqueradeAll", "nftables", "nftables.masqueradeAll"),
            ("nodeIPOverride[0]", "", "bindAddress"),
            ("detectLocal.clusterCIDRs[1]", "", "clusterCIDR"),
            ("nodePortAddresses[1]", "", "nodePortAddresses[1]"),
            ("ipvs.masqueradeBit", "", "iptables.masqueradeBit"),
            ("ipFamilyPolicy", "", "ipFamilyPolicy"),
            ("featureGates.X", "", "featureGates.X"),
        ] {
            assert_eq!(v1alpha1_path(path, mode), expected, "{path} in mode {mode:?}");
        }
    }

    #[test]
    fn moved_fields_have_their_new_name() {
        for (path, expected) in [
            ("conntrack", Some("in v1alpha2 it is linux.conntrack")),
            ("conntrack.min", Some("in v1alpha2 it is linux.conntrack.min")),
            ("oomScoreAdj", Some("in v1alpha2 it is linux.oomScoreAdj")),
            ("clusterCIDR", Some("in v1alpha2 it is detectLocal.clusterCIDRs")),
            ("windowsRunAsService", Some("in v1alpha2 it is windows.runAsService")),
            ("nftables.masqueradeAll", Some("in v1alpha2 it is linux.masqueradeAll")),
            ("ipvs.syncPeriod", Some("in v1alpha2 it is syncPeriod")),
            ("bindAddress", Some("in v1alpha2 it is nodeIPOverride")),
            ("portRange", Some("remove it: no mode has used it since the userspace mode was removed")),
            ("con", None),
            ("mode", None),
        ] {
            assert_eq!(remedy_in_v1alpha2(path).as_deref(), expected, "{path}");
        }
    }
}
