"""Reads one answer of the brain. proto/localnetv1.proto, at `Endpoints.Next`, contains the rules of an answer.

The checks refuse an answer that breaks these rules, because a backend could otherwise apply a part of a state as a whole one.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

import grpc

from . import localnetv1_pb2 as pb
from .errors import BrainError, check_cancelled, describe
from .localnetv1_pb2_grpc import EndpointsStub
from .state import Revision, ServiceKey

_KNOWN_PROTOCOLS = frozenset(pb.Protocol.values()) - {pb.UnknownProtocol}


@dataclass
class Answer:
    """A full state, or the changes since the revision in the request."""

    revision: Revision = Revision()
    delta: bool = False
    node: pb.NodeState | None = None
    """None if a delta does not change it."""
    services: dict[ServiceKey, pb.ServiceEndpoints] = field(default_factory=dict)
    removed: list[ServiceKey] = field(default_factory=list)
    _started: bool = False  # Whether the first item was added.
    _last: ServiceKey | None = None  # The Service of the previous item, which the next item may continue.

    def add(self, item: pb.NextItem | None) -> None:
        """Adds the next item of the stream. gRPC passes None if it cannot decode a message.

        Raises:
            ValueError: The answer is invalid.
        """
        if item is None:
            raise ValueError("a message that is not a NextItem")
        if not self._started:
            if not item.HasField("Next"):
                raise ValueError("Next is missing from the first item")
            self._started, self.revision, self.delta = True, Revision(item.Next.InstanceID, item.Next.Rev), item.Next.Delta
        elif item.HasField("Next"):
            raise ValueError("Next is allowed only in the first item")
        if item.HasField("Node"):
            self.node = item.Node
        if item.HasField("Removed"):
            self.removed.append(ServiceKey(item.Removed.Namespace, item.Removed.Name))
        if item.HasField("Endpoints"):
            self._add_service(item.Endpoints)

    def _add_service(self, item: pb.ServiceEndpoints) -> None:
        key = ServiceKey(item.Service.Namespace, item.Service.Name)
        if not all(key):
            raise ValueError(f'Service "{key}" lacks its namespace or name')
        for endpoint in item.Endpoints:
            _check_addresses(key, endpoint.IPs)
            for at in endpoint.PortOverrides:
                if not 1 <= at.Port <= 65535:
                    raise ValueError(f"Service {key}: PortOverrides: {at.Port} is not a port number")
        # A newer brain may send ports with protocols that this version does not know.
        ports = item.Service.Ports
        for index in reversed(range(len(ports))):
            if ports[index].Protocol not in _KNOWN_PROTOCOLS:
                del ports[index]
        if item.Continues:
            if self._last != key:
                raise ValueError(f"Service {key}: Continues does not follow an item of the Service")
            self.services[key].Endpoints.extend(item.Endpoints)
        elif key in self.services:
            raise ValueError(f"Service {key} is sent twice")
        else:
            self.services[key], self._last = item, key

    def check(self, delta: bool) -> None:
        """Checks an answer whose stream has ended with OK. `delta` is whether the request accepts a delta.

        Raises:
            ValueError: The answer is invalid.
        """
        if self.revision == Revision():
            raise ValueError("the answer is empty")
        if self.delta:
            if not delta:  # There is no state to which the changes could be applied.
                raise ValueError("changes instead of the requested full state")
            for key in self.removed:
                if key in self.services:
                    raise ValueError(f"Service {key} is both sent and removed")
        elif self.node is None:
            raise ValueError("Node is missing from a full state")
        elif self.removed:
            raise ValueError("Removed is not allowed in a full state")


def _check_addresses(key: ServiceKey, ips: pb.IPSet) -> None:
    if len(ips.V4) + len(ips.V6) != 1:
        raise ValueError(f"Service {key}: Endpoints.IPs: an endpoint has {len(ips.V4) + len(ips.V6)} addresses instead of one")
    for family, addresses in ((socket.AF_INET, ips.V4), (socket.AF_INET6, ips.V6)):
        for address in addresses:
            try:
                socket.inet_pton(family, address)
            except OSError:
                raise ValueError(f'Service {key}: Endpoints.IPs: "{address}" is not an address of its family') from None


async def next_answer(channel: grpc.aio.Channel, have: Revision, delta: bool) -> Answer:
    """Waits for a state other than `have`. `delta` is whether the caller can apply changes to `have`.

    Raises:
        BrainError: The stream did not end with OK, or the answer is invalid.
    """
    call = EndpointsStub(channel).Next(pb.NextFilter(InstanceID=have.instance_id, Rev=have.rev, Delta=delta))
    answer = Answer()
    try:
        async for item in call:
            answer.add(item)
        answer.check(delta)
    except grpc.RpcError as error:
        check_cancelled()
        raise BrainError(describe(error)) from error
    except ValueError as error:
        raise BrainError(f"the brain sent an invalid state: {error}") from error
    finally:
        call.cancel()  # Ends the stream of an invalid answer.
    return answer
