from . import reader_pb2 as _reader_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

ADDRESS_KIND_CLUSTER_IP: AddressKind
ADDRESS_KIND_EXTERNAL_IP: AddressKind
ADDRESS_KIND_LOAD_BALANCER_IP: AddressKind
ADDRESS_KIND_UNSPECIFIED: AddressKind
DESCRIPTOR: _descriptor.FileDescriptor
HASH_BY_CONNECTION: HashBy
HASH_BY_SOURCE: HashBy
HASH_BY_UNSPECIFIED: HashBy
PROTOCOL_SCTP: Protocol
PROTOCOL_TCP: Protocol
PROTOCOL_UDP: Protocol
PROTOCOL_UNSPECIFIED: Protocol
SCOPE_ESTABLISHED: Scope
SCOPE_EXTERNAL: Scope
SCOPE_INTERNAL: Scope
SCOPE_SHORT_CIRCUIT: Scope
SCOPE_UNSPECIFIED: Scope
SERVICE_TYPE_CLUSTER_IP: ServiceType
SERVICE_TYPE_EXTERNAL_NAME: ServiceType
SERVICE_TYPE_LOAD_BALANCER: ServiceType
SERVICE_TYPE_NODE_PORT: ServiceType
SERVICE_TYPE_UNSPECIFIED: ServiceType
TRAFFIC_POLICY_CLUSTER: TrafficPolicy
TRAFFIC_POLICY_LOCAL: TrafficPolicy
TRAFFIC_POLICY_UNSPECIFIED: TrafficPolicy
VERDICT_DROP: Verdict
VERDICT_REJECT: Verdict
VERDICT_UNSPECIFIED: Verdict

