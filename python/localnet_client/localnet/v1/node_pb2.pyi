from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

CLUSTER_IP_MASQUERADE_ALL: ClusterIpMasquerade
CLUSTER_IP_MASQUERADE_EXCEPT_LOCAL_PODS: ClusterIpMasquerade
CLUSTER_IP_MASQUERADE_NONE: ClusterIpMasquerade
CLUSTER_IP_MASQUERADE_UNSPECIFIED: ClusterIpMasquerade
DESCRIPTOR: _descriptor.FileDescriptor
LOCAL_POD_DETECTION_INTERFACE: LocalPodDetection
LOCAL_POD_DETECTION_INTERFACE_PREFIX: LocalPodDetection
LOCAL_POD_DETECTION_NONE: LocalPodDetection
LOCAL_POD_DETECTION_SOURCE: LocalPodDetection
LOCAL_POD_DETECTION_UNSPECIFIED: LocalPodDetection

class LocalPods(_message.Message):
    __slots__ = ["cidrs", "detection", "interface"]
    CIDRS_FIELD_NUMBER: _ClassVar[int]
    DETECTION_FIELD_NUMBER: _ClassVar[int]
    INTERFACE_FIELD_NUMBER: _ClassVar[int]
    cidrs: _containers.RepeatedScalarFieldContainer[str]
    detection: LocalPodDetection
    interface: str
    def __init__(self, detection: _Optional[_Union[LocalPodDetection, str]] = ..., cidrs: _Optional[_Iterable[str]] = ..., interface: _Optional[str] = ...) -> None: ...

class NodePortAddresses(_message.Message):
    __slots__ = ["addresses", "interface_cidrs"]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    INTERFACE_CIDRS_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    interface_cidrs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, addresses: _Optional[_Iterable[str]] = ..., interface_cidrs: _Optional[_Iterable[str]] = ...) -> None: ...

class NodeState(_message.Message):
    __slots__ = ["addresses", "digest", "name", "pod_cidrs", "service_cidrs", "traffic", "zone"]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    POD_CIDRS_FIELD_NUMBER: _ClassVar[int]
    SERVICE_CIDRS_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    digest: int
    name: str
    pod_cidrs: _containers.RepeatedScalarFieldContainer[str]
    service_cidrs: _containers.RepeatedScalarFieldContainer[str]
    traffic: TrafficSettings
    zone: str
    def __init__(self, digest: _Optional[int] = ..., name: _Optional[str] = ..., zone: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ..., pod_cidrs: _Optional[_Iterable[str]] = ..., service_cidrs: _Optional[_Iterable[str]] = ..., traffic: _Optional[_Union[TrafficSettings, _Mapping]] = ...) -> None: ...

class TrafficSettings(_message.Message):
    __slots__ = ["cluster_ip_masquerade", "local_pods", "masquerade_mark_bit", "node_ports"]
    CLUSTER_IP_MASQUERADE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_PODS_FIELD_NUMBER: _ClassVar[int]
    MASQUERADE_MARK_BIT_FIELD_NUMBER: _ClassVar[int]
    NODE_PORTS_FIELD_NUMBER: _ClassVar[int]
    cluster_ip_masquerade: ClusterIpMasquerade
    local_pods: LocalPods
    masquerade_mark_bit: int
    node_ports: NodePortAddresses
    def __init__(self, node_ports: _Optional[_Union[NodePortAddresses, _Mapping]] = ..., local_pods: _Optional[_Union[LocalPods, _Mapping]] = ..., cluster_ip_masquerade: _Optional[_Union[ClusterIpMasquerade, str]] = ..., masquerade_mark_bit: _Optional[int] = ...) -> None: ...

class LocalPodDetection(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class ClusterIpMasquerade(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
