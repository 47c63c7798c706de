"""Runs a backend that reads localnet.v1."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import grpc

from .. import flags
from ..brain import Brain
from ..localnet import v1 as pb
from ..loop import Loop, LoopOptions, Reader
from ..state import Revision
from .answer import Answer, Held, next_answer
from .reports import Progress, add_withheld
from .state import Changes, State

Sync: TypeAlias = Callable[[State, Changes], Awaitable[None]]
"""A coroutine function that makes the backend apply exactly this state, as `localnet_client.Sync` describes."""


@dataclass(frozen=True, kw_only=True)
class Options(LoopOptions):
    """The options of `run`. The defaults are useful. With `resume`, `run` reads the state of this revision once more, because it needs
    the records."""

    name: str = ""
    """The backend's name, in requests and reports: lower-case letters, digits and hyphens. Without a name, `run` sends no reports.
    Neither does it with `observer` or `once`."""
    version: str = ""
    """The version of the backend, for people."""
    observer: bool = False
    """Whether the program forwards no traffic. The brain then sends every Service, whatever the capabilities are."""
    capabilities: Sequence[pb.Capability] = ()
    """What the backend understands. The brain withholds each Service that needs more."""
    metadata: pb.MetadataSelector | None = None
    """Selects labels and annotations of Services."""
    endpoint_details: bool = False
    """Whether to request the details of each endpoint: its node, its zone and its Pod."""
    view: pb.View = pb.VIEW_UNSPECIFIED
    """Selects the state that DNS needs instead of that for backends."""
    report: Callable[[pb.ReportStatusRequest], None] | None = None
    """Adds to a report before `run` sends it, for instance the `skipped` parts, the `warnings` or the `traffic` settings that the backend
    follows. `run` calls it after each sync. It has then set the name, the revisions, the families, and `skipped` to an empty list. Add
    everything that is skipped each time: `run` leaves out what the brain knows. `run` itself adds the Services that the brain
    withholds."""


class Flags(flags.Flags):
    __doc__ = flags.Flags.__doc__

    def options(self, name: str = "") -> Options:
        """The options that the flags set, for a backend with this name."""
        base = super().options(name)
        return Options(name=name, once=base.once, resume=base.resume, min_interval=base.min_interval)


async def run(brain: Brain, sync: Sync, options: Options = Options()) -> None:
    """Runs a backend until the task is cancelled. Failures are logged and retried with backoff.

    A state is passed on only when its answer is complete and the sum of all digests is right. If it is not, `run` reads the full state
    again. A cancellation takes effect once the current sync has ended: `run` interrupts no sync.

    Raises:
        BrainError: With `Options.once`: the brain is unavailable, has refused the request (`reason`), or sent an invalid state.
        Exception: With `Options.once`: what the backend raised.
    """
    await Loop(brain, _Reader(sync, options), options).run()


class _Reader(Reader[Answer, pb.ReportStatusRequest]):
    def __init__(self, sync: Sync, options: Options) -> None:
        self._sync, self._options = sync, options
        self.state, self.changes = State(), Changes(everything=True)
        self._progress = Progress()
        self._held = Held()  # Ahead of the state only by the answer that waits for `apply`.

    async def next(self, channel: grpc.aio.Channel) -> Answer:
        o = self._options
        role = pb.READER_ROLE_OBSERVER if o.observer else pb.READER_ROLE_BACKEND
        reader = pb.Reader(name=o.name, version=o.version, role=role, capabilities=o.capabilities)
        request = pb.NextStateRequest(reader=reader, metadata=o.metadata, endpoint_details=o.endpoint_details, view=o.view)
        return await next_answer(channel, request, self._held)

    def apply(self, answer: Answer) -> bool:
        """Returns False for the state from which the backend resumes."""
        first = self.state.revision == Revision()
        self.state.apply(answer, self.changes)
        return not first or answer.revision != self._options.resume

    async def sync(self) -> None:
        await self._sync(self.state, self.changes)

    def synced(self, took: float, error: Exception | None) -> pb.ReportStatusRequest | None:
        self._progress.add(self.state.revision, error)
        if error is None:
            self.changes = Changes()
        # The states of a view are no states that a node could apply.
        if not self._options.name or self._options.observer or self._options.once or self._options.view:
            return None
        report = self._progress.report(self._options.name, self.state.revision)
        if self._options.report:
            self._options.report(report)
        if report.HasField("skipped"):
            add_withheld(report.skipped, self.state, self._options.capabilities)
        return report

    async def deliver(self, channel: grpc.aio.Channel, report: pb.ReportStatusRequest) -> None:
        await self._progress.deliver(channel, report)
