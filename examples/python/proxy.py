#!/usr/bin/env python3
"""A backend for localnet in Python: a userspace proxy for TCP and UDP that reads full states.

    proxy.py --api unix:///run/localnet/brain.sock [--dump FILE]

It adds the ClusterIPs and ExternalIPs to the loopback interface, listens there, forwards connections to the endpoints in turn,
and reports the applied revision. It needs CAP_NET_ADMIN and the package in python/.
"""

import argparse
import asyncio
import logging
import os
import resource
import signal
import subprocess

from localnet_client import DiffStore, Flags, port_endpoints, run
from localnet_client import localnetv1_pb2 as pb

SCOPES = (("Internal", "internal"), ("External", "external"), ("ShortCircuit", "shortcircuit"), ("Established", "established"))


def addresses(ips):
    return [*ips.V4, *ips.V6]


class Forward:
    """A socket on an address of a Service, and the endpoints to which it forwards."""

    def __init__(self, address, port):
        self.at, self.targets, self.turn, self.server = (address, port), [], 0, None

    def target(self):
        self.turn += 1
        return self.targets[self.turn % len(self.targets)]


class Tcp(Forward):
    async def open(self):
        self.server = await asyncio.start_server(self.accepted, *self.at)

    async def accepted(self, reader, writer):
        try:
            there_reader, there_writer = await asyncio.open_connection(*self.target())
        except OSError:
            return writer.transport.abort()
        await asyncio.gather(copy(reader, there_writer), copy(there_reader, writer))


async def copy(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()


class Udp(Forward, asyncio.DatagramProtocol):
    async def open(self):
        self.clients, self.loop = {}, asyncio.get_running_loop()
        self.server, _ = await self.loop.create_datagram_endpoint(lambda: self, local_addr=self.at)

    def datagram_received(self, data, client):
        asyncio.ensure_future(self.forward(data, client))

    async def forward(self, data, client):
        if client not in self.clients:  # Each client has its own socket, until 30 seconds without a packet.
            back = Back()
            back.datagram_received = lambda answer, _: self.server.sendto(answer, client)
            self.clients[client] = self.loop.create_task(self.loop.create_datagram_endpoint(lambda: back, remote_addr=self.target()))
        try:
            there, back = await self.clients[client]
        except OSError:  # No route to that endpoint: the next datagram goes to another one.
            return self.clients.pop(client, None)
        there.sendto(data)
        back.end and back.end.cancel()
        back.end = self.loop.call_later(30, lambda: self.clients.pop(client) and there.close())


class Back(asyncio.DatagramProtocol):
    end = None


class Proxy:
    """The applied state: addresses of lo, and sockets by protocol, address and port."""

    def __init__(self, dump):
        self.dump, self.vips, self.forwards = dump, DiffStore(), {}
        self.vips.adopt({})

    async def sync(self, state, changes):
        vips, wanted = {}, {}
        for of in state.services.values():
            endpoints = port_endpoints(of)
            for scope, ips in ("Internal", of.Service.IPs.ClusterIPs), ("External", of.Service.IPs.ExternalIPs):
                for vip in addresses(ips):
                    vips[vip] = True
                    eligible = [to for to in endpoints if getattr(to.scopes, scope) and (":" in vip) == (":" in to.ip)]
                    for port in of.Service.Ports:
                        targets = [(to.ip, to.port) for to in eligible if to.port_name == port.Name]
                        # The kernel rejects packets to a port without a socket, as the verdict Reject requires.
                        if targets and port.Protocol in KINDS:
                            wanted[port.Protocol, vip, port.Port] = targets
        for key in self.forwards.keys() - wanted.keys():
            self.forwards.pop(key).server.close()
        self.give(vips)
        for key, targets in wanted.items():
            if key not in self.forwards:
                forward = KINDS[key[0]](*key[1:])
                try:
                    await forward.open()
                except OSError as error:
                    logging.warning("skipped %s: %s", key, error)
                    continue
                self.forwards[key] = forward
            self.forwards[key].targets = targets
        if self.dump:
            self.tell(state)

    def give(self, vips):
        """Changes the addresses of lo, and adds routes, because the kernel adds its own IPv6 routes only a moment later."""
        self.vips.replace(vips)
        diff, lines = self.vips.diff(), ""
        for vip, verb in [(vip, "del") for vip in diff.removed] + [(vip, "replace") for vip in diff.set]:
            lines += f"addr {verb} {vip}/128 dev lo nodad\n" if ":" in vip else f"addr {verb} {vip}/32 dev lo\n"
            lines += f"route {verb} local {vip} dev lo table local metric 1024\n"
        subprocess.run(["ip", "-force", "-batch", "-"], input=lines, text=True, check=False)
        self.vips.commit()

    def tell(self, state):
        """Writes the applied state in the format of the conformance kit."""
        lines = [f"rev {state.revision.instance_id} {state.revision.rev}", f"node {state.node.Name}"]
        for key, of in state.services.items():
            service, ips = of.Service, of.Service.IPs
            for kind, vips in (("cluster", ips.ClusterIPs), ("external", ips.ExternalIPs), ("balancer", ips.LoadBalancerIPs)):
                lines += [f"vip {key} {kind} {vip}" for vip in addresses(vips)]
            for port in service.Ports:
                lines.append(f"port {key} {port.Name or '-'} {pb.Protocol.Name(port.Protocol)} {port.Port} {port.NodePort}")
            for to in port_endpoints(of):
                scopes = "+".join(word for field, word in SCOPES if getattr(to.scopes, field)) or "-"
                lines.append(f"endpoint {key} {to.port_name or '-'} {to.ip} {to.port} {scopes}")
            if service.HasField("ClientIP"):
                lines.append(f"affinity {key} {service.ClientIP.TimeoutSeconds}")
        with open(self.dump + ".new", "w") as file:
            file.write("\n".join(lines) + "\n")
        os.rename(self.dump + ".new", self.dump)


KINDS = {pb.TCP: Tcp, pb.UDP: Udp}


async def main():
    parser = argparse.ArgumentParser(description="A userspace proxy for localnet")
    Flags.register(parser)
    parser.add_argument("--dump", metavar="FILE")
    arguments = parser.parse_args()
    flags, proxy = Flags(arguments), Proxy(arguments.dump)
    logging.basicConfig(level=logging.INFO)
    resource.setrlimit(resource.RLIMIT_NOFILE, 2 * resource.getrlimit(resource.RLIMIT_NOFILE)[1:])
    async with flags.dial() as brain:
        running = asyncio.ensure_future(run(brain, proxy.sync, flags.options("python-proxy")))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        try:
            await running
        except asyncio.CancelledError:
            proxy.give({})


asyncio.run(main())
