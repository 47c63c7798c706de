"""The load balancer of the test cluster's cloud: loadbalancer.py CA. Runs in the network namespace of the control plane.

Each Service of type LoadBalancer gets an address of 172.30.1.0/24, and of fd30:1::/112 for IPv6. A multipath route sends its packets to the
nodes: to all, or with externalTrafficPolicy Local to those whose healthCheckNodePort answers 200.
"""
import json
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request

API, TOKEN = "https://172.30.0.1:6443", "admin-of-the-test-cluster"
FINALIZER = "service.kubernetes.io/load-balancer-cleanup"
# Source addresses of clients outside of the cluster.
SOURCE = {"IPv4": "198.51.100.1", "IPv6": "fd31::1"}
INTERVAL = 1.0


class Balancer:
    def __init__(self, ca):
        self.tls = ssl.create_default_context(cafile=ca)
        self.numbers = {}  # UID of a Service → last number of its addresses
        self.routes = {}  # address → nodes

    def call(self, method, path, body=None):
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/merge-patch+json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(API + path, method=method, data=data, headers=headers)
        return json.load(urllib.request.urlopen(request, context=self.tls, timeout=5))

    def step(self):
        nodes = [
            address["address"]
            for node in self.call("GET", "/api/v1/nodes")["items"]
            for address in node["status"].get("addresses", [])
            if address["type"] == "InternalIP"
        ]
        wanted = {}
        for service in self.call("GET", "/api/v1/services")["items"]:
            wanted.update(self.serve(service, nodes))
        for address in self.routes.keys() - wanted.keys():
            self.route(address, [])
        for address, targets in wanted.items():
            if self.routes.get(address) != targets:
                self.route(address, targets)

    def serve(self, service, nodes):
        """Gives a Service its addresses, and returns the nodes that each address goes to."""
        meta, spec = service["metadata"], service["spec"]
        path = f"/api/v1/namespaces/{meta['namespace']}/services/{meta['name']}"
        finalizers = meta.get("finalizers", [])
        if spec["type"] != "LoadBalancer" or spec.get("loadBalancerClass") or meta.get("deletionTimestamp"):
            if FINALIZER in finalizers:
                self.call("PATCH", path + "/status", {"status": {"loadBalancer": None}})
                self.call("PATCH", path, {"metadata": {"finalizers": [f for f in finalizers if f != FINALIZER] or None}})
            self.numbers.pop(meta["uid"], None)
            return {}
        if meta["uid"] not in self.numbers:
            self.numbers[meta["uid"]] = next(n for n in range(10, 250) if n not in self.numbers.values())
        number = self.numbers[meta["uid"]]
        addresses = {f: f"172.30.1.{number}" if f == "IPv4" else f"fd30:1::{number}" for f in spec["ipFamilies"]}
        if FINALIZER not in finalizers:
            self.call("PATCH", path, {"metadata": {"finalizers": [*finalizers, FINALIZER]}})
        ingress = [{"ip": address} for address in addresses.values()]
        if [entry.get("ip") for entry in service["status"]["loadBalancer"].get("ingress", [])] != list(addresses.values()):
            self.call("PATCH", path + "/status", {"status": {"loadBalancer": {"ingress": ingress}}})
        return {address: self.targets(spec, family, nodes) for family, address in addresses.items()}

    def targets(self, spec, family, nodes):
        nodes = [node for node in nodes if (":" in node) == (family == "IPv6")]
        if spec.get("externalTrafficPolicy") == "Local":
            nodes = [node for node in nodes if healthy(node, spec["healthCheckNodePort"])]
        # Nodes do not share what they know of clients, so clouds send a client to one node.
        return nodes[:1] if spec.get("sessionAffinity") == "ClientIP" else nodes

    def route(self, address, nodes):
        family = "IPv6" if ":" in address else "IPv4"
        command = ["ip", "-6" if family == "IPv6" else "-4", "route"]
        if nodes:
            hops = [word for node in nodes for word in ("nexthop", "via", node, "weight", "1")]
            subprocess.run([*command, "replace", address, "src", SOURCE[family], *hops], check=True)
            self.routes[address] = nodes
        else:
            subprocess.run([*command, "del", address], check=True)
            del self.routes[address]
        print("route", address, nodes, flush=True)


def healthy(node, port):
    host = f"[{node}]" if ":" in node else node
    try:
        urllib.request.urlopen(f"http://{host}:{port}/healthz", timeout=1)
        return True
    except OSError:
        return False


def main(ca):
    # Packets to addresses without nodes vanish. Tests of UDP would take "no route to host" for an answer.
    for command in (
        "link add sink type bridge",
        "link set sink arp off up",
        f"route replace 172.30.1.0/24 src {SOURCE['IPv4']} dev sink",
        "-6 route replace fd30:1::/112 dev sink",
    ):
        subprocess.run(["ip", *command.split()], check=False, stderr=subprocess.DEVNULL)
    balancer = Balancer(ca)
    while True:
        try:
            balancer.step()
        except (OSError, KeyError, subprocess.CalledProcessError) as error:
            # The API server restarts, or an object changed meanwhile: the next step reads everything again.
            print(type(error).__name__, error, flush=True)
        time.sleep(INTERVAL)


if __name__ == "__main__":
    main(*sys.argv[1:])
