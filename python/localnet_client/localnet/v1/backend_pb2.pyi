from . import node_pb2 as _node_pb2
from . import service_pb2 as _service_pb2
from . import state_pb2 as _state_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
IP_FAMILY_IPV4: IpFamily
IP_FAMILY_IPV6: IpFamily
IP_FAMILY_UNSPECIFIED: IpFamily
SEVERITY_ERROR: Severity
SEVERITY_UNSPECIFIED: Severity
SEVERITY_WARNING: Severity

class Diagnostic(_message.Message):
    __slots__ = ["code", "field", "problem", "remedy", "severity"]
    CODE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    code: str
    field: str
    problem: str
    remedy: str
    severity: Severity
    def __init__(self, code: _Optional[str] = ..., severity: _Optional[_Union[Severity, str]] = ..., field: _Optional[str] = ..., problem: _Optional[str] = ..., remedy: _Optional[str] = ...) -> None: ...

class FamilyStatus(_message.Message):
    __slots__ = ["applied", "applied_digest", "error", "family"]
    APPLIED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    applied: _state_pb2.Revision
    applied_digest: int
    error: str
    family: IpFamily
    def __init__(self, family: _Optional[_Union[IpFamily, str]] = ..., applied: _Optional[_Union[_state_pb2.Revision, _Mapping]] = ..., applied_digest: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class ReportStatusRequest(_message.Message):
    __slots__ = ["families", "kube_proxy_mode", "reader_name", "received", "repairs", "skipped", "traffic", "warnings"]
    FAMILIES_FIELD_NUMBER: _ClassVar[int]
    KUBE_PROXY_MODE_FIELD_NUMBER: _ClassVar[int]
    READER_NAME_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    REPAIRS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    families: _containers.RepeatedCompositeFieldContainer[FamilyStatus]
    kube_proxy_mode: str
    reader_name: str
    received: _state_pb2.Revision
    repairs: int
    skipped: SkippedParts
    traffic: _node_pb2.TrafficSettings
    warnings: _containers.RepeatedCompositeFieldContainer[Diagnostic]
    def __init__(self, reader_name: _Optional[str] = ..., received: _Optional[_Union[_state_pb2.Revision, _Mapping]] = ..., families: _Optional[_Iterable[_Union[FamilyStatus, _Mapping]]] = ..., skipped: _Optional[_Union[SkippedParts, _Mapping]] = ..., traffic: _Optional[_Union[_node_pb2.TrafficSettings, _Mapping]] = ..., warnings: _Optional[_Iterable[_Union[Diagnostic, _Mapping]]] = ..., repairs: _Optional[int] = ..., kube_proxy_mode: _Optional[str] = ...) -> None: ...

class ReportStatusResponse(_message.Message):
    __slots__ = ["complete_report_wanted"]
    COMPLETE_REPORT_WANTED_FIELD_NUMBER: _ClassVar[int]
    complete_report_wanted: bool
    def __init__(self, complete_report_wanted: bool = ...) -> None: ...

class SkippedPart(_message.Message):
    __slots__ = ["diagnostic", "service"]
    DIAGNOSTIC_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    diagnostic: Diagnostic
    service: _service_pb2.ServiceKey
    def __init__(self, service: _Optional[_Union[_service_pb2.ServiceKey, _Mapping]] = ..., diagnostic: _Optional[_Union[Diagnostic, _Mapping]] = ...) -> None: ...

class SkippedParts(_message.Message):
    __slots__ = ["count", "parts"]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    count: int
    parts: _containers.RepeatedCompositeFieldContainer[SkippedPart]
    def __init__(self, parts: _Optional[_Iterable[_Union[SkippedPart, _Mapping]]] = ..., count: _Optional[int] = ...) -> None: ...

class IpFamily(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Severity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
