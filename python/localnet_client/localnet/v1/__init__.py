"""The messages of the draft localnet.v1, from all of its files. The stubs are in state_pb2_grpc and backend_pb2_grpc."""

from .backend_pb2 import *  # noqa: F403
from .error_pb2 import *  # noqa: F403
from .node_pb2 import *  # noqa: F403
from .reader_pb2 import *  # noqa: F403
from .service_pb2 import *  # noqa: F403
from .state_pb2 import *  # noqa: F403
