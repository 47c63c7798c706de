from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
DetectLocalBridgeInterface: DetectLocal
DetectLocalClusterCIDR: DetectLocal
DetectLocalInterfaceNamePrefix: DetectLocal
DetectLocalNodeCIDR: DetectLocal
DetectLocalNone: DetectLocal
DetectLocalUnknown: DetectLocal
Drop: Verdict
EndpointsSet: Set
GlobalEndpointInfos: Set
GlobalNodeInfos: Set
GlobalServiceInfos: Set
HashConnection: HashBy
HashNothing: HashBy
HashSource: HashBy
IPv4: IPFamily
IPv6: IPFamily
NearnessEverywhere: Nearness
NearnessSameNode: Nearness
NearnessSameZone: Nearness
NearnessUnknown: Nearness
NodeStateSet: Set
OtherEndpointsSet: Set
Reject: Verdict
RuleAddress: Rule
RuleAddressType: Rule
RuleDuplicate: Rule
RuleExternalLocal: Rule
RuleFamily: Rule
RuleHeadlessSlice: Rule
RuleInternalLocal: Rule
RuleNotReady: Rule
RuleNotServing: Rule
RuleOtherNode: Rule
RuleOtherZone: Rule
RulePortName: Rule
RulePortNumber: Rule
RulePortProtocol: Rule
RuleReserved: Rule
RuleTerminating: Rule
RuleUnknown: Rule
RuleWeight: Rule
SCTP: Protocol
ServicesSet: Set
SeverityError: Severity
SeverityUnknown: Severity
SeverityWarning: Severity
StandingAbsent: Standing
StandingExternalName: Standing
StandingHeadless: Standing
StandingOfAnotherProxy: Standing
StandingServed: Standing
StandingUnknown: Standing
StandingUnusable: Standing
StandingWithoutClusterIP: Standing
TCP: Protocol
UDP: Protocol
UnknownFamily: IPFamily
UnknownProtocol: Protocol
UnknownSet: Set

class Attempts(_message.Message):
    __slots__ = ["Counts", "SumMicros"]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    Counts: _containers.RepeatedScalarFieldContainer[int]
    SUMMICROS_FIELD_NUMBER: _ClassVar[int]
    SumMicros: int
    def __init__(self, Counts: _Optional[_Iterable[int]] = ..., SumMicros: _Optional[int] = ...) -> None: ...

class BackendConfiguration(_message.Message):
    __slots__ = ["ClusterCIDRs", "DetectLocal", "Interface", "MasqueradeAll", "MasqueradeBit", "NodePortAddresses", "NodePortCIDRs", "NodePortsOnPrimary"]
    CLUSTERCIDRS_FIELD_NUMBER: _ClassVar[int]
    ClusterCIDRs: _containers.RepeatedScalarFieldContainer[str]
    DETECTLOCAL_FIELD_NUMBER: _ClassVar[int]
    DetectLocal: DetectLocal
    INTERFACE_FIELD_NUMBER: _ClassVar[int]
    Interface: str
    MASQUERADEALL_FIELD_NUMBER: _ClassVar[int]
    MASQUERADEBIT_FIELD_NUMBER: _ClassVar[int]
    MasqueradeAll: bool
    MasqueradeBit: int
    NODEPORTADDRESSES_FIELD_NUMBER: _ClassVar[int]
    NODEPORTCIDRS_FIELD_NUMBER: _ClassVar[int]
    NODEPORTSONPRIMARY_FIELD_NUMBER: _ClassVar[int]
    NodePortAddresses: IPSet
    NodePortCIDRs: _containers.RepeatedScalarFieldContainer[str]
    NodePortsOnPrimary: bool
    def __init__(self, DetectLocal: _Optional[_Union[DetectLocal, str]] = ..., ClusterCIDRs: _Optional[_Iterable[str]] = ..., Interface: _Optional[str] = ..., MasqueradeAll: bool = ..., MasqueradeBit: _Optional[int] = ..., NodePortsOnPrimary: bool = ..., NodePortCIDRs: _Optional[_Iterable[str]] = ..., NodePortAddresses: _Optional[_Union[IPSet, _Mapping]] = ...) -> None: ...

