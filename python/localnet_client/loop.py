"""The loop in which a backend runs. It applies the newest state, and retries failures.

Three tasks run concurrently, so that a slow sync or a slow brain delays none of the others:

- `_read` requests the next state, once the last one was applied and a pause has passed. If states change faster, the brain
  merges them into one answer.
- `_run` calls the backend for each state, and again after failures and disturbances.
- `Outbox.deliver` sends reports.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from . import localnetv1_pb2 as pb
from .answer import Answer, BrainError, next_answer
from .brain import Brain
from .reports import Outbox, Progress
from .retry import Delays
from .state import Changes, Revision, State

_logger = logging.getLogger("localnet")

_PAUSE = 0.005  # The shortest time between two syncs, in seconds.

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
class Options:
    """The options of `run`. The defaults are useful."""

    name: str = ""
    """The backend's name in its reports to the brain. Without a name, `run` sends no reports. A reader that programs nothing must
    not report: after it exits, the brain's health answers would wait for its progress. For the same reason, `run` never reports
    with `once`."""
    once: bool = False
    """Whether `run` returns after the first sync that succeeds, and raises the first failure."""
    resume: Revision = Revision()
    """The revision of the state that the backend has already applied. The first sync waits for a state with another revision."""
    min_interval: float = 0.0
    """The shortest time between the end of a sync and the start of the next one, in seconds. Changes in between are merged. It is
    at least 5 ms."""
    max_backoff: float = 10.0
    """The longest delay between two attempts after failures, in seconds. Requests to the brain and syncs have separate delays."""
    resync: asyncio.Event | None = None
    """Lets `run` call the backend again without a new state. Set this event if another program may have changed what the backend has
    applied. `run` clears it."""
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
    await _Loop(brain, sync, options).run()


class _Loop:
    def __init__(self, brain: Brain, sync: Sync, options: Options) -> None:
        self._brain, self._sync, self._options = brain, sync, options
        self._wake = asyncio.Event()  # Lets _run look for something to do.
        self._ready = asyncio.Event()  # Lets _read request the next state.
        self._answer: Answer | None = None  # Received, but not part of the state yet.
        self._disturbed = False  # Whether options.resync was set.
        self._state = State(revision=options.resume)
        self._changes = Changes(everything=True)  # What has changed in the state since the last sync that succeeded.
        self._progress, self._outbox = Progress(), Outbox(brain, options.max_backoff)
        self._logged = ""  # The error of the last sync, if it was logged.

    async def run(self) -> None:
        others = [asyncio.create_task(part) for part in (self._read(), self._outbox.deliver(), self._watch_resync())]
        for task in others:
            task.add_done_callback(lambda _: self._wake.set())
        try:
            await self._run(others)
        finally:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    async def _read(self) -> None:
        """Requests a state each time the loop is ready for one. Ends only with an error."""
        # `have` is ahead of the state only by `_answer`, so each delta is applied to the state for which it was requested. The first
        # answer is a full state.
        have, delta, failing, backoff = self._options.resume, False, False, Delays(self._options.max_backoff)
        while True:
            await self._ready.wait()
            try:
                self._brain.renew()
                answer = await next_answer(self._brain.channel, have, delta)
            except BrainError as error:
                if self._options.once:
                    raise
                if failing:
                    _logger.debug("still cannot get the state: %s", error)
                else:
                    _logger.warning("cannot get the state from the brain; keeping the applied state; retrying with backoff: %s", error)
                failing = True
                await asyncio.sleep(backoff.next())
                continue
            if failing:
                _logger.info("connected to the brain again")
            failing, have, delta, self._answer = False, answer.revision, True, answer
            backoff.reset()
            self._ready.clear()
            self._wake.set()

    async def _watch_resync(self) -> None:
        event = self._options.resync or asyncio.Event()
        while True:
            await event.wait()
            event.clear()
            self._disturbed = True
            self._wake.set()

    async def _run(self, others: list[asyncio.Task[None]]) -> None:
        clock, backoff, retry_at, received = asyncio.get_running_loop().time, Delays(self._options.max_backoff), None, False
        self._ready.set()
        while True:
            due = False
            try:
                async with asyncio.timeout_at(retry_at):
                    await self._wake.wait()
            except TimeoutError:
                due = True
            self._wake.clear()
            for task in others:
                if task.done():
                    task.result()  # Raises its error.
            if taken := self._take():
                received = True
            if self._disturbed and received:
                _logger.info("resyncing: another program may have changed the applied state")
                self._disturbed, due = False, True
                self._changes.everything = self._changes.resync = True
            if not taken and not due:
                continue
            error = await self._attempt()
            if error is None:
                backoff.reset()
            if self._options.once:
                if error is not None:
                    raise error
                return
            retry_at = None if error is None else clock() + backoff.next()
            await asyncio.sleep(max(self._options.min_interval, _PAUSE))
            if taken:
                self._ready.set()

    def _take(self) -> bool:
        """Applies the answer to the state. Returns whether there is one."""
        answer, self._answer = self._answer, None
        if answer is None:
            return False
        self._state.apply(answer, self._changes)
        return True

    async def _attempt(self) -> Exception | None:
        """Calls the backend once, and offers a report. Returns the error of the backend."""
        error, began = None, time.monotonic()
        syncing = asyncio.ensure_future(self._sync(self._state, self._changes))
        try:
            await asyncio.shield(syncing)
        except asyncio.CancelledError:
            await asyncio.gather(syncing, return_exceptions=True)
            raise
        except Exception as failure:
            error = failure
        took, revision = time.monotonic() - began, self._state.revision
        self._progress.add(revision, self._changes.everything, took, error)
        self._log(error, took)
        if error is None:
            self._changes = Changes()
        if self._options.name and not self._options.once:
            report = self._progress.report(self._options.name, revision)
            if self._options.report:
                self._options.report(report)
            self._outbox.put(report)
        return error

    def _log(self, error: Exception | None, took: float) -> None:
        revision, was_logged = self._state.revision, self._logged
        self._logged = "" if error is None else repr(error)
        if error is None:
            what = f"applied {revision}: {len(self._changes.services)} of {len(self._state.services)} Services have changed"
            if self._options.once:
                _logger.info("%s; to resume this watch, use --instance-id %d --rev %d", what, *revision)
            else:
                _logger.debug("%s, took_ms=%.3f", what, 1000 * took)
        elif self._logged == was_logged:  # An equal error is logged only once.
            _logger.debug("still cannot apply the state %s", revision, exc_info=error)
        elif not self._options.once:
            _logger.warning("cannot apply the state %s; retrying with backoff", revision, exc_info=error)
