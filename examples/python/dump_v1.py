"""A backend for localnet in Python that reads the draft localnet.v1: the brain sends only the endpoints that change. It receives each change
as a call, and writes the applied state to a file.

    python3 dump_v1.py --api unix:///run/localnet/brain.sock --dump FILE
"""

import argparse
import asyncio
import contextlib
import os
import signal
from dataclasses import replace

from localnet_client.localnet import v1 as pb
from localnet_client.v1 import Flags, Listener, incremental, run

KINDS = {
    pb.ADDRESS_KIND_CLUSTER_IP: "cluster",
    pb.ADDRESS_KIND_EXTERNAL_IP: "external",
    pb.ADDRESS_KIND_LOAD_BALANCER_IP: "balancer",
}
SCOPES = {
    pb.SCOPE_INTERNAL: "internal",
    pb.SCOPE_EXTERNAL: "external",
    pb.SCOPE_SHORT_CIRCUIT: "shortcircuit",
    pb.SCOPE_ESTABLISHED: "established",
}


class File(Listener):
    """The lines of each Service and of each endpoint. A real backend would program a kernel instead."""

    def __init__(self, path):
        self.path, self.node, self.services, self.endpoints = path, "", {}, {}

    def set_node(self, node):
        self.node = f"node {node.name}"

    def set_service(self, key, service):
        lines = [f"vip {key} {KINDS[vip.kind]} {vip.address}" for vip in service.addresses]
        for port in service.ports:
            protocol = pb.Protocol.Name(port.protocol).removeprefix("PROTOCOL_")
            lines.append(f"port {key} {port.name or '-'} {protocol} {port.number} {port.node_port}")
        if service.HasField("client_ip_affinity"):
            lines.append(f"affinity {key} {service.client_ip_affinity.timeout_seconds}")
        self.services[key] = lines

    def delete_service(self, key):
        del self.services[key]

    def set_endpoint(self, service, endpoint):
        scopes = "+".join(word for scope, word in SCOPES.items() if endpoint.has(scope))
        line = f"endpoint {service} {endpoint.port_name or '-'} {endpoint.ip} {endpoint.port} {scopes or '-'}"
        self.endpoints[service, endpoint.port_name, endpoint.ip, endpoint.port] = line

    def delete_endpoint(self, service, endpoint):
        del self.endpoints[service, endpoint.port_name, endpoint.ip, endpoint.port]

    def reset(self):
        self.services.clear()
        self.endpoints.clear()

    async def commit(self, revision):
        lines = [f"rev {revision.instance_id} {revision.rev}", self.node, *sum(self.services.values(), [])]
        with open(f"{self.path}.new", "w") as file:
            file.writelines(f"{line}\n" for line in [*lines, *self.endpoints.values()])
        os.rename(f"{self.path}.new", self.path)


async def main():
    parser = argparse.ArgumentParser()
    Flags.register(parser)
    parser.add_argument("--dump", required=True)
    arguments = parser.parse_args()
    flags = Flags(arguments)
    # It programs nothing. So it sends no reports, and gets all Services, whatever they require of a backend.
    options = replace(flags.options(), observer=True)
    async with flags.dial() as brain:
        running = asyncio.ensure_future(run(brain, incremental(File(arguments.dump)), options))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await running


asyncio.run(main())
