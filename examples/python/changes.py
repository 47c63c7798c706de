"""Prints each change of the state as a line. It reads the draft localnet.v1, so the brain sends only the endpoints that change.

    python3 changes.py --api unix:///run/localnet/brain.sock
"""

import argparse
import asyncio

from localnet_client.v1 import Flags, Listener, incremental, run


class Printer(Listener):
    def set_node(self, node):
        print("node", node.name)

    def set_service(self, key, service):
        print(f"set {key}, withheld: {str(service.withheld).lower()}")

    def delete_service(self, key):
        print("delete", key)

    def set_endpoint(self, service, endpoint):
        print(f"set {service} {endpoint.ip}:{endpoint.port}")

    def delete_endpoint(self, service, endpoint):
        print(f"delete {service} {endpoint.ip}:{endpoint.port}")

    def reset(self):
        pass

    async def commit(self, revision):
        print("state", revision.rev, flush=True)


async def main():
    parser = argparse.ArgumentParser()
    Flags.register(parser)
    flags = Flags(parser.parse_args())
    async with flags.dial() as brain:
        await run(brain, incremental(Printer()), flags.options())


asyncio.run(main())
