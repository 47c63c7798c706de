from . import node_pb2 as _node_pb2
from . import reader_pb2 as _reader_pb2
from . import service_pb2 as _service_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
VIEW_DNS: View
VIEW_UNSPECIFIED: View

class Begin(_message.Message):
    __slots__ = ["base", "revision"]
    BASE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    base: str
    revision: Revision
    def __init__(self, revision: _Optional[_Union[Revision, _Mapping]] = ..., base: _Optional[str] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ["digest", "token"]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    digest: int
    token: str
    def __init__(self, token: _Optional[str] = ..., digest: _Optional[int] = ...) -> None: ...

class MetadataSelector(_message.Message):
    __slots__ = ["annotation_keys", "label_keys"]
    ANNOTATION_KEYS_FIELD_NUMBER: _ClassVar[int]
    LABEL_KEYS_FIELD_NUMBER: _ClassVar[int]
    annotation_keys: _containers.RepeatedScalarFieldContainer[str]
    label_keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, label_keys: _Optional[_Iterable[str]] = ..., annotation_keys: _Optional[_Iterable[str]] = ...) -> None: ...

class NextStateRequest(_message.Message):
    __slots__ = ["endpoint_details", "full", "metadata", "node_name", "reader", "token", "view"]
    ENDPOINT_DETAILS_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    endpoint_details: bool
    full: bool
    metadata: MetadataSelector
    node_name: str
    reader: _reader_pb2.Reader
    token: str
    view: View
    def __init__(self, reader: _Optional[_Union[_reader_pb2.Reader, _Mapping]] = ..., node_name: _Optional[str] = ..., token: _Optional[str] = ..., full: bool = ..., metadata: _Optional[_Union[MetadataSelector, _Mapping]] = ..., endpoint_details: bool = ..., view: _Optional[_Union[View, str]] = ...) -> None: ...

class NextStateResponse(_message.Message):
    __slots__ = ["begin", "commit", "node", "services"]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    begin: Begin
    commit: Commit
    node: _node_pb2.NodeState
    services: _containers.RepeatedCompositeFieldContainer[ServiceUpdate]
    def __init__(self, begin: _Optional[_Union[Begin, _Mapping]] = ..., node: _Optional[_Union[_node_pb2.NodeState, _Mapping]] = ..., services: _Optional[_Iterable[_Union[ServiceUpdate, _Mapping]]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ...) -> None: ...

class Revision(_message.Message):
    __slots__ = ["instance", "number"]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    instance: str
    number: int
    def __init__(self, instance: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class ServiceUpdate(_message.Message):
    __slots__ = ["endpoints", "key", "removed", "removed_endpoints", "replace", "service"]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    REMOVED_ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    endpoints: _containers.RepeatedCompositeFieldContainer[_service_pb2.Endpoint]
    key: _service_pb2.ServiceKey
    removed: bool
    removed_endpoints: _containers.RepeatedCompositeFieldContainer[_service_pb2.EndpointKey]
    replace: bool
    service: _service_pb2.Service
    def __init__(self, key: _Optional[_Union[_service_pb2.ServiceKey, _Mapping]] = ..., removed: bool = ..., replace: bool = ..., service: _Optional[_Union[_service_pb2.Service, _Mapping]] = ..., removed_endpoints: _Optional[_Iterable[_Union[_service_pb2.EndpointKey, _Mapping]]] = ..., endpoints: _Optional[_Iterable[_Union[_service_pb2.Endpoint, _Mapping]]] = ...) -> None: ...

class View(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
