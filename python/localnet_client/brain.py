"""Connections to the brain: unix sockets, and TCP with or without TLS."""

from __future__ import annotations

import asyncio
import logging
import pathlib
import ssl
from typing import NamedTuple
from urllib.parse import quote

import grpc

_logger = logging.getLogger("localnet")

REPORT_TIMEOUT = 2.0
"""How long a call of Report may take, in seconds."""

_OPTIONS = [
    # The brain's messages are far smaller, so a peer that sends more is not a brain.
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.enable_http_proxy", 0),
    # An idle connection is pinged after 10 s, and closed after 5 s without an answer.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # By default, gRPC's own backoff grows to two minutes, and it resolves a name at most every 30 s. `run` has its own backoff.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # Despite its name, this is how long gRPC tries to connect.
    ("grpc.min_reconnect_backoff_ms", 5_000),
]


class TLSFiles(NamedTuple):
    """The paths of the files for TLS, in PEM.

    They are read at each request for a state. If they have changed, the next request opens a new connection. If they are unusable
    at that time, for instance during their replacement, the client logs a warning and uses the last usable contents.
    """

    ca: str
    """Certificates of the authorities that may have issued the brain's certificate."""
    cert: str = ""
    """The client's own certificate; empty if the brain requires none."""
    key: str = ""
    """The private key of `cert`, without a password."""

    def read(self) -> tuple[bytes | None, ...]:
        """The contents of `ca`, `key` and `cert`.

        Raises:
            OSError: A file cannot be read.
        """
        return tuple(pathlib.Path(file).read_bytes() if file else None for file in (self.ca, self.key, self.cert))

    def check(self) -> None:
        """Raises:
        OSError: A file cannot be read, does not contain what it should, or the key does not belong to the certificate.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(self.ca)
        except ssl.SSLError as error:
            raise OSError(f"{self.ca} contains no certificate in PEM: {error}") from error
        if self.cert or self.key:
            try:
                context.load_cert_chain(self.cert, self.key, password="")
            except OSError as error:
                raise OSError(f'certificate "{self.cert}" with key "{self.key}": {error}') from error


class Brain:
    """A connection to the brain. It connects at the first call, and again after each failure.

    Use it in `async with`, or call `close`.
    """

    channel: grpc.aio.Channel
    """The connection, for stubs of `localnetv1_pb2_grpc`. After a change of the TLS files, this is another one."""

    def __init__(self, target: str, options: list[tuple[str, int | str]], files: TLSFiles | None) -> None:
        """`dial` calls this.

        Raises:
            OSError: A TLS file cannot be used.
        """
        self._target, self._options, self._files = target, options, files
        self._closing: set[asyncio.Task[None]] = set()
        self._logged = ""  # The problem with the current contents of the files, if it was logged.
        if files is None:
            self.channel = grpc.aio.insecure_channel(target, options)
        else:
            self._contents = files.read()
            files.check()
            self.channel = self._secure_channel()

    def _secure_channel(self) -> grpc.aio.Channel:
        return grpc.aio.secure_channel(self._target, grpc.ssl_channel_credentials(*self._contents), self._options)

    def renew(self) -> None:
        """Opens a new connection if the TLS files have changed. `run` calls this before each request for a state.

        The previous connection is closed once its calls have ended, or after a few seconds.
        """
        if self._files is None:
            return
        problem = ""
        try:
            contents = self._files.read()
            if contents != self._contents:
                self._files.check()
                old, self._contents = self.channel, contents
                self.channel = self._secure_channel()
                closing = asyncio.create_task(old.close(2 * REPORT_TIMEOUT))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
        except OSError as error:
            problem = str(error)
            if problem != self._logged:
                _logger.warning("cannot use the changed TLS files; keeping the previous ones: %s", problem)
        self._logged = problem

    async def close(self) -> None:
        """Ends all calls, and closes the connection."""
        await asyncio.gather(self.channel.close(), *self._closing)

    async def __aenter__(self) -> Brain:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def dial(address: str, files: TLSFiles | None = None) -> Brain:
    """A connection to the brain at an address: unix:///absolute/path or tcp://host:port. Call it in a coroutine.

    Without files, a TCP connection does not use TLS.

    Raises:
        ValueError: The address is invalid, a TLS file cannot be used, or there are files for an address that does not use TLS.
    """
    try:
        target, options = _parse(address)
    except ValueError as error:
        raise ValueError(f'"{address}": {error}; expected unix:///absolute/path or tcp://host:port') from None
    if files is not None and not address.startswith("tcp://"):
        raise ValueError(f'"{address}" does not use TLS: use a tcp:// address, or omit the TLS files')
    try:
        return Brain(target, [*_OPTIONS, *options], files)
    except OSError as error:
        raise ValueError(f"failed to load the TLS files: {error}") from error


def _parse(address: str) -> tuple[str, list[tuple[str, int | str]]]:
    """gRPC's target for an address, and its options."""
    scheme, _, rest = address.partition("://")
    if scheme == "unix":
        if not rest.startswith("/") or rest == "/":
            raise ValueError("the path must be absolute")
        # By default, gRPC sends the socket's path as the authority, which is invalid.
        return f"unix://{quote(rest)}", [("grpc.default_authority", "localhost")]
    if scheme != "tcp":
        raise ValueError("unknown scheme")
    host, colon, port = rest.rpartition(":")
    if not colon:
        raise ValueError("the port is missing")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError("the port is not a number from 0 to 65535")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError("an IPv6 address needs brackets")
    if not host.strip("[]"):
        raise ValueError("the host is missing")
    return f"dns:///{rest}", []
