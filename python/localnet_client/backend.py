"""Runs a backend that reads localnetv1."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

import grpc

from . import localnetv1_pb2 as pb
from .answer import Answer, next_answer
from .brain import REPORT_TIMEOUT, Brain
from .localnetv1_pb2_grpc import BackendsStub
from .loop import Loop, LoopOptions, Reader
from .reports import Progress
from .state import Changes, State

Sync: TypeAlias = Callable[[State, Changes], Awaitable[None]]
"""A coroutine function that makes the backend apply exactly this state: everything that the state does not contain is deleted.
The changes describe the difference from the state in the last call that succeeded.

If it raises an exception, `run` calls it again, with the same state or a newer one. If it fails in only one address family, it
raises `FamilyErrors`. A problem with one Service should not prevent the others from being applied: skip this Service, and report
it (`Options.report`).

It must not modify the state, and must not use it after it has returned. It may keep the messages in the state, which never
change. While it blocks, nothing else runs: await what takes long, or use `asyncio.to_thread`.
"""


@dataclass(frozen=True, kw_only=True)
class Options(LoopOptions):
    """The options of `run`. The defaults are useful."""

    name: str = ""
    """The backend's name in its reports to the brain. Without a name, `run` sends no reports. A reader that programs nothing must
    not report: after it exits, the brain's health answers would wait for its progress. For the same reason, `run` never reports
    with `once`."""
    report: Callable[[pb.BackendReport], None] | None = None
    """Adds to a report before `run` sends it, for instance the `Skipped` Services, `Warnings` or the `Configuration`. `run` calls
    it after each sync, and has then set the `Backend`, the revisions and the `Families`."""


async def run(brain: Brain, sync: Sync, options: Options = Options()) -> None:
    """Runs a backend until the task is cancelled. Failures are logged and retried with backoff.

    A cancellation takes effect once the current sync has ended: `run` interrupts no sync.

    Raises:
        BrainError: With `Options.once`: the brain is unavailable, or sent an invalid state.
        Exception: With `Options.once`: what the backend raised.
    """
    await Loop(brain, _Reader(sync, options), options).run()


class _Reader(Reader[Answer, pb.BackendReport]):
    def __init__(self, sync: Sync, options: Options) -> None:
        self._sync, self._options = sync, options
        self.state = State(revision=options.resume)
        self.changes = Changes(everything=True)
        self._progress = Progress()
        # The revision of the last answer, and whether there was one. The first answer is a full state. `_have` is ahead of the state only
        # by the answer that waits for `apply`, so each delta is applied to the state for which it was requested.
        self._have, self._delta = options.resume, False

    async def next(self, channel: grpc.aio.Channel) -> Answer:
        answer = await next_answer(channel, self._have, self._delta)
        self._have, self._delta = answer.revision, True
        return answer

    def apply(self, answer: Answer) -> bool:
        self.state.apply(answer, self.changes)
        return True

    async def sync(self) -> None:
        await self._sync(self.state, self.changes)

    def synced(self, took: float, error: Exception | None) -> pb.BackendReport | None:
        self._progress.add(self.state.revision, self.changes.everything, took, error)
        if error is None:
            self.changes = Changes()
        if not self._options.name or self._options.once:
            return None
        report = self._progress.report(self._options.name, self.state.revision)
        if self._options.report:
            self._options.report(report)
        return report

    async def deliver(self, channel: grpc.aio.Channel, report: pb.BackendReport) -> None:
        await BackendsStub(channel).Report(report, timeout=REPORT_TIMEOUT)
