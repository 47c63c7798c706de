"""The loop in which a backend runs, whichever package of messages it reads. It applies the newest state, and retries failures.

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
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc

from .brain import Brain
from .errors import BrainError
from .outbox import Outbox
from .retry import Delays
from .state import Revision

_logger = logging.getLogger("localnet")

_PAUSE = 0.005  # The shortest time between two syncs, in seconds.

A = TypeVar("A")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """The options of `run` that do not depend on the messages."""

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


class Reader(ABC, Generic[A, R]):
    """The state that a backend reads, and what it does with it. `A` is an answer of the brain, and `R` a report."""

    state: Any
    """The state, with its `revision` and `services`."""
    changes: Any
    """What has changed in the state since the last sync that succeeded."""

    @abstractmethod
    async def next(self, channel: grpc.aio.Channel) -> A:
        """Waits for the next answer. It is called after the previous answer was passed to `apply`, or waits to be.

        Raises:
            BrainError: There is none. The loop calls again.
        """

    @abstractmethod
    def apply(self, answer: A) -> bool:
        """Folds an answer into the state. Returns whether the state is to be synced."""

    @abstractmethod
    async def sync(self) -> None:
        """Passes the state to the backend."""

    @abstractmethod
    def synced(self, took: float, error: Exception | None) -> R | None:
        """Ends a sync that took some seconds. Returns the next report, if there is one."""

    @abstractmethod
    async def deliver(self, channel: grpc.aio.Channel, report: R) -> None:
        """Sends a report to the brain."""


class Loop(Generic[A, R]):
    """Runs a backend until the task is cancelled."""

    def __init__(self, brain: Brain, reader: Reader[A, R], options: LoopOptions) -> None:
        self._brain, self._reader, self._options = brain, reader, options
        self._wake = asyncio.Event()  # Lets _run look for something to do.
        self._ready = asyncio.Event()  # Lets _read request the next state.
        self._answer: A | None = None  # Received, but not part of the state yet.
        self._disturbed = False  # Whether options.resync was set.
        self._outbox = Outbox(brain, options.max_backoff, reader.deliver)
        self._logged = ""  # The error of the last sync, if it was logged.

    async def run(self) -> None:
        """See `run` in the module `backend`."""
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
        failing, backoff = False, Delays(self._options.max_backoff)
        while True:
            await self._ready.wait()
            try:
                self._brain.renew()
                answer = await self._reader.next(self._brain.channel)
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
                _logger.info("connected to the brain")
            failing, self._answer = False, answer
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
            if (taken := self._answer is not None) and self._take():
                received = due = True
            if self._disturbed and received:
                _logger.info("resyncing: another program may have changed the applied state")
                self._disturbed, due = False, True
                self._reader.changes.everything = self._reader.changes.resync = True
            if not due:
                if taken:
                    self._ready.set()
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
        """Applies the answer to the state. Returns whether the state is to be synced."""
        answer, self._answer = self._answer, None
        return answer is not None and self._reader.apply(answer)

    async def _attempt(self) -> Exception | None:
        """Calls the backend once, and offers a report. Returns the error of the backend."""
        error, began = None, time.monotonic()
        syncing = asyncio.ensure_future(self._reader.sync())
        try:
            await asyncio.shield(syncing)
        except asyncio.CancelledError:
            await asyncio.gather(syncing, return_exceptions=True)
            raise
        except Exception as failure:
            error = failure
        took = time.monotonic() - began
        self._log(error, took)
        report = self._reader.synced(took, error)
        if report is not None and not self._options.once:
            self._outbox.put(report)
        return error

    def _log(self, error: Exception | None, took: float) -> None:
        revision, was_logged = self._reader.state.revision, self._logged
        self._logged = "" if error is None else repr(error)
        if error is None:
            changed, all_services = len(self._reader.changes.services), len(self._reader.state.services)
            what = f"applied {revision}: {changed} of {all_services} Services have changed"
            if self._options.once:
                _logger.info("%s; to resume this watch, use --instance-id %d --rev %d", what, *revision)
            else:
                _logger.debug("%s, took_ms=%.3f", what, 1000 * took)
        elif self._logged == was_logged:  # An equal error is logged only once.
            _logger.debug("still cannot apply the state %s", revision, exc_info=error)
        elif not self._options.once:
            _logger.warning("cannot apply the state %s; retrying with backoff", revision, exc_info=error)
