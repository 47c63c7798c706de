"""The library for backends of localnet that read the draft localnet.v1: after the first state, the brain sends only what changes, down
to a single endpoint. It has the same shape as `localnet_client`, which reads localnetv1, and shares its loop, connections, flags and
`DiffStore`. A backend imports one of the two.

Nothing is promised yet: a brain serves the draft only with --draft-v1, and any release may change the draft and this package.

Differences from `localnet_client`:

- `State` contains the records of localnet.v1. A `ServiceEndpoints` has its endpoints by key.
- `Changes` lists the endpoints that have changed.
- `Options` says what the backend understands (`capabilities`), and which data it needs (`metadata`, `endpoint_details`, `view`). The
  brain withholds a Service that needs more: it arrives without endpoints and with the verdict "drop".
- `reason` returns why the brain has refused a call.

The package `localnet_client.localnet.v1` contains the messages. The files in proto/localnet/v1 document their fields.
"""

from ..brain import Brain, TLSFiles, dial
from ..diffstore import Diff, DiffStore
from ..errors import BrainError
from ..state import Revision, ServiceKey
from .backend import Flags, Options, Sync, run
from .errors import reason
from .incremental import Listener, incremental
from .reports import FamilyErrors
from .state import Changes, EndpointKey, PortEndpoint, ServiceChanges, ServiceEndpoints, State, port_endpoints

__all__ = [
    "Brain",
    "BrainError",
    "Changes",
    "Diff",
    "DiffStore",
    "EndpointKey",
    "FamilyErrors",
    "Flags",
    "Listener",
    "Options",
    "PortEndpoint",
    "Revision",
    "ServiceChanges",
    "ServiceEndpoints",
    "ServiceKey",
    "State",
    "Sync",
    "TLSFiles",
    "dial",
    "incremental",
    "port_endpoints",
    "reason",
    "run",
]
