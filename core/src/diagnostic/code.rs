//! [`Code`]: the table of all diagnostics. `make bless` generates `docs/diagnostics.md` from it.

use std::{error::Error, fmt, str::FromStr};

use serde::{Serialize, Serializer};

use super::Severity;

/// Generates `Code` from rows of `meaning, variant = text, usual severity, remedy`.
macro_rules! codes {
    ($($(#[doc = $meaning:literal])+ $code:ident = $text:literal, $severity:ident, $remedy:literal;)*) => {
        /// The kind of a diagnostic, for programs. New codes may be added, but a code is never renamed or given another meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $($(#[doc = $meaning])+ $code,)*
        }

        impl Code {
            /// All codes.
            pub const ALL: &[Self] = &[$(Self::$code),*];

            /// The text of the code, which programs compare and which is part of the wire protocol.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$code => $text,)*
                }
            }

            /// The usual severity.
            pub fn severity(self) -> Severity {
                match self {
                    $(Self::$code => Severity::$severity,)*
                }
            }

            /// The meaning, in one or two sentences.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$code => concat!($($meaning),+).trim_ascii(),)*
                }
            }

            /// The usual remedy. A diagnostic may contain a more specific one.
            pub fn remedy(self) -> &'static str {
                match self {
                    $(Self::$code => $remedy,)*
                }
            }
        }
    };
}

