from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional, Union as _Union

CAPABILITY_SOURCE_FILTERS: Capability
CAPABILITY_UNSPECIFIED: Capability
DESCRIPTOR: _descriptor.FileDescriptor
READER_ROLE_BACKEND: ReaderRole
READER_ROLE_OBSERVER: ReaderRole
READER_ROLE_UNSPECIFIED: ReaderRole

class Reader(_message.Message):
    __slots__ = ["capabilities", "name", "role", "version"]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    capabilities: _containers.RepeatedScalarFieldContainer[Capability]
    name: str
    role: ReaderRole
    version: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., role: _Optional[_Union[ReaderRole, str]] = ..., capabilities: _Optional[_Iterable[_Union[Capability, str]]] = ...) -> None: ...

class ReaderRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Capability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
