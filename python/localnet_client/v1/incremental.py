"""The incremental model: each change is one call."""

from __future__ import annotations

from ..incremental import AnyListener
from ..localnet import v1 as pb
from ..state import ServiceKey
from .backend import Sync
from .state import Changes, EndpointKey, PortEndpoint, ServiceEndpoints, State, ports_of, protocols


class Listener(AnyListener[pb.NodeState, pb.Service, PortEndpoint]):
    __doc__ = AnyListener.__doc__


def incremental(listener: Listener) -> Sync:
    """A `Sync` that passes each change to a Listener on which nothing has been set yet. The work for an answer is proportional to the
    number of changed records."""
    return _Adapter(listener).sync


class _Adapter:
    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._node: pb.NodeState | None = None
        # What was set on the listener, whether or not its commit succeeded.
        self._delivered: dict[ServiceKey, ServiceEndpoints] = {}

    async def sync(self, state: State, changes: Changes) -> None:
        if changes.resync:
            self._listener.reset()
            self._delivered.clear()
            self._node = None
        if self._node is None or self._node != state.node:
            self._listener.set_node(state.node)
            self._node = state.node
        for key in sorted(self._delivered.keys() | state.services.keys() if changes.everything else changes.services):
            self._deliver(key, state.services.get(key), None if changes.everything else changes.services[key].endpoints)
        await self._listener.commit(state.revision)

    def _deliver(self, key: ServiceKey, now: ServiceEndpoints | None, changed: set[EndpointKey] | None) -> None:
        """Passes on the changes of one Service, which is None if it was deleted. `changed` is None if all of its endpoints may differ."""
        before = self._delivered.get(key)
        was, held = (before.service, before.endpoints) if before else (None, {})
        service, endpoints = (now.service, now.endpoints) if now else (None, {})
        old_protocols, new_protocols = protocols(was), protocols(service)
        if changed is None or old_protocols != new_protocols:
            changed = held.keys() | endpoints.keys()
        if service is not None:
            if was != service:
                self._listener.set_service(key, service)
            self._delivered[key] = ServiceEndpoints(service, held)
        keys = sorted(changed, key=EndpointKey.order)
        # A port of an address may move from one key to another. Then both keys have changed.
        old = {(one.port_name, one.ip, one.port): one for one in ports_of(old_protocols, keys, held)}
        for endpoint in ports_of(new_protocols, keys, endpoints):
            if old.pop((endpoint.port_name, endpoint.ip, endpoint.port), None) != endpoint:
                self._listener.set_endpoint(key, endpoint)
        for endpoint in old.values():
            self._listener.delete_endpoint(key, endpoint)
        for at in keys:
            held.pop(at, None)
            if at in endpoints:
                held[at] = endpoints[at]
        if service is None and before is not None:
            self._listener.delete_service(key)
            del self._delivered[key]
