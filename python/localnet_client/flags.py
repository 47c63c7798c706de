"""The flags of a backend."""

from __future__ import annotations

import argparse
import sys

from .brain import Brain, TLSFiles, dial
from .backend import Options
from .state import Revision


class Flags:
    """The flags that select the brain and set the options of `run`. The backends of localnet have the same flags.

    ::

        parser = argparse.ArgumentParser()
        Flags.register(parser)
        flags = Flags(parser.parse_args())
    """

    @staticmethod
    def register(parser: argparse.ArgumentParser) -> None:
        """Adds the flags to a parser."""
        address = "tcp://127.0.0.1:12090" if sys.platform == "win32" else "unix:///run/localnet/brain.sock"
        add = parser.add_argument
        add("--api", default=address, metavar="ADDRESS", help="address of the brain: unix:///path or tcp://host:port (default: %(default)s)")
        add("--tls-ca", default="", metavar="FILE", help="file with CA certificates that verify the brain's TLS certificate")
        add("--tls-cert", default="", metavar="FILE", help="file with the client TLS certificate")
        add("--tls-key", default="", metavar="FILE", help="file with the private key of the client TLS certificate")
        add("--once", action="store_true", help="apply one state, log how to resume, and exit")
        add("--instance-id", type=uint64, default=0, metavar="N", help="brain instance of the last applied state; needs --rev")
        add("--rev", type=uint64, default=0, metavar="N", help="revision of the last applied state: wait for a state with another revision")
        add(
            "--min-sync-interval",
            type=uint64,
            default=0,
            metavar="MILLISECONDS",
            help="minimum time between two syncs; changes in between are merged",
        )

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Reads the flags from the result of the parser."""
        self._arguments = arguments

    def dial(self) -> Brain:
        """Calls `dial` with the address and the files.

        Raises:
            ValueError: For the same reasons, or a flag lacks another flag that it needs.
        """
        a = self._arguments
        if (a.instance_id == 0) != (a.rev == 0):
            raise ValueError("--instance-id and --rev need each other")
        if (a.tls_cert == "") != (a.tls_key == ""):
            raise ValueError("--tls-cert and --tls-key need each other")
        if a.tls_cert and not a.tls_ca:
            raise ValueError("--tls-cert needs --tls-ca")
        return dial(a.api, TLSFiles(a.tls_ca, a.tls_cert, a.tls_key) if a.tls_ca else None)

    def options(self, name: str = "") -> Options:
        """The options that the flags set, for a backend that reports to the brain under this name."""
        a = self._arguments
        return Options(name=name, once=a.once, resume=Revision(a.instance_id, a.rev), min_interval=a.min_sync_interval / 1000)


def uint64(text: str) -> int:
    """Parses a number. argparse puts the name of this function into its message."""
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 64):
        raise ValueError
    return int(text)
