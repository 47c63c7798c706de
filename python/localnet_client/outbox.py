"""Delivers reports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import grpc

from .brain import Brain
from .errors import check_cancelled, describe
from .retry import Delays

_logger = logging.getLogger("localnet")
# The codes with which the brain would refuse the same report again.
_REFUSALS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.OUT_OF_RANGE,
)

R = TypeVar("R")


class Outbox(Generic[R]):
    """Sends the newest report until the brain accepts it, because the brain's health answers depend on it."""

    def __init__(self, brain: Brain, max_backoff: float, send: Callable[[grpc.aio.Channel, R], Awaitable[None]]) -> None:
        self._brain, self._backoff, self._send = brain, Delays(max_backoff), send
        self._newest: R | None = None
        self._due = asyncio.Event()
        self._refused: str | None = None  # Why the brain refused the last report, if this was logged.

    def put(self, report: R) -> None:
        """Replaces a report that was not sent."""
        self._newest = report
        self._due.set()

    async def deliver(self) -> None:
        """Sends each report. Never returns."""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                assert self._newest is not None
                await self._send(self._brain.channel, self._newest)
            except grpc.RpcError as error:
                check_cancelled()
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:  # A brain that does not implement reports needs none.
                    self._log(error)
                    await asyncio.sleep(self._backoff.next())
                    self._due.set()
                    continue
            if self._refused is not None:
                _logger.info("the brain accepts reports again")
            self._refused = None
            self._backoff.reset()

    def _log(self, error: grpc.RpcError) -> None:
        # The loop already logs an unavailable brain.
        text = describe(error)
        if error.code() in _REFUSALS and text != self._refused:
            _logger.warning(
                "the brain refuses this backend's reports, so the brain's health checks cannot see that this node is programmed: %s", text
            )
            self._refused = text
        else:
            _logger.debug("the brain did not accept the report: %s", text)
