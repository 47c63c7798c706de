from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
ERROR_REASON_CAPABILITY_MISSING: ErrorReason
ERROR_REASON_INVALID_REQUEST: ErrorReason
ERROR_REASON_NODE_NOT_SERVED: ErrorReason
ERROR_REASON_NOT_PUBLISHED: ErrorReason
ERROR_REASON_READER_STALLED: ErrorReason
ERROR_REASON_REVISION_UNKNOWN: ErrorReason
ERROR_REASON_SHUTTING_DOWN: ErrorReason
ERROR_REASON_TOO_MANY_CALLS: ErrorReason
ERROR_REASON_UNSPECIFIED: ErrorReason

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
