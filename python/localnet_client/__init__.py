"""The library for backends of localnet in Python.

A backend reads the state of one node from the brain (localnet-brain), and applies it, for example to a kernel subsystem or to
its own proxy.

`run` is the main loop of a backend. It reads the newest state over a connection from `dial`, passes it to the backend's
`Sync`, and reports the result to the brain. It retries failures with backoff, resumes interrupted streams, and never passes
on a state that it has received only in part. If the brain is unavailable, the backend keeps the state that it has applied.

A backend can read the state in two ways:

- In full: `Sync` receives the whole state, and what has changed. A `DiffStore` remembers what the backend has applied, and
  computes the difference.
- Incrementally: `incremental` turns each change into a call of a `Listener`.

The module `localnetv1_pb2` contains the messages, and `localnetv1_pb2_grpc` the stubs of all services of the brain. Both are
generated from proto/localnetv1.proto, which documents the fields. Durations are in seconds. The logger "localnet" logs.
"""

from .backend import Options, Sync, run
from .brain import Brain, TLSFiles, dial
from .diffstore import Diff, DiffStore
from .errors import BrainError
from .flags import Flags
from .incremental import Listener, incremental
from .reports import FamilyErrors
from .state import Changes, PortEndpoint, Revision, ServiceKey, State, port_endpoints

__all__ = [
    "Brain",
    "BrainError",
    "Changes",
    "Diff",
    "DiffStore",
    "FamilyErrors",
    "Flags",
    "Listener",
    "Options",
    "PortEndpoint",
    "Revision",
    "ServiceKey",
    "State",
    "Sync",
    "TLSFiles",
    "dial",
    "incremental",
    "port_endpoints",
    "run",
]
