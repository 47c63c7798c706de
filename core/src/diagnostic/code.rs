//! [`Code`]: the table of all diagnostics. `make bless` generates `docs/diagnostics.md` from it.

use serde::{Serialize, Serializer};

use super::Severity;

/// Generates `Code` from rows of `meaning, variant = name, usual severity, usual remedy`.
macro_rules! codes {
    ($($(#[doc = $meaning:literal])+ $code:ident = $text:literal, $severity:ident, $remedy:literal;)*) => {
        crate::names! {
            /// The kind of a diagnostic, for programs. The name of a code is part of the wire protocol. New codes may be added,
            /// but the name and the meaning of a code never change.
            Code {
                $($(#[doc = $meaning])+ $code = $text,)*
            }
        }

        impl Code {
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
    /// Another version of localnet reports a problem that this version does not know.
    Unknown = "unknown", Error, "Read the message.";

    // Files: a configuration, or objects that the brain serves without an API server.
    /// A file or folder cannot be read.
    FileUnreadable = "file-unreadable", Error, "Check the path, and that the program's user may read it.";
    /// A file is not UTF-8 text.
    FileNotText = "file-not-text", Error, "Save the file as UTF-8.";
    /// The path does not lead to a regular file, or the file is too large.
    FileUnsuitable = "file-unsuitable", Error, "Use a regular file within the size limit that the message names.";
    /// A file had objects and is now empty. The brain keeps the objects, because the file may be half written.
    FileEmptied = "file-emptied", Error, "Write the file, delete it, or write a List without items.";
    /// An empty file system has taken the place of a folder that had files.
    FolderUnmounted = "folder-unmounted", Error, "Mount the folder again.";
    /// The parser crashed while it read a file.
    ParserCrashed = "parser-crashed", Error, "Undo or simplify the last change of the file.";
    /// The text is not YAML or JSON.
    YamlInvalid = "yaml-invalid", Error, "Correct the syntax at the line.";
    /// The file has several documents. Only the first one is used.
    DocumentExtra = "document-extra", Warning, "Remove all documents but one.";
    /// The kind or apiVersion of a document is unknown.
    KindUnknown = "kind-unknown", Error, "Correct kind and apiVersion.";
    /// A service proxy does not use objects of this kind.
    KindIgnored = "kind-ignored", Warning, "None needed.";
    /// A required field is missing.
    FieldMissing = "field-missing", Error, "Add the field.";
    /// The field does not exist. In a v1alpha1 file, localnet ignores it, as kube-proxy does.
    FieldUnknown = "field-unknown", Error, "Correct the name of the field, or remove it.";
    /// The field occurs twice. In v1alpha1, the last occurrence counts, as in kube-proxy.
    FieldTwice = "field-twice", Error, "Remove one occurrence.";
    /// The value does not have the type of the field.
    FieldMistyped = "field-mistyped", Error, "Use a value of the type that the message names.";
    /// v1alpha2 lacks the field, or the value does not apply to the configured mode.
    FieldLost = "field-lost", Warning, "If the value is meant for the mode in use, set the field that the message names.";
    /// The value is not valid for the field.
    ValueInvalid = "value-invalid", Error, "Correct the value as the message says.";
    /// The field allows only certain values, and this value is not one of them.
    ValueUnsupported = "value-unsupported", Error, "Use one of the values that the message names.";
    /// The same object is defined twice.
    ObjectTwice = "object-twice", Error, "Remove one of the two definitions.";
    /// An EndpointSlice belongs to no Service.
    SliceWithoutService = "slice-without-service", Warning, "Set the label kubernetes.io/service-name.";
    /// A name is not valid in Kubernetes.
    NameInvalid = "name-invalid", Error, "Use only lower case letters, digits and '-'.";

    // Flags and configuration.
    /// The flag has no effect, because a configuration file is given, or because only another program uses the flag.
    FlagIgnored = "flag-ignored", Warning, "Remove the flag, or set its field in the configuration file.";
    /// The flag belongs to another operating system.
    FlagOfOtherSystem = "flag-of-other-system", Error, "Remove the flag.";
    /// Two flags contradict each other.
    FlagConflict = "flag-conflict", Error, "Use only one of the two flags. To get both effects, run the program twice.";
    /// The feature gate is unknown.
    GateUnknown = "gate-unknown", Warning, "Remove the feature gate.";
    /// The field needs a feature gate that is disabled.
    GateDisabled = "gate-disabled", Error, "Enable the feature gate, or remove the field.";
    /// NodePorts answer on all addresses of the node.
    NodePortsEverywhere = "node-ports-everywhere", Warning, "Set nodePortAddresses, for instance to primary.";
    /// nodePortAddresses contains addresses of only one family. In the other family, NodePorts answer on all addresses of the
    /// node.
    NodePortsOfOneFamily = "node-ports-of-one-family", Warning, "Name addresses of both families in nodePortAddresses.";
    /// The configuration names addresses of a family that the node does not have, or that is not the node's primary family.
    FamilyMismatch = "family-mismatch", Warning, "Use addresses of the node's primary family.";
    /// The configuration requires both families, but the node has only one.
    DualStackMissing = "dual-stack-missing", Error, "Give the node addresses of both families, or use PreferDualStack.";
    /// The configuration uses the Node's spec.podCIDRs to recognize local traffic, but they are empty.
    PodCidrsMissing = "pod-cidrs-missing", Warning, "Let kube-controller-manager allocate pod CIDRs, or configure clusterCIDRs.";

    // Objects of the cluster.
    /// A value is not an IP address.
    AddressInvalid = "address-invalid", Error, "Write the address like 10.0.0.1 or 2001:db8::1.";
    /// The address is reserved, for instance a loopback or link-local address.
    AddressReserved = "address-reserved", Error, "Use an address that is routed to the node.";
    /// Another Service has the same address and port, or the same NodePort, and gets the traffic. Its source comes first, or it is
    /// older.
    AddressTaken = "address-taken", Error, "Give one of the two Services another address or port.";
    /// The Service has an address of the node. On the Service's ports, programs on the node get no traffic to this address.
    AddressOfNode = "address-of-node", Warning, "If this is not intended, give the Service an address of its own.";
    /// spec.ipFamilies and spec.clusterIPs contain the families in different orders.
    AddressFamilyMismatch = "address-family-mismatch", Error, "Give both lists the same order.";
    /// A value is not a CIDR.
    CidrInvalid = "cidr-invalid", Error, "Write the CIDR like 203.0.113.0/24 or 2001:db8::/32.";
    /// A value is not a port number.
    PortInvalid = "port-invalid", Error, "Use a number from 1 to 65535.";
    /// Two ports of a Service have the same name, number or NodePort.
    PortTwice = "port-twice", Error, "Give each port its own name and number.";
    /// A value is not a protocol that Services can have.
    ProtocolInvalid = "protocol-invalid", Error, "Use TCP, UDP or SCTP.";
    /// A Service of type LoadBalancer with externalTrafficPolicy Local has no port for health checks.
    HealthCheckPortMissing = "health-check-port-missing", Error, "Set spec.healthCheckNodePort.";
    /// The value of an annotation is not valid. The brain ignores the annotation.
    AnnotationInvalid = "annotation-invalid", Error, "Write the value as the message says.";
    /// A Service is too large to be sent to backends.
    ServiceTooLarge = "service-too-large", Error, "Split the Service into several Services.";
    /// A list in a Node or ServiceCIDR is too long. The brain uses only the first items.
    ListTooLong = "list-too-long", Error, "Shorten the list.";
    /// Two sources have the object. The brain uses the object of the source that comes first on the command line.
    ObjectShadowed = "object-shadowed", Warning, "Delete or rename one of the objects, or change the order of --source.";
    /// A program has pushed a Service, or a part of one, that its grant does not contain. The brain does not use it.
    PushNotGranted = "push-not-granted", Error, "Use a value that the grant contains, or extend the grant in the file of --push-grants.";
    /// The Node object was deleted. The brain uses its last version.
    NodeGone = "node-gone", Warning, "Check the name of the node (--node-name), and that its Node exists.";

    // Problems that keep the brain from reading the cluster. The brain serves its last state until these problems end.
    /// The API server does not answer.
    ApiUnreachable = "api-unreachable", Error, "Check the API server, and the network between it and the node.";
    /// The program has no credentials for the API server.
    ApiCredentialsMissing = "api-credentials-missing", Error, "Check the kubeconfig, or the plugin that it names.";
    /// The API server does not accept the credentials.
    ApiUnauthorized = "api-unauthorized", Error, "Renew the credentials.";
    /// The account is not allowed to list or watch the resource.
    ApiForbidden = "api-forbidden", Error, "Grant the account the role that the chart defines.";
    /// The API server does not have the resource.
    ApiResourceUnknown = "api-resource-unknown", Error, "Use a supported version of Kubernetes.";
    /// The API server reports an internal error.
    ApiFails = "api-fails", Error, "Check the log of the API server.";
    /// The watch repeatedly ends early, or does not report changes.
    WatchFails = "watch-fails", Error, "Check the proxies between the node and the API server.";
    /// The brain cannot decode an object from the API server, and keeps its previous version.
    ObjectUnreadable = "object-unreadable", Error, "Correct the field, or find the webhook that changes it.";
    /// So many objects are missing from a new list that the brain keeps them for some time.
    RemovalsHeld = "removals-held", Warning, "If the objects should exist, restore them. Otherwise wait.";
    /// The brain has no state yet, because a source has not listed its objects. Another source has.
    SourceAwaited = "source-awaited", Warning, "Check the source that the message names.";
    /// A program that may push Services is not connected. Unless it connects again, the brain removes its Services after the time that
    /// the message names.
    PushDisconnected = "push-disconnected", Warning, "Start the program. If it no longer exists, remove its grant.";

    // Parts of Services that a backend does not program.
    /// The kernel refuses an object that the Service needs. The backend retries with backoff.
    KernelRefused = "kernel-refused", Error, "Change the Service as the kernel's message suggests.";
    /// The backend reads localnet.v1 and lacks a capability that the Service requires, so the brain sends no endpoints.
    ServiceWithheld = "service-withheld", Error, "Use a version of the backend that has the capabilities that the message names.";
    /// The address is in an excluded CIDR.
    AddressExcluded = "address-excluded", Error, "If localnet should serve the address, remove the CIDR from ipvs.excludeCIDRs.";
    /// The Service names a scheduler that the kernel does not have. The backend uses the default scheduler.
    SchedulerUnknown = "scheduler-unknown", Warning, "Load the module that the message names, or correct the annotation localnet.dev/ipvs-scheduler.";
    /// The Service requests to close connections to removed endpoints, which the backend cannot do.
    CloseUnsupported = "close-unsupported", Warning, "Remove the annotation localnet.dev/close-connections-after, or use the nft or iptables backend.";
    /// The Service's endpoints have weights, which the backend or its IPVS scheduler ignores.
    WeightsUnsupported = "weights-unsupported", Warning, "Remove the weights, or use the nft, iptables or ebpf backend, or an IPVS scheduler with weights, such as wrr.";
    /// The Service requests that endpoints are chosen by a hash, which the backend or its IPVS scheduler does not do, or not for all clients.
    HashUnsupported = "hash-unsupported", Warning, "Remove the annotation localnet.dev/hash, or use the nft backend, or the IPVS scheduler mh.";
    /// HNS does not support a feature that the Service uses.
    HnsUnsupported = "hns-unsupported", Warning, "Change the Service, or use a newer version of Windows.";
    /// HNS has no endpoint for a pod on this node. The CNI plugin should have created one.
    HnsEndpointMissing = "hns-endpoint-missing", Warning, "Check the CNI plugin.";
    /// HNS refuses a load balancer, or another program's load balancer uses the same address and port.
    HnsRefused = "hns-refused", Error, "Remove the other load balancer, or use direct server return (--enable-dsr).";
    /// The ipvs backend is deprecated, as is kube-proxy's mode ipvs.
    IpvsDeprecated = "ipvs-deprecated", Warning, "Use the nft backend.";

    // Causes that `localnet explain --why-not` names if a Service does not answer.
    /// The brain cannot be reached, or has no state yet.
    BrainUnreachable = "brain-unreachable", Error, "Start localnet-brain, or select another brain with --api. Until then, the kernel stays unchanged.";
    /// The brain cannot read changes to the cluster, so the state may be outdated.
    SourceFails = "source-fails", Error, "Correct the problem that the message names. Until then, the state stays unchanged.";
    /// The Service does not have the requested address.
    NotItsAddress = "not-its-address", Error, "Use one of the Service's addresses.";
    /// The Service has no ClusterIP of the requested family.
    FamilyMissing = "family-missing", Error, "Add the family to spec.ipFamilies, with spec.ipFamilyPolicy PreferDualStack.";
    /// The cluster has no such Service.
    ServiceAbsent = "service-absent", Error, "Check name and namespace: kubectl get services -A.";
    /// The Service is headless: clients connect to its endpoints directly.
    ServiceHeadless = "service-headless", Error, "Check DNS and the pods, or give the Service a ClusterIP.";
    /// The Service is of type ExternalName, which is only a DNS name.
    ServiceExternalName = "service-external-name", Error, "Check that spec.externalName resolves.";
    /// The Service has no ClusterIP.
    ServiceWithoutAddress = "service-without-address", Error, "Set spec.clusterIP, which only an API server allocates automatically.";
    /// A label assigns the Service to another proxy.
    ServiceOfAnotherProxy = "service-of-another-proxy", Error, "Remove the label service.kubernetes.io/service-proxy-name.";
    /// localnet can serve no part of the Service.
    ServiceUnusable = "service-unusable", Error, "Correct the field that the message names.";
    /// localnet skips the port, because a field of the port is invalid.
    PortSkipped = "port-skipped", Error, "Correct the field that the message names.";
    /// The Service has no such port.
    PortAbsent = "port-absent", Error, "Use one of spec.ports[].port; targetPort and nodePort are other numbers.";
    /// spec.loadBalancerSourceRanges does not contain the sender.
    SourceRanges = "source-ranges", Error, "Add the sender to spec.loadBalancerSourceRanges.";
    /// No endpoint is eligible for traffic to the port.
    NoEndpointServes = "no-endpoint-serves", Error, "Check the EndpointSlices of the Service: kubectl get endpointslices.";
    /// The Service has no endpoints.
    NoEndpoints = "no-endpoints", Error, "Check that spec.selector matches running pods: kubectl get pods -l SELECTOR, kubectl get endpointslices.";
    /// No endpoint is ready.
    EndpointsNotReady = "endpoints-not-ready", Error, "Find out why no pod becomes ready: kubectl describe pod.";
    /// Topology hints send the traffic to other nodes or zones.
    Hints = "hints", Error, "Remove spec.trafficDistribution from the Service, or run an endpoint nearby.";
    /// internalTrafficPolicy is Local, and no endpoint is on this node.
    InternalPolicyLocal = "internal-policy-local", Error, "Run an endpoint on the node, or set internalTrafficPolicy: Cluster.";
    /// externalTrafficPolicy is Local, and no endpoint is on this node.
    ExternalPolicyLocal = "external-policy-local", Error, "Send the traffic to a node with an endpoint, or set externalTrafficPolicy: Cluster.";
    /// The endpoints do not have addresses of the VIP's family.
    EndpointsOfOtherFamily = "endpoints-of-other-family", Error, "Add the family to spec.ipFamilies, or to the pods.";
    /// No EndpointSlice has a port with the name of the Service's port.
    PortNameMismatch = "port-name-mismatch", Error, "Set targetPort to the name of the container's port.";
    /// The Service's port and the EndpointSlice's port of the same name have different protocols.
    PortProtocolMismatch = "port-protocol-mismatch", Error, "Use the same protocol for both ports.";
    /// The EndpointSlice's port has no valid number.
    PortNumberMissing = "port-number-missing", Error, "Use a number from 1 to 65535.";
    /// The addressType of the EndpointSlice is neither IPv4 nor IPv6.
    EndpointsWithoutAddress = "endpoints-without-address", Error, "Use an EndpointSlice of type IPv4 or IPv6.";
    /// The address of an endpoint is invalid or reserved, or does not have the family of its EndpointSlice.
    EndpointAddressRefused = "endpoint-address-refused", Error, "Correct the address in the EndpointSlice.";
    /// Another EndpointSlice entry contains the same endpoint, and the brain uses that entry.
    EndpointDuplicated = "endpoint-duplicated", Error, "Remove one entry, unless the endpoint is moving between EndpointSlices.";
    /// A label assigns the EndpointSlice to a headless Service.
    SliceOfHeadlessService = "slice-of-headless-service", Error, "Remove the label service.kubernetes.io/headless.";
    /// The kernel has no route to an endpoint.
    NoRoute = "no-route", Error, "Check the CNI plugin, and the output of: ip route get ADDRESS.";
    /// The kernel does not have localnet's table.
    TableMissing = "table-missing", Error, "Start the backend: it creates the table within a second. The backend's log names the program that deleted the table.";
    /// Chains in localnet's table are missing, or differ from the plan (the desired state).
    RulesDiffer = "rules-differ", Error, "Start the backend: it repairs the table within a second. localnet diff lists all differences.";
    /// An element in localnet's table differs from the plan (the desired state).
    ElementsDiffer = "elements-differ", Error, "Start the backend: it repairs the table within a second. localnet diff lists all differences.";
    /// An element is missing in localnet's table.
    ElementsMissing = "elements-missing", Error, "Start the backend: it repairs the table within a second. localnet diff lists all differences.";
    /// The program lacks the privileges to read the kernel's tables.
    KernelDenied = "kernel-denied", Error, "Run the program as root, on the node.";
    /// localnet did not read the kernel, so it checked only the state.
    KernelNotRead = "kernel-not-read", Warning, "The message gives the reason.";
    /// The kernel lacks a feature of nf_tables, so the nft backend cannot start.
    KernelLacks = "kernel-lacks", Error, "Use Linux 5.10 or newer with all modules whose names begin with nft_, or the backend iptables.";
    /// Connection tracking is full, so the kernel drops new connections. With severity warning, it is nearly full.
    TrackingFull = "tracking-full", Error, "Raise net.netfilter.nf_conntrack_max: set conntrack.maxPerCore, then run localnet-nft init.";
    /// IP forwarding is disabled on the node.
    ForwardingOff = "forwarding-off", Error, "Set net.ipv4.ip_forward and net.ipv6.conf.all.forwarding to 1.";
    /// Connection tracking has flows to an endpoint that is no longer eligible.
    StaleFlow = "stale-flow", Error, "Wait until the backend ends the flows, or delete them with conntrack -D --orig-src CLIENT.";
    /// No backend has reported to the brain: nothing programs the node.
    BackendMissing = "backend-missing", Error, "Start localnet-nft or another backend. If a backend of KPNG runs, ignore this: such backends never report.";
    /// kube-proxy's rules on the node treat packets to the Service in another way than localnet would.
    ShadowDiffers = "shadow-differs", Warning, "Run localnet shadow on the node. If localnet is wrong, report a bug.";
    /// The backend skips part of the Service.
    BackendSkips = "backend-skips", Error, "Change the Service as the message says.";
    /// The backend cannot apply the newest state.
    BackendFails = "backend-fails", Error, "Correct the problem that the error names. The backend retries automatically.";
    /// The backend has not applied the newest state.
    BackendBehind = "backend-behind", Error, "Check that the backend runs and reaches the brain. The backend's log has the error.";
    /// The backend has applied the newest revision, but with another content than the brain sent. Or the brain is newer than the backend,
    /// and the state has fields that the backend does not know.
    BackendDiffers = "backend-differs", Warning, "Run the same version of the brain and the backend. If the versions are equal, restart the backend, and report a bug.";
    /// Every backend has stopped: none requests the next state from the brain.
    BackendStopped = "backend-stopped", Error, "Start the backend. Its log has the error.";
    /// The brain does not report its status.
    StatusUnknown = "status-unknown", Warning, "Upgrade localnet-brain to the version of this command.";
    /// No backend reports its configuration, so the checks use the defaults.
    ConfigurationUnknown = "configuration-unknown", Warning, "Pass the backend's configuration with --config or --cluster-cidr.";
    /// route_localnet is on: hosts in the same network may reach programs that listen on 127.0.0.1 (CVE-2020-8558).
    RouteLocalnet = "route-localnet", Warning, "Set route_localnet to 0, unless you use NodePorts on localhost.";
    /// The kernel also has kube-proxy's rules. A packet is translated by the rule that matches first, localnet's or kube-proxy's.
    OtherProxy = "other-proxy", Warning, "Stop kube-proxy, then run localnet-nft cleanup --kube-proxy.";
    /// ip_tables (iptables-legacy) has rules, which localnet does not read.
    LegacyRules = "legacy-rules", Warning, "List the rules with iptables-legacy-save.";
    /// A rule of another program drops or rejects the packets.
    ForeignRule = "foreign-rule", Error, "Check the rule with nft -a list chain.";
}

impl Code {
    /// Parses the code of a diagnostic from another program. Returns [`Code::Unknown`] for the empty code of an older program,
    /// and for a code that only newer programs know.
    pub fn received(text: &str) -> Self {
        Self::named(text).unwrap_or(Self::Unknown)
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
            assert_eq!(Code::named(text), Some(*code));
            assert!(!Code::ALL[..position].iter().any(|other| other.as_str() == text), "{text} occurs twice");
            assert!(code.meaning().ends_with('.') && code.remedy().ends_with('.'), "{text}");
        }
        assert_eq!(Code::named("from-the-future"), None);
    }
}
