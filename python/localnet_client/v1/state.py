"""The state of one node, and how it changes. Nothing here does I/O."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ..localnet import v1 as pb
from ..state import Revision, ServiceKey

if TYPE_CHECKING:
    from .answer import Answer, Update


class EndpointKey(NamedTuple):
    """Identifies an endpoint within its Service. The ordinal tells endpoints with one address apart, and may change. Flows are identified
    by the address and the port number instead (`PortEndpoint`)."""

    address: str
    """The endpoint's IPv4 or IPv6 address, in canonical form."""
    ordinal: int = 0
    """0, 1, 2 and so on; nearly always 0."""

    def order(self) -> tuple[bool, bytes, int]:
        """Sorts keys: IPv4 before IPv6, by number, then by ordinal."""
        is_ipv6 = ":" in self.address
        return is_ipv6, socket.inet_pton(socket.AF_INET6 if is_ipv6 else socket.AF_INET, self.address), self.ordinal


@dataclass
class ServiceEndpoints:
    """A Service with its endpoints."""

    service: pb.Service
    """The Service. It contains only ports and addresses whose protocol and kind this version knows."""
    endpoints: dict[EndpointKey, pb.Endpoint] = field(default_factory=dict)
    """All of its endpoints. The order has no meaning."""


@dataclass
class ServiceChanges:
    """What of a Service has changed."""

    service: bool = False
    """Whether something other than the endpoints has changed, or the Service was added or deleted."""
    endpoints: set[EndpointKey] = field(default_factory=set)
    """The endpoints that were added, changed or deleted."""


@dataclass
class Changes:
    """How a state differs from the one in the last `Sync` that succeeded."""

    everything: bool = False
    """Whether the previous state is unknown, so that each part of the state counts as changed. It is set until the first `Sync`
    has succeeded, and after `Options.resync`."""
    resync: bool = False
    """Whether another program may have changed the applied state (`Options.resync`)."""
    node: bool = False
    """Whether the facts about the node have changed."""
    services: dict[ServiceKey, ServiceChanges] = field(default_factory=dict)
    """The Services that were added, changed or deleted. After a restart, the brain sends a full state. Even then, it contains only those
    that really differ."""


@dataclass
class _Former:
    """What an answer has changed of a Service, as it was. None stands for what did not exist."""

    service: pb.Service | None
    endpoints: dict[EndpointKey, pb.Endpoint | None] = field(default_factory=dict)


@dataclass
class State:
    """The complete state of the brain's node. The field `digest` of its records is not set."""

    revision: Revision = Revision()
    """Identifies the state."""
    node: pb.NodeState = field(default_factory=pb.NodeState)
    """Facts about the node."""
    services: dict[ServiceKey, ServiceEndpoints] = field(default_factory=dict)
    """All Services that the node serves. The order has no meaning."""
    withheld: set[ServiceKey] = field(default_factory=set)
    """Those of them that the brain withholds, because the backend lacks capabilities. They have no endpoints."""

    def apply(self, answer: Answer, changes: Changes) -> None:
        """Becomes the state of an answer, and adds the differences to the changes."""
        if answer.node is not None and answer.node != self.node:
            self.node, changes.node = answer.node, True
        before: dict[ServiceKey, _Former] = {}
        if answer.full:
            for key in list(self.services):
                self._remove(key, self._touch(key, before))
        for update in answer.updates:
            self._update(update, self._touch(update.key, before))
        for key, was in before.items():
            self._compare(key, was, changes)
        self.revision = answer.revision

    def _touch(self, key: ServiceKey, before: dict[ServiceKey, _Former]) -> _Former:
        if key not in before:
            now = self.services.get(key)
            before[key] = _Former(now.service if now else None)
        return before[key]

    def _remove(self, key: ServiceKey, was: _Former) -> None:
        if now := self.services.pop(key, None):
            for at, endpoint in now.endpoints.items():
                was.endpoints.setdefault(at, endpoint)

    def _update(self, update: Update, was: _Former) -> None:
        """Applies an update in the order of the numbers of its fields."""
        if update.removed or update.replace:
            self._remove(update.key, was)
        if update.removed:
            return
        if update.service is not None:
            self.services.setdefault(update.key, ServiceEndpoints(update.service)).service = update.service
        now = self.services[update.key]
        for at in update.gone:
            was.endpoints.setdefault(at, now.endpoints.pop(at, None))
        for at, endpoint in update.endpoints:
            was.endpoints.setdefault(at, now.endpoints.get(at))
            now.endpoints[at] = endpoint

    def _compare(self, key: ServiceKey, was: _Former, changes: Changes) -> None:
        """Records what really differs from what the Service was."""
        now = self.services.get(key)
        if now and now.service.withheld:
            self.withheld.add(key)
        else:
            self.withheld.discard(key)
        changed = changes.services.get(key) or ServiceChanges()
        changed.service |= was.service != (now.service if now else None)
        for at, before in was.endpoints.items():
            if before != (now.endpoints.get(at) if now else None):
                changed.endpoints.add(at)
        if changed.service or changed.endpoints:
            changes.services[key] = changed


class PortEndpoint(NamedTuple):
    """An endpoint of one port of a Service. `port_name`, `ip` and `port` identify it within the Service."""

    port_name: str
    """The name of the Service port; may be empty."""
    protocol: pb.Protocol
    """The protocol of the port, such as `PROTOCOL_TCP`."""
    ip: str
    """The IPv4 or IPv6 address that receives the traffic, in canonical form, without brackets."""
    port: int
    """The port that receives the traffic, 1 to 65535."""
    endpoint: pb.Endpoint
    """The endpoint with all of its ports."""

    def has(self, scope: pb.Scope) -> bool:
        """Whether the endpoint is eligible for this traffic, such as `SCOPE_INTERNAL`."""
        return scope in self.endpoint.scopes


def port_endpoints(of: ServiceEndpoints | None) -> list[PortEndpoint]:
    """The endpoints of each port of a Service, in ascending order of their keys. There are none if the Service is None."""
    if of is None:
        return []
    return list(ports_of(protocols(of.service), sorted(of.endpoints, key=EndpointKey.order), of.endpoints))


def protocols(service: pb.Service | None) -> dict[str, pb.Protocol]:
    """The protocol of each port of a Service, by name."""
    return {port.name: port.protocol for port in service.ports} if service else {}


def ports_of(
    protocols: dict[str, pb.Protocol], keys: Iterable[EndpointKey], endpoints: dict[EndpointKey, pb.Endpoint]
) -> Iterator[PortEndpoint]:
    """The ports of the endpoints with these keys. In `VIEW_DNS`, they have protocols of their own."""
    for at in keys:
        if endpoint := endpoints.get(at):
            for port in endpoint.ports:
                if protocol := port.protocol or protocols.get(port.name):
                    yield PortEndpoint(port.name, protocol, at.address, port.number, endpoint)
