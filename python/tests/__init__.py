import logging
import os

# The tests provoke many warnings, and a busy machine delays them.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
logging.getLogger("asyncio").setLevel(logging.ERROR)
logging.getLogger("localnet").propagate = False
logging.getLogger("localnet").addHandler(logging.NullHandler())
