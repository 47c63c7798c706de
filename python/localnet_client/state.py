"""The state of one node, and how it changes. Nothing here does I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from . import localnetv1_pb2 as pb

if TYPE_CHECKING:
    from .answer import Answer


class Revision(NamedTuple):
    """Identifies a state. The default means "no state yet"."""

    instance_id: int = 0
    """A random number that the brain chooses when it starts, 64 bits without a sign."""
    rev: int = 0
    """The sequence number of the state within the instance, from 1."""

    def __str__(self) -> str:
        return f"{self.instance_id}:{self.rev}"


class ServiceKey(NamedTuple):
    """Identifies a Service."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


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
    services: set[ServiceKey] = field(default_factory=set)
    """The Services that were added, changed or deleted. After a restart, the brain sends a full state. Even then, the set
    contains only those that really differ."""


@dataclass
class State:
    """The complete state of the brain's node. It contains only ports whose protocol this version knows."""

    revision: Revision = Revision()
    """Identifies the state."""
    node: pb.NodeState = field(default_factory=pb.NodeState)
    """Facts about the node."""
    services: dict[ServiceKey, pb.ServiceEndpoints] = field(default_factory=dict)
    """All Services that the node serves, each with all of its endpoints. The order has no meaning."""

    def apply(self, answer: Answer, changes: Changes) -> None:
        """Becomes the state of an answer, and adds the differences to the changes."""
        if answer.node is not None and answer.node != self.node:
            self.node, changes.node = answer.node, True
        for key in answer.removed if answer.delta else self.services.keys() - answer.services.keys():
            if self.services.pop(key, None) is not None:
                changes.services.add(key)
        for key, service in answer.services.items():
            if self.services.get(key) != service:
                self.services[key] = service
                changes.services.add(key)
        self.revision = answer.revision


class PortEndpoint(NamedTuple):
    """An endpoint of one port of a Service. `port_name`, `ip` and `port` identify it within the Service."""

    port_name: str
    """The name of the Service port; may be empty."""
    protocol: pb.Protocol
    """The protocol of the Service port: `TCP`, `UDP` or `SCTP` of `localnetv1_pb2`."""
    ip: str
    """The IPv4 or IPv6 address that receives the traffic, in canonical form, without brackets."""
    port: int
    """The port that receives the traffic, 1 to 65535."""
    local: bool
    """Whether the endpoint is on this node."""
    scopes: pb.EndpointScopes
    """The traffic for which the endpoint is eligible."""


def port_endpoints(service: pb.ServiceEndpoints | None) -> list[PortEndpoint]:
    """The endpoints of each port of a Service, in the order of the message. There are none if the Service is None."""
    if service is None:
        return []
    protocols = {port.Name: port.Protocol for port in service.Service.Ports}
    return [
        PortEndpoint(at.Name, protocols[at.Name], ip, at.Port, endpoint.Local, endpoint.Scopes)
        for endpoint in service.Endpoints
        for ip in (*endpoint.IPs.V4, *endpoint.IPs.V6)
        for at in endpoint.PortOverrides
        if at.Name in protocols
    ]
