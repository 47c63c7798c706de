"""Why the brain has refused a call: `google.rpc.ErrorInfo` in the details of a status."""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from .. import errors
from ..localnet import v1 as pb

_DOMAIN = "localnet.dev"
_TYPE = "type.googleapis.com/google.rpc.ErrorInfo"


def reason(error: BaseException) -> tuple[pb.ErrorReason, dict[str, str]]:
    """Why the brain has refused a call, with the metadata that the comment of the reason lists.

    It understands a `BrainError`, and the `grpc.RpcError` of a stub. `ERROR_REASON_UNSPECIFIED` stands for all errors without a reason,
    such as those of the network, and for reasons that this version does not know: go by the gRPC code then.
    """
    cause = error if isinstance(error, grpc.RpcError) else error.__cause__
    if isinstance(cause, grpc.RpcError):
        for key, value in cause.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                try:
                    return _reason(value)
                except ValueError:
                    break
    return pb.ERROR_REASON_UNSPECIFIED, {}


def _reason(status: bytes) -> tuple[pb.ErrorReason, dict[str, str]]:
    """Reads a `google.rpc.Status`. Its details are of the type `google.protobuf.Any`.

    Raises:
        ValueError: There is no known reason, or the bytes are no such message.
    """
    for number, detail in _fields(status):
        if number == 3:
            of = dict(_fields(detail))
            if of.get(1, b"").decode() == _TYPE:
                info = list(_fields(of.get(2, b"")))
                texts = {number: value.decode() for number, value in info if number in (1, 2)}
                entries = [dict(_fields(value)) for number, value in info if number == 3]
                if texts.get(2) == _DOMAIN:
                    metadata = {entry.get(1, b"").decode(): entry.get(2, b"").decode() for entry in entries}
                    return pb.ErrorReason.Value(f"ERROR_REASON_{texts.get(1)}"), metadata
    raise ValueError("no reason")


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a message that have a length: strings, bytes and messages. The messages in question have no other fields but numbers.

    Raises:
        ValueError: The bytes are no such message.
    """
    rest = memoryview(message)
    while rest:
        tag, rest = _number(rest)
        value, rest = _number(rest)
        if tag & 7 == 2:
            if value > len(rest):
                raise ValueError("the message is cut")
            yield tag >> 3, bytes(rest[:value])
            rest = rest[value:]
        elif tag & 7 != 0:
            raise ValueError("a field of another type")


def _number(rest: memoryview) -> tuple[int, memoryview]:
    """A varint, and what follows it."""
    value = 0
    for at, byte in enumerate(rest[:10]):
        value |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return value, rest[at + 1 :]
    raise ValueError("the message is cut")


def describe(error: grpc.RpcError) -> str:
    """Why a call failed, in one line."""
    text = errors.describe(error)
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return f"the brain does not serve localnet.v1: {text}; start it with --draft-v1, or read localnetv1"
    return text
