"""Reads one answer of the brain. The comment of `StateService` in proto/localnet/v1/state.proto contains the steps."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from ..errors import BrainError, check_cancelled
from ..localnet import v1 as pb
from ..localnet.v1.state_pb2_grpc import StateServiceStub
from ..state import Revision, ServiceKey
from .errors import describe
from .state import EndpointKey

_MODULUS = 1 << 64
_KNOWN_PROTOCOLS = frozenset(pb.Protocol.values()) - {pb.PROTOCOL_UNSPECIFIED}
_KNOWN_KINDS = frozenset(pb.AddressKind.values()) - {pb.ADDRESS_KIND_UNSPECIFIED}


@dataclass
class Update:
    """A valid `ServiceUpdate`, with the digests apart from the records."""

    key: ServiceKey
    removed: bool
    replace: bool
    service: pb.Service | None = None
    """None if unchanged."""
    digest: int = 0
    """The digest of `service`."""
    gone: list[EndpointKey] = field(default_factory=list)
    endpoints: list[tuple[EndpointKey, pb.Endpoint]] = field(default_factory=list)
    digests: dict[EndpointKey, int] = field(default_factory=dict)
    """The digest of each of `endpoints`."""


@dataclass
class Answer:
    """A complete answer with the right sum: a full state, or changes of the state that the reader has."""

    revision: Revision
    full: bool
    node: pb.NodeState | None = None
    """None if the answer does not change it."""
    updates: list[Update] = field(default_factory=list)


@dataclass
class _Digests:
    """The digests of the records of one Service."""

    service: int = 0
    endpoints: dict[EndpointKey, int] = field(default_factory=dict)


@dataclass
class Held:
    """What the reader must remember to read the next answer. The records themselves are in the `State`."""

    token: str = ""
    sum: int = 0
    """The sum of all digests. Modulo 2^64, it is that of the brain."""
    node: int | None = None
    services: dict[ServiceKey, _Digests] = field(default_factory=dict)

    def accept(self, messages: Sequence[pb.NextStateResponse | None]) -> Answer:
        """Checks an answer to a request with the token, whose stream has ended with OK. gRPC passes None if it cannot decode a message.

        An answer without its end changes nothing. After any other error, nothing is held, so that the next answer is a full state.

        Raises:
            ValueError: The answer cannot be used.
        """
        if None not in messages and not (messages and messages[-1].HasField("commit")):
            raise ValueError("the brain sent an answer without its end")
        try:
            return self._read(messages)
        except ValueError:
            self.__init__()
            raise

    def _read(self, messages: Sequence[pb.NextStateResponse | None]) -> Answer:
        if None in messages:
            raise _invalid("a message that is not a NextStateResponse")
        if not messages[0].HasField("begin"):
            raise _invalid("begin is missing from the first message")
        begin, commit = messages[0].begin, messages[-1].commit
        try:
            revision = Revision(int(begin.revision.instance, 16), begin.revision.number)
        except ValueError:
            raise _invalid(f'begin.revision.instance: "{begin.revision.instance}" is no hexadecimal number') from None
        answer = Answer(revision, full=not begin.base)
        if answer.full:
            self.__init__()
        elif begin.base != self.token:
            raise _lost("the answer continues another state")
        for message in messages:
            if message.HasField("node"):
                self.sum += message.node.digest - (self.node or 0)
                self.node, answer.node = message.node.digest, message.node
                message.node.ClearField("digest")
            for record in message.services:
                update = _decode(record)
                self._update(update)
                answer.updates.append(update)
        if (self.sum - commit.digest) % _MODULUS:
            raise _lost("the sum of the digests differs")
        if self.node is None:
            raise _lost("there are no facts about the node")
        self.token = commit.token
        return answer

    def _update(self, update: Update) -> None:
        """Counts the records of an update, in the order of the numbers of its fields."""
        of = self.services.get(update.key)
        if of is not None and (update.removed or update.replace):
            self.sum -= of.service + sum(of.endpoints.values())
            del self.services[update.key]
            of = None
        if update.removed:
            return
        if of is None:
            if update.service is None:
                raise _lost("the answer changes a Service that the reader does not have")
            of = self.services[update.key] = _Digests()
        if update.service is not None:
            self.sum += update.digest - of.service
            of.service = update.digest
        for at in update.gone:
            self.sum -= of.endpoints.pop(at, 0)
        for at, digest in update.digests.items():
            self.sum += digest - of.endpoints.get(at, 0)
            of.endpoints[at] = digest


def _invalid(problem: str) -> ValueError:
    return ValueError(f"the brain sent an invalid state: {problem}")


def _lost(what: str) -> ValueError:
    return ValueError(f"the state is incomplete: {what}; reading it again")


def _decode(record: pb.ServiceUpdate) -> Update:
    """Checks an update, and takes the digests out of its records.

    Raises:
        ValueError: A field is invalid.
    """
    update = Update(ServiceKey(record.key.namespace, record.key.name), record.removed, record.replace)
    if not all(update.key):
        raise _invalid(f'Service "{update.key}" lacks its namespace or name')
    try:
        if record.HasField("service"):
            update.service, update.digest = record.service, record.service.digest
            record.service.ClearField("digest")
            _check_service(record.service)
        for gone in record.removed_endpoints:
            _check_address("removed_endpoints.address", gone.address)
            update.gone.append(EndpointKey(gone.address, gone.ordinal))
        for endpoint in record.endpoints:
            _check_address("endpoints.address", endpoint.address)
            for port in endpoint.ports:
                _check_port("endpoints.ports.number", port.number)
            at = EndpointKey(endpoint.address, endpoint.ordinal)
            update.digests[at] = endpoint.digest
            endpoint.ClearField("digest")
            update.endpoints.append((at, endpoint))
    except ValueError as error:
        raise _invalid(f"Service {update.key}: {error}") from None
    return update


def _check_service(service: pb.Service) -> None:
    """Checks the fields that backends parse, and removes what only a newer version knows."""
    for index in reversed(range(len(service.ports))):
        if service.ports[index].protocol not in _KNOWN_PROTOCOLS:
            del service.ports[index]
    for index in reversed(range(len(service.addresses))):
        if service.addresses[index].kind not in _KNOWN_KINDS:
            del service.addresses[index]
    for port in service.ports:
        _check_port("ports.number", port.number)
        if port.node_port:
            _check_port("ports.node_port", port.node_port)
    for address in service.addresses:
        _check_address("addresses.address", address.address)


def _check_port(what: str, number: int) -> None:
    if not 1 <= number <= 65535:
        raise ValueError(f"{what}: {number} is not a port number")


def _check_address(what: str, address: str) -> None:
    try:
        socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    except OSError:
        raise ValueError(f'{what}: "{address}" is not an IP address') from None


async def next_answer(channel: grpc.aio.Channel, request: pb.NextStateRequest, held: Held) -> Answer:
    """Waits for a state other than the one that is held. `request` says what the reader wants; its token is set.

    Raises:
        BrainError: The stream did not end with OK, or the answer cannot be used.
    """
    request.token = held.token
    call = StateServiceStub(channel).NextState(request)
    try:
        return held.accept([message async for message in call])
    except grpc.RpcError as error:
        check_cancelled()
        raise BrainError(describe(error)) from error
    except ValueError as error:
        raise BrainError(str(error)) from error
    finally:
        call.cancel()