class ClientIpAffinity(_message.Message):
    __slots__ = ["timeout_seconds"]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    timeout_seconds: int
    def __init__(self, timeout_seconds: _Optional[int] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ["address", "details", "digest", "hostname", "local", "ordinal", "ports", "scopes", "weight"]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    address: str
    details: EndpointDetails
    digest: int
    hostname: str
    local: bool
    ordinal: int
    ports: _containers.RepeatedCompositeFieldContainer[EndpointPort]
    scopes: _containers.RepeatedScalarFieldContainer[Scope]
    weight: int
    def __init__(self, digest: _Optional[int] = ..., address: _Optional[str] = ..., ordinal: _Optional[int] = ..., ports: _Optional[_Iterable[_Union[EndpointPort, _Mapping]]] = ..., scopes: _Optional[_Iterable[_Union[Scope, str]]] = ..., local: bool = ..., hostname: _Optional[str] = ..., weight: _Optional[int] = ..., details: _Optional[_Union[EndpointDetails, _Mapping]] = ...) -> None: ...

class EndpointDetails(_message.Message):
    __slots__ = ["node_name", "target_ref", "zone"]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    TARGET_REF_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    node_name: str
    target_ref: TargetRef
    zone: str
    def __init__(self, node_name: _Optional[str] = ..., zone: _Optional[str] = ..., target_ref: _Optional[_Union[TargetRef, _Mapping]] = ...) -> None: ...

class EndpointKey(_message.Message):
    __slots__ = ["address", "ordinal"]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    address: str
    ordinal: int
    def __init__(self, address: _Optional[str] = ..., ordinal: _Optional[int] = ...) -> None: ...

class EndpointPort(_message.Message):
    __slots__ = ["name", "number", "protocol"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    name: str
    number: int
    protocol: Protocol
    def __init__(self, name: _Optional[str] = ..., number: _Optional[int] = ..., protocol: _Optional[_Union[Protocol, str]] = ...) -> None: ...

class Service(_message.Message):
    __slots__ = ["addresses", "annotations", "client_ip_affinity", "close_connections_after_seconds", "digest", "external_name", "external_policy", "hash", "health_check_node_port", "internal_policy", "labels", "ports", "requires", "source_filters", "type", "uid", "withheld"]
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
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    ANNOTATIONS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_IP_AFFINITY_FIELD_NUMBER: _ClassVar[int]
    CLOSE_CONNECTIONS_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_NAME_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_POLICY_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    HEALTH_CHECK_NODE_PORT_FIELD_NUMBER: _ClassVar[int]
    INTERNAL_POLICY_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    REQUIRES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FILTERS_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedCompositeFieldContainer[ServiceAddress]
    annotations: _containers.ScalarMap[str, str]
    client_ip_affinity: ClientIpAffinity
    close_connections_after_seconds: int
    digest: int
    external_name: str
    external_policy: TrafficPolicy
    hash: HashBy
    health_check_node_port: int
    internal_policy: TrafficPolicy
    labels: _containers.ScalarMap[str, str]
    ports: _containers.RepeatedCompositeFieldContainer[ServicePort]
    requires: _containers.RepeatedScalarFieldContainer[_reader_pb2.Capability]
    source_filters: _containers.RepeatedCompositeFieldContainer[SourceFilter]
    type: ServiceType
    uid: str
    withheld: bool
    def __init__(self, digest: _Optional[int] = ..., uid: _Optional[str] = ..., type: _Optional[_Union[ServiceType, str]] = ..., requires: _Optional[_Iterable[_Union[_reader_pb2.Capability, str]]] = ..., withheld: bool = ..., addresses: _Optional[_Iterable[_Union[ServiceAddress, _Mapping]]] = ..., ports: _Optional[_Iterable[_Union[ServicePort, _Mapping]]] = ..., internal_policy: _Optional[_Union[TrafficPolicy, str]] = ..., external_policy: _Optional[_Union[TrafficPolicy, str]] = ..., client_ip_affinity: _Optional[_Union[ClientIpAffinity, _Mapping]] = ..., health_check_node_port: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ..., annotations: _Optional[_Mapping[str, str]] = ..., close_connections_after_seconds: _Optional[int] = ..., hash: _Optional[_Union[HashBy, str]] = ..., source_filters: _Optional[_Iterable[_Union[SourceFilter, _Mapping]]] = ..., external_name: _Optional[str] = ...) -> None: ...

class ServiceAddress(_message.Message):
    __slots__ = ["address", "kind"]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    address: str
    kind: AddressKind
    def __init__(self, address: _Optional[str] = ..., kind: _Optional[_Union[AddressKind, str]] = ...) -> None: ...

class ServiceKey(_message.Message):
    __slots__ = ["name", "namespace"]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ServicePort(_message.Message):
    __slots__ = ["app_protocol", "name", "node_port", "number", "protocol", "when_empty_ipv4", "when_empty_ipv6"]
    APP_PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_PORT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    WHEN_EMPTY_IPV4_FIELD_NUMBER: _ClassVar[int]
    WHEN_EMPTY_IPV6_FIELD_NUMBER: _ClassVar[int]
    app_protocol: str
    name: str
    node_port: int
    number: int
    protocol: Protocol
    when_empty_ipv4: WhenEmpty
    when_empty_ipv6: WhenEmpty
    def __init__(self, name: _Optional[str] = ..., protocol: _Optional[_Union[Protocol, str]] = ..., number: _Optional[int] = ..., node_port: _Optional[int] = ..., app_protocol: _Optional[str] = ..., when_empty_ipv4: _Optional[_Union[WhenEmpty, _Mapping]] = ..., when_empty_ipv6: _Optional[_Union[WhenEmpty, _Mapping]] = ...) -> None: ...

class SourceFilter(_message.Message):
    __slots__ = ["addresses", "source_ranges"]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_RANGES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    source_ranges: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, addresses: _Optional[_Iterable[str]] = ..., source_ranges: _Optional[_Iterable[str]] = ...) -> None: ...

class TargetRef(_message.Message):
    __slots__ = ["kind", "name", "namespace", "uid"]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    namespace: str
    uid: str
    def __init__(self, kind: _Optional[str] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., uid: _Optional[str] = ...) -> None: ...

class WhenEmpty(_message.Message):
    __slots__ = ["external", "internal"]
    EXTERNAL_FIELD_NUMBER: _ClassVar[int]
    INTERNAL_FIELD_NUMBER: _ClassVar[int]
    external: Verdict
    internal: Verdict
    def __init__(self, internal: _Optional[_Union[Verdict, str]] = ..., external: _Optional[_Union[Verdict, str]] = ...) -> None: ...

class ServiceType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class TrafficPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class AddressKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class HashBy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Protocol(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Scope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