codes! {
    // Files: a configuration, or objects that the brain serves without an API server.
    /// A file or folder cannot be read.
    FileUnreadable = "file-unreadable", Error, "Check the path, and that the program's user may read it.";
    /// A file is not UTF-8 text.
    FileNotText = "file-not-text", Error, "Save it as UTF-8.";
    /// The path is not a readable file: it is too large, a device, or a link that leads nowhere.
    FileUnsuitable = "file-unsuitable", Error, "Put a regular file of a reasonable size there.";
    /// A file had objects before and is empty now. The objects stay, as a writer may not have finished.
    FileEmptied = "file-emptied", Error, "Write the file, delete it, or write a List without items.";
    /// The folder had files before and is another, empty file system now.
    FolderUnmounted = "folder-unmounted", Error, "Mount the folder again.";
    /// The parser crashed while it read a file.
    ParserCrashed = "parser-crashed", Error, "Undo or simplify the last change of the file.";
    /// The text is not YAML or JSON.
    YamlInvalid = "yaml-invalid", Error, "Correct the syntax at the line.";
    /// Another document follows in the file, and only the first one is read.
    DocumentExtra = "document-extra", Warning, "Leave one document in the file.";
    /// The kind or the version of a document is not known.
    KindUnknown = "kind-unknown", Error, "Correct kind and apiVersion.";
    /// Objects of this kind have no meaning for a service proxy and are ignored.
    KindIgnored = "kind-ignored", Warning, "None needed.";
    /// A required field is missing.
    FieldMissing = "field-missing", Error, "Add the field.";
    /// The field does not exist. v1alpha1 ignores it, as kube-proxy does.
    FieldUnknown = "field-unknown", Error, "Correct the name of the field, or remove it.";
    /// The field occurs twice. In v1alpha1 the last one counts, as in kube-proxy.
    FieldTwice = "field-twice", Error, "Remove one of them.";
    /// The value has another type than the field.
    FieldMistyped = "field-mistyped", Error, "Write a value of the type that the message names.";
    /// A field of v1alpha1 has no counterpart in v1alpha2, or its value does not apply to the configured mode.
    FieldLost = "field-lost", Warning, "Set the field that the message names, if the value is meant for the mode in use.";
    /// The value does not make sense for the field.
    ValueInvalid = "value-invalid", Error, "Correct the value as the message says.";
    /// The value is not one of those that the field knows.
    ValueUnsupported = "value-unsupported", Error, "Use one of the values that the message names.";
    /// The same object is defined twice.
    ObjectTwice = "object-twice", Error, "Remove one of the two definitions.";
    /// An EndpointSlice belongs to no Service.
    SliceWithoutService = "slice-without-service", Warning, "Set the label kubernetes.io/service-name.";
    /// A name is not one that Kubernetes allows.
    NameInvalid = "name-invalid", Error, "Use lower case letters, digits and '-'.";

    // Flags and configuration.
    /// The flag has no effect here: a configuration file is given, or another program reads the flag.
    FlagIgnored = "flag-ignored", Warning, "Remove the flag, or set its field in the configuration file.";
    /// The flag belongs to another operating system.
    FlagOfOtherSystem = "flag-of-other-system", Error, "Remove the flag.";
    /// Two flags exclude each other.
    FlagConflict = "flag-conflict", Error, "Run the program once for each of them.";
    /// The feature gate is not known.
    GateUnknown = "gate-unknown", Warning, "Remove the gate.";
    /// The field needs a feature gate that is off.
    GateDisabled = "gate-disabled", Error, "Turn the gate on, or remove the field.";
    /// All addresses of the node answer NodePorts.
    NodePortsEverywhere = "node-ports-everywhere", Warning, "Set nodePortAddresses, for instance to primary.";
    /// nodePortAddresses names addresses of one family only; in the other one, NodePorts are answered on all addresses.
    NodePortsOfOneFamily = "node-ports-of-one-family", Warning, "Name addresses of both families in nodePortAddresses.";
    /// The configuration names addresses of a family that the node does not have, or that is not its primary one.
    FamilyMismatch = "family-mismatch", Warning, "Use addresses of the node's primary family.";
    /// The configuration demands both families, and the node has one.
    DualStackMissing = "dual-stack-missing", Error, "Give the node addresses of both families, or use PreferDualStack.";
    /// Detection of local traffic depends on spec.podCIDRs of the Node, which is empty.
    PodCidrsMissing = "pod-cidrs-missing", Warning, "Let kube-controller-manager allocate them, or configure clusterCIDRs.";

    // Objects of the cluster.
    /// A value is not an IP address.
    AddressInvalid = "address-invalid", Error, "Write it like 10.0.0.1 or 2001:db8::1.";
    /// The address is reserved: loopback, link-local and the like.
    AddressReserved = "address-reserved", Error, "Use an address that is routed to the node.";
    /// Another Service already has the address or NodePort: the older one keeps it.
    AddressTaken = "address-taken", Error, "Give one of the two Services another address or port.";
    /// The address is one of the node's own. The Service takes the port from the programs of the node.
    AddressOfNode = "address-of-node", Warning, "None if that is intended; otherwise give the Service an address of its own.";
    /// spec.ipFamilies and spec.clusterIPs do not have the same order.
    AddressFamilyMismatch = "address-family-mismatch", Error, "Give both lists the same order.";
    /// A value is not a CIDR.
    CidrInvalid = "cidr-invalid", Error, "Write it like 203.0.113.0/24 or 2001:db8::/32.";
    /// A value is not a port number.
    PortInvalid = "port-invalid", Error, "Use a number from 1 to 65535.";
    /// Two ports of a Service have the same name, number or NodePort.
    PortTwice = "port-twice", Error, "Give each port its own name and number.";
    /// A value is not a protocol that Services have.
    ProtocolInvalid = "protocol-invalid", Error, "Use TCP, UDP or SCTP.";
    /// A load balancer with externalTrafficPolicy Local has no port for its health checks.
    HealthCheckPortMissing = "health-check-port-missing", Error, "Set spec.healthCheckNodePort.";
    /// A Service is too large to be sent to backends.
    ServiceTooLarge = "service-too-large", Error, "Split it into several Services.";
    /// A list of a Node or ServiceCIDR is longer than any real one; the first items are used.
    ListTooLong = "list-too-long", Error, "Shorten the list.";
    /// The Node object was deleted. The brain keeps what it last knew of it.
    NodeGone = "node-gone", Warning, "Check the name of the node (--node-name), and that its Node exists.";

    // Problems that keep the brain from reading the cluster. Until they end, it serves the last state that it could read.
    /// The API server does not answer.
    ApiUnreachable = "api-unreachable", Error, "Check the API server, and the network between it and the node.";
    /// The program has no credentials for the API server.
    ApiCredentialsMissing = "api-credentials-missing", Error, "Check the kubeconfig, or the plugin that it names.";
    /// The API server does not accept the credentials.
    ApiUnauthorized = "api-unauthorized", Error, "Renew the credentials.";
    /// The account may not list or watch the resource.
    ApiForbidden = "api-forbidden", Error, "Grant the account the role that the chart defines.";
    /// The API server does not have the resource.
    ApiResourceUnknown = "api-resource-unknown", Error, "Use a supported version of Kubernetes.";
    /// The API server reports an error of its own.
    ApiFails = "api-fails", Error, "Check the log of the API server.";
    /// The stream of changes breaks again and again, or does not report changes.
    WatchFails = "watch-fails", Error, "Check proxies between the node and the API server.";
    /// The API server sent an object that the brain cannot decode. The brain keeps its previous version.
    ObjectUnreadable = "object-unreadable", Error, "Correct the field, or find the webhook that changes it.";
    /// A new list lacks so many objects that their removal awaits confirmation.
    RemovalsHeld = "removals-held", Warning, "Check whether so many objects were really deleted.";

    // Things that a backend does not program.
    /// The kernel refuses what a Service needs. The backend retries with backoff.
    KernelRefused = "kernel-refused", Error, "Change the Service as the kernel's message suggests.";
    /// The address is in a CIDR that the configuration excludes.
    AddressExcluded = "address-excluded", Error, "Remove the CIDR from ipvs.excludeCIDRs if localnet is to serve the address.";
    /// The Service names a scheduler that IPVS does not have; the default one is used.
    SchedulerUnknown = "scheduler-unknown", Warning, "Correct the annotation localnet.dev/ipvs-scheduler.";
    /// HNS cannot do what the Service asks for.
    HnsUnsupported = "hns-unsupported", Warning, "Change the Service, or use a newer version of Windows.";
    /// The CNI plugin has not made the HNS endpoints of pods on this node.
    HnsEndpointMissing = "hns-endpoint-missing", Warning, "Check the CNI plugin.";
    /// HNS refuses a load balancer, or one of another program is in the way.
    HnsRefused = "hns-refused", Error, "Remove what uses the address, or use direct server return (--enable-dsr).";
    /// kube-proxy's mode ipvs is deprecated, and so is this backend.
    IpvsDeprecated = "ipvs-deprecated", Warning, "Use the nft backend.";

    // Causes why a Service does not answer, found by `localnet explain --why-not`.
    /// The brain cannot be reached, or has no state yet.
    BrainUnreachable = "brain-unreachable", Error, "Start localnet-brain, or select another brain with --api.";
    /// The brain cannot read changes of the cluster, and serves the last state that it could read.
    SourceFails = "source-fails", Error, "Correct the problem that the message names.";
    /// The Service does not have the address that was asked for.
    NotItsAddress = "not-its-address", Error, "Ask for one of its addresses.";
    /// The Service has no ClusterIP of the family, so it does not exist in it.
    FamilyMissing = "family-missing", Error, "Add the family to spec.ipFamilies.";
    /// The cluster has no such Service.
    ServiceAbsent = "service-absent", Error, "Check name and namespace.";
    /// The Service is headless: clients reach its endpoints directly.
    ServiceHeadless = "service-headless", Error, "Check DNS and the pods, or give the Service a ClusterIP.";
    /// The Service is of type ExternalName: it is a DNS name only.
    ServiceExternalName = "service-external-name", Error, "Check that the name resolves.";
    /// The Service has no ClusterIP.
    ServiceWithoutAddress = "service-without-address", Error, "Set spec.clusterIP; an API server allocates one.";
    /// A label assigns the Service to another proxy.
    ServiceOfAnotherProxy = "service-of-another-proxy", Error, "Remove the label service.kubernetes.io/service-proxy-name.";
    /// Nothing of the Service can be served.
    ServiceUnusable = "service-unusable", Error, "Correct what the message names.";
    /// localnet skips the port, because something in it is invalid.
    PortLeftOut = "port-left-out", Error, "Correct what the message names.";
    /// The Service has no such port.
    PortAbsent = "port-absent", Error, "Ask for one of its ports; targetPort and nodePort are other numbers.";
    /// localnet skips part of the Service.
    LeftOut = "left-out", Error, "Correct what the message names.";
    /// spec.loadBalancerSourceRanges keeps the sender out.
    SourceRanges = "source-ranges", Error, "Add the sender to spec.loadBalancerSourceRanges.";
    /// No endpoint serves the port.
    NoEndpointServes = "no-endpoint-serves", Error, "Check the EndpointSlices of the Service.";
    /// The Service has no endpoints at all.
    NoEndpoints = "no-endpoints", Error, "Check that spec.selector matches running pods.";
    /// No endpoint is ready.
    EndpointsNotReady = "endpoints-not-ready", Error, "Find out why no pod becomes ready: kubectl describe pod.";
    /// Topology hints send the traffic to other nodes or zones.
    Hints = "hints", Error, "Remove spec.trafficDistribution from the Service, or run an endpoint nearby.";
    /// internalTrafficPolicy is Local, and no endpoint is on this node.
    InternalPolicyLocal = "internal-policy-local", Error, "Run an endpoint on the node, or set internalTrafficPolicy: Cluster.";
    /// externalTrafficPolicy is Local, and no endpoint is on this node.
    ExternalPolicyLocal = "external-policy-local", Error, "Send the traffic to a node with an endpoint, or set externalTrafficPolicy: Cluster.";
    /// The endpoints are of another family than the address.
    EndpointsOfOtherFamily = "endpoints-of-other-family", Error, "Add the family to spec.ipFamilies, or to the pods.";
    /// No EndpointSlice has a port of the name of the Service's port.
    PortNameMismatch = "port-name-mismatch", Error, "Give targetPort the name of the container's port.";
    /// The EndpointSlice's port has another protocol than the Service's.
    PortProtocolMismatch = "port-protocol-mismatch", Error, "Give both the same protocol.";
    /// The EndpointSlice's port has no usable number.
    PortNumberMissing = "port-number-missing", Error, "Use a number from 1 to 65535.";
    /// The EndpointSlice names endpoints by something other than addresses.
    EndpointsWithoutAddress = "endpoints-without-address", Error, "Use an EndpointSlice of type IPv4 or IPv6.";
    /// The address of an endpoint cannot be read, is reserved, or is of another family than its EndpointSlice.
    EndpointAddressRefused = "endpoint-address-refused", Error, "Correct the address in the EndpointSlice.";
    /// Another entry names the same endpoint, and that entry counts.
    EndpointDuplicated = "endpoint-duplicated", Error, "None while an endpoint moves between slices; otherwise remove one.";
    /// The EndpointSlice is marked as one of a headless Service.
    SliceOfHeadlessService = "slice-of-headless-service", Error, "Remove the label service.kubernetes.io/headless.";
    /// The kernel has no route to an endpoint.
    NoRoute = "no-route", Error, "Check the CNI plugin: ip route get.";
    /// The kernel does not have localnet's table.
    TableMissing = "table-missing", Error, "Start the backend; it writes the table within a second.";
    /// Chains of localnet's table are not as planned.
    RulesDiffer = "rules-differ", Error, "Start the backend; localnet diff shows the differences.";
    /// An element of localnet's table has another value than planned.
    ElementsDiffer = "elements-differ", Error, "Start the backend; localnet diff shows the differences.";
    /// An element of localnet's table is missing.
    ElementsMissing = "elements-missing", Error, "Start the backend; localnet diff shows the differences.";
    /// The program may not read the kernel's tables.
    KernelDenied = "kernel-denied", Error, "Run it as root, on the node.";
    /// The kernel was not read, so only the state is known.
    KernelNotRead = "kernel-not-read", Warning, "See the reason in the message.";
    /// Connection tracking is full: new connections are dropped.
    TrackingFull = "tracking-full", Error, "Raise net.netfilter.nf_conntrack_max.";
    /// IP forwarding is disabled on the node.
    ForwardingOff = "forwarding-off", Error, "Set net.ipv4.ip_forward and net.ipv6.conf.all.forwarding to 1.";
    /// Tracked flows lead to an endpoint that is no longer eligible.
    StaleFlow = "stale-flow", Error, "Wait for the backend, or delete them: conntrack -D.";
    /// No backend has reported to the brain: nothing programs the node.
    BackendMissing = "backend-missing", Error, "Start localnet-nft or another backend.";
    /// The backend skips part of the Service.
    BackendSkips = "backend-skips", Error, "Change the Service as the message says.";
    /// The backend cannot apply the newest state.
    BackendFails = "backend-fails", Error, "Correct what the error names; the backend retries by itself.";
    /// The backend has not applied the newest state.
    BackendBehind = "backend-behind", Error, "Check that the backend runs and reaches the brain.";
    /// A rule of another program drops or rejects the packets.
    ForeignRule = "foreign-rule", Error, "Check the rule: nft -a list chain.";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is no code of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownCode;

impl fmt::Display for UnknownCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("is not a code that this version knows")
    }
}

impl Error for UnknownCode {}

impl FromStr for Code {
    type Err = UnknownCode;

    fn from_str(text: &str) -> Result<Self, UnknownCode> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text).ok_or(UnknownCode)
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_kebab_case_and_different() {
        for (position, code) in Code::ALL.iter().enumerate() {
            let text = code.as_str();
            let of_letters = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase());
            assert!(text.split('-').all(of_letters), "{text}");
            assert_eq!(text.parse(), Ok(*code));
            assert!(!Code::ALL[..position].iter().any(|other| other.as_str() == text), "{text} stands there twice");
            assert!(code.meaning().ends_with('.') && code.remedy().ends_with('.'), "{text}");
        }
        assert_eq!("from-the-future".parse::<Code>(), Err(UnknownCode));
    }
}