class BackendReport(_message.Message):
    __slots__ = ["Backend", "Configuration", "Families", "InstanceID", "Packets", "ProxyMode", "Repairs", "Rev", "Skipped", "SkippedCount", "Warnings"]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    Backend: str
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    Configuration: BackendConfiguration
    FAMILIES_FIELD_NUMBER: _ClassVar[int]
    Families: _containers.RepeatedCompositeFieldContainer[FamilyReport]
    INSTANCEID_FIELD_NUMBER: _ClassVar[int]
    InstanceID: int
    PACKETS_FIELD_NUMBER: _ClassVar[int]
    PROXYMODE_FIELD_NUMBER: _ClassVar[int]
    Packets: PacketCounts
    ProxyMode: str
    REPAIRS_FIELD_NUMBER: _ClassVar[int]
    REV_FIELD_NUMBER: _ClassVar[int]
    Repairs: int
    Rev: int
    SKIPPEDCOUNT_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    Skipped: _containers.RepeatedCompositeFieldContainer[SkippedService]
    SkippedCount: int
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    Warnings: _containers.RepeatedCompositeFieldContainer[BackendWarning]
    def __init__(self, Backend: _Optional[str] = ..., InstanceID: _Optional[int] = ..., Rev: _Optional[int] = ..., Families: _Optional[_Iterable[_Union[FamilyReport, _Mapping]]] = ..., Skipped: _Optional[_Iterable[_Union[SkippedService, _Mapping]]] = ..., SkippedCount: _Optional[int] = ..., Warnings: _Optional[_Iterable[_Union[BackendWarning, _Mapping]]] = ..., Configuration: _Optional[_Union[BackendConfiguration, _Mapping]] = ..., Repairs: _Optional[int] = ..., ProxyMode: _Optional[str] = ..., Packets: _Optional[_Union[PacketCounts, _Mapping]] = ...) -> None: ...

