"""Errors of calls to the brain."""

from __future__ import annotations

import asyncio

import grpc


class BrainError(Exception):
    """A call to the brain failed, or the brain sent an invalid answer. The text contains the reason."""


def check_cancelled() -> None:
    """Cancels the current task if its cancellation was requested, because gRPC 1.51 sometimes raises an RpcError instead."""
    if (task := asyncio.current_task()) and task.cancelling():
        raise asyncio.CancelledError


def describe(error: grpc.RpcError) -> str:
    """Why a call failed, in one line."""
    text = f"{error.code().name}: {error.details()}"
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return f"the brain is unavailable: {text}; check that localnet-brain runs and serves this address"
    return text
