#!/usr/bin/env python3
"""A backend for localnet in Python: a userspace proxy for TCP and UDP that reads full states.

    proxy.py --api unix:///run/localnet/brain.sock [--dump FILE]

It adds the ClusterIPs and ExternalIPs to the loopback interface, listens there, and forwards connections to the endpoints in
turn. It needs CAP_NET_ADMIN, grpcio and grpcio-tools.
"""

import argparse
import asyncio
import os
import resource
import signal
import subprocess
import sys

import grpc

PROTOCOLS = {1: "TCP", 2: "UDP", 3: "SCTP"}
SCOPES = (("Internal", "internal"), ("External", "external"), ("ShortCircuit", "shortcircuit"), ("Established", "established"))


def addresses(ips):
    return [*ips.V4, *ips.V6]


def ports_of(service):  # Ignores ports of unknown protocols.
    return [port for port in service.Ports if port.Protocol in PROTOCOLS]


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
    def __init__(self, dump):
        self.dump, self.vips, self.forwards = dump, set(), {}

    async def sync(self, token, node, services):
        vips, wanted = set(), {}
        for service, endpoints in services.values():
            for scope, ips in ("Internal", service.IPs.ClusterIPs), ("External", service.IPs.ExternalIPs):
                for address in addresses(ips):
                    vips.add(address)
                    for port in ports_of(service):
                        targets = self.targets(endpoints, port, scope, address)
                        # The kernel rejects packets to a port without a socket, as the verdict Reject requires.
                        if targets and PROTOCOLS[port.Protocol] in ("TCP", "UDP"):
                            wanted[PROTOCOLS[port.Protocol], address, port.Port] = targets
        for key in self.forwards.keys() - wanted.keys():
            self.forwards.pop(key).server.close()
        self.give(vips)
        for key, targets in wanted.items():
            if key not in self.forwards:
                forward = (Tcp if key[0] == "TCP" else Udp)(*key[1:])
                try:
                    await forward.open()
                except OSError as error:
                    print(f"skipped {key}: {error}", file=sys.stderr)
                    continue
                self.forwards[key] = forward
            self.forwards[key].targets = targets
        if self.dump:
            self.tell(token, node, services)

    @staticmethod
    def targets(endpoints, port, scope, vip):
        of_family = [one for one in endpoints if getattr(one.Scopes, scope) and (":" in vip) == bool(one.IPs.V6)]
        return [(addresses(one.IPs)[0], at.Port) for one in of_family for at in one.PortOverrides if at.Name == port.Name]

    def give(self, vips):
        """Adds addresses to lo, with routes, because the kernel adds its own IPv6 routes only a moment later."""
        lines, route = [], "dev lo table local metric 1024"
        for vip, verb in [(vip, "del") for vip in self.vips - vips] + [(vip, "replace") for vip in vips - self.vips]:
            lines += [f"addr {verb} {vip}/{128 if ':' in vip else 32} dev lo nodad", f"route {verb} local {vip} {route}"]
        subprocess.run(["ip", "-force", "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=False)
        self.vips = vips

    def tell(self, token, node, services):
        """Writes the applied state in the format of the conformance kit."""
        lines = [f"node {node.Name}"]
        for (namespace, name), (service, endpoints) in services.items():
            key, ips = f"{namespace}/{name}", service.IPs
            for kind, of in (("cluster", ips.ClusterIPs), ("external", ips.ExternalIPs), ("balancer", ips.LoadBalancerIPs)):
                lines += [f"vip {key} {kind} {address}" for address in addresses(of)]
            for port in ports_of(service):
                lines.append(f"port {key} {port.Name or '-'} {PROTOCOLS[port.Protocol]} {port.Port} {port.NodePort}")
                for one in endpoints:
                    scopes = "+".join(word for field, word in SCOPES if getattr(one.Scopes, field)) or "-"
                    at = [at.Port for at in one.PortOverrides if at.Name == port.Name]
                    lines += [f"endpoint {key} {port.Name or '-'} {addresses(one.IPs)[0]} {number} {scopes}" for number in at]
            if service.WhichOneof("SessionAffinity") == "ClientIP":
                lines.append(f"affinity {key} {service.ClientIP.TimeoutSeconds}")
        with open(self.dump + ".new", "w") as file:
            file.write(f"rev {token.InstanceID} {token.Rev}\n" + "\n".join(lines) + "\n")
        os.rename(self.dump + ".new", self.dump)


async def follow(api, proxy):
    messages, stubs = grpc.protos_and_services("localnetv1.proto")
    # By default, the C core sends the socket's path as the authority, which is invalid, and waits minutes between connects.
    options = [("grpc.default_authority", "localhost"), ("grpc.max_reconnect_backoff_ms", 1000)]
    options += [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.min_reconnect_backoff_ms", 100)]
    token = messages.NextFilter()
    async with grpc.aio.insecure_channel(api, options=options) as channel:
        while True:
            try:
                answered, node, services = None, None, {}
                async for item in stubs.EndpointsStub(channel).Next(token):
                    if item.HasField("Next"):
                        answered = item.Next
                    elif item.HasField("Node"):
                        node = item.Node
                    elif item.HasField("Endpoints"):
                        key = item.Endpoints.Service.Namespace, item.Endpoints.Service.Name
                        if item.Endpoints.Continues:
                            services[key][1].extend(item.Endpoints.Endpoints)
                        else:
                            services[key] = item.Endpoints.Service, list(item.Endpoints.Endpoints)
            except grpc.aio.AioRpcError as error:
                print(f"stream failed, keeping the applied state: {error.code().name}: {error.details()}", file=sys.stderr)
                await asyncio.sleep(0.1)
                continue
            await proxy.sync(answered, node, services)
            token = messages.NextFilter(InstanceID=answered.InstanceID, Rev=answered.Rev)


async def main():
    parser = argparse.ArgumentParser(description="A userspace proxy for localnet")
    parser.add_argument("--api", default="unix:///run/localnet/brain.sock")
    parser.add_argument("--dump")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, 2 * resource.getrlimit(resource.RLIMIT_NOFILE)[1:])
    proxy = Proxy(arguments.dump)
    following = asyncio.ensure_future(follow(arguments.api, proxy))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, following.cancel)
    try:
        await following
    except asyncio.CancelledError:
        proxy.give(set())


sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "proto"))
asyncio.run(main())
