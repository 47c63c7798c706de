"""The incremental model: each change is one call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from . import localnetv1_pb2 as pb
from .backend import Sync
from .state import Changes, PortEndpoint, Revision, ServiceKey, State, port_endpoints


N = TypeVar("N")
S = TypeVar("S")
E = TypeVar("E")


class AnyListener(ABC, Generic[N, S, E]):
    """Receives the changes of the state one by one. The calls describe the desired state. A Listener need not apply anything
    before `commit`.

    The order within one commit: `set_node` comes first. For each changed Service, `set_service` precedes its `set_endpoint`
    calls, and these precede its `delete_endpoint` calls. `delete_service` comes after all endpoints of the Service are deleted.
    """

    @abstractmethod
    def set_node(self, node: N) -> None:
        """Sets the facts about the node. It is called before all other calls, and whenever they change."""

    @abstractmethod
    def set_service(self, key: ServiceKey, service: S) -> None:
        """Adds a Service, or changes something other than its endpoints."""

    @abstractmethod
    def delete_service(self, key: ServiceKey) -> None:
        """Deletes a Service."""

    @abstractmethod
    def set_endpoint(self, service: ServiceKey, endpoint: E) -> None:
        """Adds an endpoint, or changes something other than its `port_name`, `ip` and `port`."""

    @abstractmethod
    def delete_endpoint(self, service: ServiceKey, endpoint: E) -> None:
        """Deletes an endpoint."""

    @abstractmethod
    def reset(self) -> None:
        """Discards everything that earlier calls have set. It is called after `Options.resync`, and everything is then set again
        before the next `commit`."""

    @abstractmethod
    async def commit(self, revision: Revision) -> None:
        """Applies the result of all calls so far, which is the complete state of this revision. After an exception, it is called
        again. Before that, other calls may set newer changes. See `Sync`."""


class Listener(AnyListener[pb.NodeState, pb.Service, PortEndpoint]):
    __doc__ = AnyListener.__doc__


def incremental(listener: Listener) -> Sync:
    """A `Sync` that passes each change to a Listener on which nothing has been set yet."""
    return _Adapter(listener).sync


class _Adapter:
    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._node: pb.NodeState | None = None
        # What was set on the listener, whether or not its commit succeeded.
        self._delivered: dict[ServiceKey, pb.ServiceEndpoints] = {}

    async def sync(self, state: State, changes: Changes) -> None:
        if changes.resync:
            self._listener.reset()
            self._delivered.clear()
            self._node = None
        if self._node is None or self._node != state.node:
            self._listener.set_node(state.node)
            self._node = state.node
        for key in sorted(self._delivered.keys() | state.services.keys() if changes.everything else changes.services):
            self._deliver(key, state.services.get(key))
        await self._listener.commit(state.revision)

    def _deliver(self, key: ServiceKey, now: pb.ServiceEndpoints | None) -> None:
        """Passes on the changes of one Service, which is None if it was deleted."""
        before = self._delivered.get(key)
        if before is now:
            return
        if now is not None and (before is None or before.Service != now.Service):
            self._listener.set_service(key, now.Service)
        old = {(one.port_name, one.ip, one.port): one for one in port_endpoints(before)}
        for endpoint in port_endpoints(now):
            if old.pop((endpoint.port_name, endpoint.ip, endpoint.port), None) != endpoint:
                self._listener.set_endpoint(key, endpoint)
        for endpoint in old.values():
            self._listener.delete_endpoint(key, endpoint)
        if now is not None:
            self._delivered[key] = now
        else:
            self._listener.delete_service(key)
            del self._delivered[key]