class BackendReportReply(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class BackendWarning(_message.Message):
    __slots__ = ["Code", "Note", "Problem", "Reason", "Remedy"]
    CODE_FIELD_NUMBER: _ClassVar[int]
    Code: str
    NOTE_FIELD_NUMBER: _ClassVar[int]
    Note: str
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    Problem: str
    REASON_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    Reason: str
    Remedy: str
    def __init__(self, Reason: _Optional[str] = ..., Note: _Optional[str] = ..., Code: _Optional[str] = ..., Problem: _Optional[str] = ..., Remedy: _Optional[str] = ...) -> None: ...

class BrainStatus(_message.Message):
    __slots__ = ["Backends", "Digest", "Services", "SourceProblems", "State", "Unread", "Version"]
    BACKENDS_FIELD_NUMBER: _ClassVar[int]
    Backends: _containers.RepeatedCompositeFieldContainer[ReceivedReport]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    Digest: int
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    SOURCEPROBLEMS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    Services: int
    SourceProblems: _containers.RepeatedCompositeFieldContainer[SourceProblem]
    State: NextFilter
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    Unread: bool
    VERSION_FIELD_NUMBER: _ClassVar[int]
    Version: str
    def __init__(self, State: _Optional[_Union[NextFilter, _Mapping]] = ..., Services: _Optional[int] = ..., Backends: _Optional[_Iterable[_Union[ReceivedReport, _Mapping]]] = ..., Version: _Optional[str] = ..., SourceProblems: _Optional[_Iterable[_Union[SourceProblem, _Mapping]]] = ..., Unread: bool = ..., Digest: _Optional[int] = ...) -> None: ...

class ClientIPAffinity(_message.Message):
    __slots__ = ["TimeoutSeconds"]
    TIMEOUTSECONDS_FIELD_NUMBER: _ClassVar[int]
    TimeoutSeconds: int
    def __init__(self, TimeoutSeconds: _Optional[int] = ...) -> None: ...

class EmptyOp(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ["Hostname", "IPs", "Local", "PortOverrides", "Scopes", "Weight"]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    Hostname: str
    IPS_FIELD_NUMBER: _ClassVar[int]
    IPs: IPSet
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    Local: bool
    PORTOVERRIDES_FIELD_NUMBER: _ClassVar[int]
    PortOverrides: _containers.RepeatedCompositeFieldContainer[PortName]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    Scopes: EndpointScopes
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    Weight: int
    def __init__(self, Hostname: _Optional[str] = ..., IPs: _Optional[_Union[IPSet, _Mapping]] = ..., Local: bool = ..., PortOverrides: _Optional[_Iterable[_Union[PortName, _Mapping]]] = ..., Scopes: _Optional[_Union[EndpointScopes, _Mapping]] = ..., Weight: _Optional[int] = ...) -> None: ...

class EndpointConditions(_message.Message):
    __slots__ = ["Address", "Ready", "Serving", "Terminating"]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    Address: str
    READY_FIELD_NUMBER: _ClassVar[int]
    Ready: bool
    SERVING_FIELD_NUMBER: _ClassVar[int]
    Serving: bool
    TERMINATING_FIELD_NUMBER: _ClassVar[int]
    Terminating: bool
    def __init__(self, Address: _Optional[str] = ..., Ready: bool = ..., Serving: bool = ..., Terminating: bool = ...) -> None: ...

class EndpointScopes(_message.Message):
    __slots__ = ["Established", "External", "Internal", "ShortCircuit"]
    ESTABLISHED_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_FIELD_NUMBER: _ClassVar[int]
    Established: bool
    External: bool
    INTERNAL_FIELD_NUMBER: _ClassVar[int]
    Internal: bool
    SHORTCIRCUIT_FIELD_NUMBER: _ClassVar[int]
    ShortCircuit: bool
    def __init__(self, Internal: bool = ..., External: bool = ..., ShortCircuit: bool = ..., Established: bool = ...) -> None: ...

class FamilyReport(_message.Message):
    __slots__ = ["AppliedDigest", "AppliedRev", "Error", "Failures", "Family", "Flows", "Full", "Partial", "PartialFailures", "Rules"]
    APPLIEDDIGEST_FIELD_NUMBER: _ClassVar[int]
    APPLIEDREV_FIELD_NUMBER: _ClassVar[int]
    AppliedDigest: int
    AppliedRev: int
    ERROR_FIELD_NUMBER: _ClassVar[int]
    Error: str
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    FLOWS_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    Failures: int
    Family: IPFamily
    Flows: FlowSearches
    Full: Attempts
    PARTIALFAILURES_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    Partial: Attempts
    PartialFailures: int
    RULES_FIELD_NUMBER: _ClassVar[int]
    Rules: _containers.RepeatedCompositeFieldContainer[RuleCount]
    def __init__(self, Family: _Optional[_Union[IPFamily, str]] = ..., AppliedRev: _Optional[int] = ..., Error: _Optional[str] = ..., Full: _Optional[_Union[Attempts, _Mapping]] = ..., Partial: _Optional[_Union[Attempts, _Mapping]] = ..., Failures: _Optional[int] = ..., PartialFailures: _Optional[int] = ..., Flows: _Optional[_Union[FlowSearches, _Mapping]] = ..., Rules: _Optional[_Iterable[_Union[RuleCount, _Mapping]]] = ..., AppliedDigest: _Optional[int] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ["Code", "Field", "Object", "Problem", "Remedy", "Severity", "Skipped"]
    CODE_FIELD_NUMBER: _ClassVar[int]
    Code: str
    FIELD_FIELD_NUMBER: _ClassVar[int]
    Field: str
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    Object: str
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    Problem: str
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    Remedy: str
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    Severity: Severity
    Skipped: bool
    def __init__(self, Skipped: bool = ..., Object: _Optional[str] = ..., Field: _Optional[str] = ..., Problem: _Optional[str] = ..., Remedy: _Optional[str] = ..., Code: _Optional[str] = ..., Severity: _Optional[_Union[Severity, str]] = ...) -> None: ...

class FlowSearches(_message.Message):
    __slots__ = ["Ended", "Took"]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    Ended: int
    TOOK_FIELD_NUMBER: _ClassVar[int]
    Took: Attempts
    def __init__(self, Took: _Optional[_Union[Attempts, _Mapping]] = ..., Ended: _Optional[int] = ...) -> None: ...

class IPFilter(_message.Message):
    __slots__ = ["SourceRanges", "TargetIPs"]
    SOURCERANGES_FIELD_NUMBER: _ClassVar[int]
    SourceRanges: _containers.RepeatedScalarFieldContainer[str]
    TARGETIPS_FIELD_NUMBER: _ClassVar[int]
    TargetIPs: IPSet
    def __init__(self, TargetIPs: _Optional[_Union[IPSet, _Mapping]] = ..., SourceRanges: _Optional[_Iterable[str]] = ...) -> None: ...

class IPSet(_message.Message):
    __slots__ = ["V4", "V6"]
    V4: _containers.RepeatedScalarFieldContainer[str]
    V4_FIELD_NUMBER: _ClassVar[int]
    V6: _containers.RepeatedScalarFieldContainer[str]
    V6_FIELD_NUMBER: _ClassVar[int]
    def __init__(self, V4: _Optional[_Iterable[str]] = ..., V6: _Optional[_Iterable[str]] = ...) -> None: ...

class IneligibleEndpoint(_message.Message):
    __slots__ = ["Address", "Field", "From", "Local", "Node", "Number", "PortName", "Problem", "Remedy", "Rule", "Slice"]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    Address: str
    FIELD_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    Field: str
    From: EndpointScopes
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    Local: bool
    NODE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    Node: str
    Number: int
    PORTNAME_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    PortName: str
    Problem: str
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    Remedy: str
    Rule: Rule
    SLICE_FIELD_NUMBER: _ClassVar[int]
    Slice: str
    def __init__(self, Slice: _Optional[str] = ..., Address: _Optional[str] = ..., PortName: _Optional[str] = ..., Number: _Optional[int] = ..., Node: _Optional[str] = ..., Local: bool = ..., From: _Optional[_Union[EndpointScopes, _Mapping]] = ..., Rule: _Optional[_Union[Rule, str]] = ..., Field: _Optional[str] = ..., Problem: _Optional[str] = ..., Remedy: _Optional[str] = ...) -> None: ...

class NextFilter(_message.Message):
    __slots__ = ["Delta", "InstanceID", "Rev"]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    Delta: bool
    INSTANCEID_FIELD_NUMBER: _ClassVar[int]
    InstanceID: int
    REV_FIELD_NUMBER: _ClassVar[int]
    Rev: int
    def __init__(self, InstanceID: _Optional[int] = ..., Rev: _Optional[int] = ..., Delta: bool = ...) -> None: ...

class NextItem(_message.Message):
    __slots__ = ["Endpoints", "Next", "Node", "Removed"]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    Endpoints: ServiceEndpoints
    NEXT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    Next: NextFilter
    Node: NodeState
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    Removed: ServiceKey
    def __init__(self, Next: _Optional[_Union[NextFilter, _Mapping]] = ..., Endpoints: _Optional[_Union[ServiceEndpoints, _Mapping]] = ..., Node: _Optional[_Union[NodeState, _Mapping]] = ..., Removed: _Optional[_Union[ServiceKey, _Mapping]] = ...) -> None: ...

class NodeState(_message.Message):
    __slots__ = ["IPs", "Name", "PodCIDRs", "ServiceCIDRs", "Zone"]
    IPS_FIELD_NUMBER: _ClassVar[int]
    IPs: IPSet
    NAME_FIELD_NUMBER: _ClassVar[int]
    Name: str
    PODCIDRS_FIELD_NUMBER: _ClassVar[int]
    PodCIDRs: _containers.RepeatedScalarFieldContainer[str]
    SERVICECIDRS_FIELD_NUMBER: _ClassVar[int]
    ServiceCIDRs: _containers.RepeatedScalarFieldContainer[str]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    Zone: str
    def __init__(self, Name: _Optional[str] = ..., IPs: _Optional[_Union[IPSet, _Mapping]] = ..., Zone: _Optional[str] = ..., PodCIDRs: _Optional[_Iterable[str]] = ..., ServiceCIDRs: _Optional[_Iterable[str]] = ...) -> None: ...

class OpItem(_message.Message):
    __slots__ = ["Delete", "Reset", "Set", "Sync"]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    Delete: Ref
    RESET_FIELD_NUMBER: _ClassVar[int]
    Reset: EmptyOp
    SET_FIELD_NUMBER: _ClassVar[int]
    SYNC_FIELD_NUMBER: _ClassVar[int]
    Set: Value
    Sync: EmptyOp
    def __init__(self, Sync: _Optional[_Union[EmptyOp, _Mapping]] = ..., Reset: _Optional[_Union[EmptyOp, _Mapping]] = ..., Set: _Optional[_Union[Value, _Mapping]] = ..., Delete: _Optional[_Union[Ref, _Mapping]] = ...) -> None: ...

class PacketCounts(_message.Message):
    __slots__ = ["InvalidDropped", "LocalhostNodePortsAccepted"]
    INVALIDDROPPED_FIELD_NUMBER: _ClassVar[int]
    InvalidDropped: int
    LOCALHOSTNODEPORTSACCEPTED_FIELD_NUMBER: _ClassVar[int]
    LocalhostNodePortsAccepted: int
    def __init__(self, InvalidDropped: _Optional[int] = ..., LocalhostNodePortsAccepted: _Optional[int] = ...) -> None: ...

class PortMapping(_message.Message):
    __slots__ = ["Name", "NodePort", "Port", "Protocol", "TargetPort", "TargetPortName", "WhenEmptyV4", "WhenEmptyV6"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NODEPORT_FIELD_NUMBER: _ClassVar[int]
    Name: str
    NodePort: int
    PORT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    Port: int
    Protocol: Protocol
    TARGETPORTNAME_FIELD_NUMBER: _ClassVar[int]
    TARGETPORT_FIELD_NUMBER: _ClassVar[int]
    TargetPort: int
    TargetPortName: str
    WHENEMPTYV4_FIELD_NUMBER: _ClassVar[int]
    WHENEMPTYV6_FIELD_NUMBER: _ClassVar[int]
    WhenEmptyV4: WhenEmpty
    WhenEmptyV6: WhenEmpty
    def __init__(self, Name: _Optional[str] = ..., Protocol: _Optional[_Union[Protocol, str]] = ..., Port: _Optional[int] = ..., NodePort: _Optional[int] = ..., TargetPort: _Optional[int] = ..., TargetPortName: _Optional[str] = ..., WhenEmptyV4: _Optional[_Union[WhenEmpty, _Mapping]] = ..., WhenEmptyV6: _Optional[_Union[WhenEmpty, _Mapping]] = ...) -> None: ...

class PortName(_message.Message):
    __slots__ = ["Name", "Port"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    Name: str
    PORT_FIELD_NUMBER: _ClassVar[int]
    Port: int
    def __init__(self, Name: _Optional[str] = ..., Port: _Optional[int] = ...) -> None: ...

class ReceivedReport(_message.Message):
    __slots__ = ["AgeMillis", "Report"]
    AGEMILLIS_FIELD_NUMBER: _ClassVar[int]
    AgeMillis: int
    REPORT_FIELD_NUMBER: _ClassVar[int]
    Report: BackendReport
    def __init__(self, Report: _Optional[_Union[BackendReport, _Mapping]] = ..., AgeMillis: _Optional[int] = ...) -> None: ...

class Ref(_message.Message):
    __slots__ = ["Path", "Set"]
    PATH_FIELD_NUMBER: _ClassVar[int]
    Path: str
    SET_FIELD_NUMBER: _ClassVar[int]
    Set: Set
    def __init__(self, Set: _Optional[_Union[Set, str]] = ..., Path: _Optional[str] = ...) -> None: ...

class RuleCount(_message.Message):
    __slots__ = ["Last", "Table", "Total"]
    LAST_FIELD_NUMBER: _ClassVar[int]
    Last: int
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    Table: str
    Total: int
    def __init__(self, Table: _Optional[str] = ..., Total: _Optional[int] = ..., Last: _Optional[int] = ...) -> None: ...

class Service(_message.Message):
    __slots__ = ["Annotations", "ClientIP", "CloseConnectionsAfterSeconds", "ExternalTrafficToLocal", "Hash", "HealthCheckNodePort", "IPFilters", "IPVSScheduler", "IPs", "InternalTrafficToLocal", "Labels", "MapIP", "Name", "Namespace", "Ports", "PreserveDestination", "Type"]
    class AnnotationsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ANNOTATIONS_FIELD_NUMBER: _ClassVar[int]
    Annotations: _containers.ScalarMap[str, str]
    CLIENTIP_FIELD_NUMBER: _ClassVar[int]
    CLOSECONNECTIONSAFTERSECONDS_FIELD_NUMBER: _ClassVar[int]
    ClientIP: ClientIPAffinity
    CloseConnectionsAfterSeconds: int
    EXTERNALTRAFFICTOLOCAL_FIELD_NUMBER: _ClassVar[int]
    ExternalTrafficToLocal: bool
    HASH_FIELD_NUMBER: _ClassVar[int]
    HEALTHCHECKNODEPORT_FIELD_NUMBER: _ClassVar[int]
    Hash: HashBy
    HealthCheckNodePort: int
    INTERNALTRAFFICTOLOCAL_FIELD_NUMBER: _ClassVar[int]
    IPFILTERS_FIELD_NUMBER: _ClassVar[int]
    IPFilters: _containers.RepeatedCompositeFieldContainer[IPFilter]
    IPS_FIELD_NUMBER: _ClassVar[int]
    IPVSSCHEDULER_FIELD_NUMBER: _ClassVar[int]
    IPVSScheduler: str
    IPs: ServiceIPs
    InternalTrafficToLocal: bool
    LABELS_FIELD_NUMBER: _ClassVar[int]
    Labels: _containers.ScalarMap[str, str]
    MAPIP_FIELD_NUMBER: _ClassVar[int]
    MapIP: bool
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    Name: str
    Namespace: str
    PORTS_FIELD_NUMBER: _ClassVar[int]
    PRESERVEDESTINATION_FIELD_NUMBER: _ClassVar[int]
    Ports: _containers.RepeatedCompositeFieldContainer[PortMapping]
    PreserveDestination: bool
    TYPE_FIELD_NUMBER: _ClassVar[int]
    Type: str
    def __init__(self, Namespace: _Optional[str] = ..., Name: _Optional[str] = ..., Type: _Optional[str] = ..., IPs: _Optional[_Union[ServiceIPs, _Mapping]] = ..., MapIP: bool = ..., Ports: _Optional[_Iterable[_Union[PortMapping, _Mapping]]] = ..., ExternalTrafficToLocal: bool = ..., Labels: _Optional[_Mapping[str, str]] = ..., Annotations: _Optional[_Mapping[str, str]] = ..., IPFilters: _Optional[_Iterable[_Union[IPFilter, _Mapping]]] = ..., ClientIP: _Optional[_Union[ClientIPAffinity, _Mapping]] = ..., InternalTrafficToLocal: bool = ..., HealthCheckNodePort: _Optional[int] = ..., IPVSScheduler: _Optional[str] = ..., PreserveDestination: bool = ..., CloseConnectionsAfterSeconds: _Optional[int] = ..., Hash: _Optional[_Union[HashBy, str]] = ...) -> None: ...

class ServiceEndpoints(_message.Message):
    __slots__ = ["Continues", "Endpoints", "Service"]
    CONTINUES_FIELD_NUMBER: _ClassVar[int]
    Continues: bool
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    Endpoints: _containers.RepeatedCompositeFieldContainer[Endpoint]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    Service: Service
    def __init__(self, Service: _Optional[_Union[Service, _Mapping]] = ..., Endpoints: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ..., Continues: bool = ...) -> None: ...

class ServiceIPs(_message.Message):
    __slots__ = ["ClusterIPs", "ExternalIPs", "Headless", "LoadBalancerIPs"]
    CLUSTERIPS_FIELD_NUMBER: _ClassVar[int]
    ClusterIPs: IPSet
    EXTERNALIPS_FIELD_NUMBER: _ClassVar[int]
    ExternalIPs: IPSet
    HEADLESS_FIELD_NUMBER: _ClassVar[int]
    Headless: bool
    LOADBALANCERIPS_FIELD_NUMBER: _ClassVar[int]
    LoadBalancerIPs: IPSet
    def __init__(self, ClusterIPs: _Optional[_Union[IPSet, _Mapping]] = ..., ExternalIPs: _Optional[_Union[IPSet, _Mapping]] = ..., Headless: bool = ..., LoadBalancerIPs: _Optional[_Union[IPSet, _Mapping]] = ...) -> None: ...

class ServiceKey(_message.Message):
    __slots__ = ["Name", "Namespace"]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    Name: str
    Namespace: str
    def __init__(self, Namespace: _Optional[str] = ..., Name: _Optional[str] = ...) -> None: ...

class ServiceReasons(_message.Message):
    __slots__ = ["Endpoints", "Findings", "Ineligible", "IneligibleCount", "Service", "Slices", "Standing", "State", "Topology", "Unready"]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    Endpoints: int
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    Findings: _containers.RepeatedCompositeFieldContainer[Finding]
    INELIGIBLECOUNT_FIELD_NUMBER: _ClassVar[int]
    INELIGIBLE_FIELD_NUMBER: _ClassVar[int]
    Ineligible: _containers.RepeatedCompositeFieldContainer[IneligibleEndpoint]
    IneligibleCount: int
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    Service: ServiceKey
    Slices: int
    Standing: Standing
    State: NextFilter
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    Topology: _containers.RepeatedCompositeFieldContainer[Topology]
    UNREADY_FIELD_NUMBER: _ClassVar[int]
    Unready: _containers.RepeatedCompositeFieldContainer[EndpointConditions]
    def __init__(self, Service: _Optional[_Union[ServiceKey, _Mapping]] = ..., State: _Optional[_Union[NextFilter, _Mapping]] = ..., Standing: _Optional[_Union[Standing, str]] = ..., Findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ..., Ineligible: _Optional[_Iterable[_Union[IneligibleEndpoint, _Mapping]]] = ..., IneligibleCount: _Optional[int] = ..., Topology: _Optional[_Iterable[_Union[Topology, _Mapping]]] = ..., Slices: _Optional[int] = ..., Endpoints: _Optional[int] = ..., Unready: _Optional[_Iterable[_Union[EndpointConditions, _Mapping]]] = ...) -> None: ...

class SkippedService(_message.Message):
    __slots__ = ["Code", "Field", "Problem", "Reason", "Remedy", "Service", "Severity"]
    CODE_FIELD_NUMBER: _ClassVar[int]
    Code: str
    FIELD_FIELD_NUMBER: _ClassVar[int]
    Field: str
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    Problem: str
    REASON_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    Reason: str
    Remedy: str
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    Service: ServiceKey
    Severity: Severity
    def __init__(self, Service: _Optional[_Union[ServiceKey, _Mapping]] = ..., Reason: _Optional[str] = ..., Code: _Optional[str] = ..., Severity: _Optional[_Union[Severity, str]] = ..., Field: _Optional[str] = ..., Problem: _Optional[str] = ..., Remedy: _Optional[str] = ...) -> None: ...

class SourceProblem(_message.Message):
    __slots__ = ["AgeMillis", "Code", "Of", "Problem"]
    AGEMILLIS_FIELD_NUMBER: _ClassVar[int]
    AgeMillis: int
    CODE_FIELD_NUMBER: _ClassVar[int]
    Code: str
    OF_FIELD_NUMBER: _ClassVar[int]
    Of: str
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    Problem: str
    def __init__(self, Of: _Optional[str] = ..., Problem: _Optional[str] = ..., AgeMillis: _Optional[int] = ..., Code: _Optional[str] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class Topology(_message.Message):
    __slots__ = ["Family", "Nearness", "NotSameNode", "NotSameZone", "PortName", "Unhinted"]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    Family: IPFamily
    NEARNESS_FIELD_NUMBER: _ClassVar[int]
    NOTSAMENODE_FIELD_NUMBER: _ClassVar[int]
    NOTSAMEZONE_FIELD_NUMBER: _ClassVar[int]
    Nearness: Nearness
    NotSameNode: str
    NotSameZone: str
    PORTNAME_FIELD_NUMBER: _ClassVar[int]
    PortName: str
    UNHINTED_FIELD_NUMBER: _ClassVar[int]
    Unhinted: bool
    def __init__(self, PortName: _Optional[str] = ..., Family: _Optional[_Union[IPFamily, str]] = ..., Nearness: _Optional[_Union[Nearness, str]] = ..., NotSameNode: _Optional[str] = ..., NotSameZone: _Optional[str] = ..., Unhinted: bool = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ["Bytes", "Ref"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    Bytes: bytes
    REF_FIELD_NUMBER: _ClassVar[int]
    Ref: Ref
    def __init__(self, Ref: _Optional[_Union[Ref, _Mapping]] = ..., Bytes: _Optional[bytes] = ...) -> None: ...

class WatchReq(_message.Message):
    __slots__ = ["NodeName"]
    NODENAME_FIELD_NUMBER: _ClassVar[int]
    NodeName: str
    def __init__(self, NodeName: _Optional[str] = ...) -> None: ...

class WhenEmpty(_message.Message):
    __slots__ = ["External", "Internal"]
    EXTERNAL_FIELD_NUMBER: _ClassVar[int]
    External: Verdict
    INTERNAL_FIELD_NUMBER: _ClassVar[int]
    Internal: Verdict
    def __init__(self, Internal: _Optional[_Union[Verdict, str]] = ..., External: _Optional[_Union[Verdict, str]] = ...) -> None: ...

class HashBy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Protocol(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class IPFamily(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class DetectLocal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Standing(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Severity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Rule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Nearness(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Set(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
