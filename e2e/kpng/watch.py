#!/usr/bin/env python3
"""A client of KPNG's Watch, written from the description of its protocol alone: no .proto file, no generated code.

    watch.py TARGET localnetv1.Endpoints|localv1.Sets [NODE]

After each Sync it prints what it holds as one line of JSON. It ends when its input does.
"""

import json
import queue
import sys
import threading

import grpc

VARINT, I64, LEN, I32 = 0, 1, 2, 5
SERVICES, ENDPOINTS, OTHER_ENDPOINTS = 1, 2, 30


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def message(data):
    """The values of each field by its number: numbers, or bytes."""
    fields, at = {}, 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == VARINT:
            value, at = varint(data, at)
        else:
            length, at = varint(data, at) if tag & 7 == LEN else ({I64: 8, I32: 4}[tag & 7], at)
            value, at = data[at : at + length], at + length
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def one(fields, number, default=b""):
    return fields.get(number, [default])[-1]


def text(fields, number):
    return one(fields, number).decode()


def ips(fields, number):
    both = message(one(fields, number))
    return [address.decode() for address in both.get(1, []) + both.get(2, [])]


def service(data):
    fields = message(data)
    addresses = message(one(fields, 4))
    # KPNG's Go code dereferences both lists of addresses.
    assert 1 in addresses and 2 in addresses, f"ClusterIPs or ExternalIPs is unset in {addresses}"
    ports = [message(port) for port in fields.get(6, [])]
    return {
        "type": text(fields, 3),
        "cluster": ips(addresses, 1),
        "external": ips(addresses, 2),
        "balancers": ips(addresses, 4),
        "ports": [[text(port, 1), one(port, 2, 0), one(port, 3, 0), one(port, 4, 0)] for port in ports],
        "external_local": one(fields, 7, 0),
        "internal_local": one(fields, 12, 0),
        "affinity": one(message(one(fields, 11)), 1, 0),
    }


def endpoint(data):
    fields = message(data)
    ports = [message(port) for port in fields.get(4, [])]
    scopes = message(one(fields, 5))
    return [
        ips(fields, 2),
        text(fields, 1),
        one(fields, 3, 0),
        [[text(port, 1), one(port, 2, 0)] for port in ports],
        [one(scopes, number, 0) for number in (1, 2, 30, 31)],
    ]


def state(objects):
    services = {path: service(data) for path, (kind, data) in objects.items() if kind == SERVICES}
    for path in services:
        of = [value for key, value in objects.items() if key.startswith(path + "/")]
        services[path]["endpoints"] = sorted(endpoint(data) for kind, data in of if kind in (ENDPOINTS, OTHER_ENDPOINTS))
    return services


def main():
    target, name, node = (sys.argv + [""])[1:4]
    # By default, the C core sends the socket's path as the authority, which is invalid.
    channel = grpc.insecure_channel(target, options=[("grpc.default_authority", "localhost")])
    threading.Thread(target=lambda: (sys.stdin.read(), channel.close()), daemon=True).start()
    # WatchReq{1: NodeName}
    request = b"\x0a" + bytes([len(node)]) + node.encode() if node else b""
    requests = queue.Queue()
    requests.put(request)
    objects = {}
    try:
        for item in channel.stream_stream(f"/{name}/Watch")(iter(requests.get, None)):
            for op, (value,) in message(item).items():
                if op == 4:  # Reset
                    objects.clear()
                elif op == 2:  # Set: Value{1: Ref{1: Set, 2: Path}, 2: Bytes}
                    value = message(value)
                    ref = message(one(value, 1))
                    objects[text(ref, 2)] = (one(ref, 1, 0), one(value, 2))
                elif op == 3:  # Delete: Ref
                    del objects[text(message(value), 2)]
                elif op == 1:  # Sync
                    print(json.dumps(state(objects)), flush=True)
                    requests.put(request)
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.CANCELLED:
            sys.exit(f"error: {error}")


main()
