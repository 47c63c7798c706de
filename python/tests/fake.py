"""A brain and a backend that a test plays, in fake time, and short forms of messages."""

import asyncio
import copy
import selectors
from typing import NamedTuple

import grpc

import localnet_client
from localnet_client import Changes, Revision, ServiceKey
from localnet_client import localnetv1_pb2 as pb


def failure(code, details=""):
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


DOWN = failure(grpc.StatusCode.UNAVAILABLE, "connection refused")


class _Selector(selectors.SelectSelector):
    def select(self, timeout=None):
        events = super().select(0)
        if not events and timeout is None:
            raise AssertionError("the test waits for something that never happens")
        if not events:
            self.loop.now += max(timeout, 0)
        return events


class FakeTimeLoop(asyncio.SelectorEventLoop):
    """Its clock advances to the next timer as soon as nothing else is left to do, so no test waits for real time."""

    def __init__(self):
        self.now = 0.0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self):
        return self.now


class Synced(NamedTuple):
    """What a Sync received: the revision, the names of all Services, and the changes."""

    revision: Revision
    services: list
    changes: Changes


class Fake:
    """Both ends of a loop under test: a brain, which is its own channel, and a backend."""

    library = localnet_client

    def __init__(self, **options):
        self.channel = self
        self.requests, self.replies, self.reports, self.accepts, self.syncs, self.results = (asyncio.Queue() for _ in range(6))
        self.task = asyncio.create_task(self.library.run(self, self._sync, self.library.Options(**options)))

    async def answer(self, *items, error=None):
        """Answers the next request, and returns it."""
        request = await self.requests.get()
        self.replies.put_nowait((items, error))
        return request

    async def end(self, error=None):
        """Ends the next sync, and returns what it received."""
        got = await self.syncs.get()
        self.results.put_nowait(error)
        return got

    async def accept(self, error=None, response=None):
        """Answers the next report, and returns it."""
        report = await self.reports.get()
        self.accepts.put_nowait((error, response))
        return report

    def describe(self, state, changes):
        """What `end` returns about a sync."""
        return Synced(state.revision, sorted(key.name for key in state.services), copy.deepcopy(changes))

    async def _sync(self, state, changes):
        self.syncs.put_nowait(self.describe(state, changes))
        if error := await self.results.get():
            raise error

    def renew(self):
        pass

    def unary_stream(self, *_, **__):
        return lambda request: _Call(self, request)

    def unary_unary(self, *_, **__):
        return self._report

    def stream_stream(self, *_, **__):
        pass

    async def _report(self, report, timeout):
        self.reports.put_nowait(report)
        error, response = await cancellable(self.accepts.get())
        if error:
            raise error
        return response


async def cancellable(waiting):
    """Waits, and turns a cancellation into an RpcError, as gRPC 1.51 sometimes does."""
    try:
        return await waiting
    except asyncio.CancelledError:
        raise failure(grpc.StatusCode.CANCELLED) from None


class _Call:
    def __init__(self, fake, request):
        self.fake, self.request = fake, request

    async def __aiter__(self):
        self.fake.requests.put_nowait(self.request)
        items, error = await cancellable(self.fake.replies.get())
        for item in items:
            yield copy.deepcopy(item)
        if error:
            raise error

    def cancel(self):
        pass


def play(test, kind=Fake, **options):
    """Runs a test of the loop with these options in fake time."""

    async def main():
        fake = kind(**options)
        try:
            await test(fake)
        finally:
            fake.results.put_nowait(None)
            fake.task.cancel()
            await asyncio.gather(fake.task, return_exceptions=True)

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(main())


def token(instance, rev, delta=False):
    return pb.NextItem(Next=pb.NextFilter(InstanceID=instance, Rev=rev, Delta=delta))


NODE = pb.NextItem(Node=pb.NodeState(Name="node-a"))


def service(name, *addresses, **fields):
    """A Service with one port, and an endpoint at each address."""
    item = pb.NextItem()
    item.Endpoints.Service.MergeFrom(pb.Service(Namespace="ns", Name=name, **fields))
    item.Endpoints.Service.Ports.add(Name="http", Protocol=pb.TCP, Port=80)
    for address in addresses:
        scopes, at = pb.EndpointScopes(Internal=True), pb.PortName(Name="http", Port=8080)
        item.Endpoints.Endpoints.add(IPs=pb.IPSet(V4=[address]), PortOverrides=[at], Scopes=scopes)
    return item


def continued(name, *addresses):
    item = service(name, *addresses)
    item.Endpoints.Continues = True
    del item.Endpoints.Service.Ports[:]
    return item


def removed(name):
    return pb.NextItem(Removed=pb.ServiceKey(Namespace="ns", Name=name))


def full(rev, *services):
    """A full state of the instance 7."""
    return [token(7, rev), NODE, *services]


def delta(rev, *changes):
    """A delta of the instance 7."""
    return [token(7, rev, True), *changes]


def changed(*names, **flags):
    return Changes(services={ServiceKey("ns", name) for name in names}, **flags)
