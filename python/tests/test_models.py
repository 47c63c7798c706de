import asyncio
import random
import unittest

from localnet_client import Changes, DiffStore, Listener, Revision, State, incremental, port_endpoints
from localnet_client import localnetv1_pb2 as pb
from localnet_client.answer import Answer

from .fake import changed, delta, full, removed, service


class Calls(Listener):
    """Records the calls of a Listener."""

    def __init__(self):
        self.log, self.fail = [], False

    def set_node(self, node):
        self.log.append(f"node {node.Name}")

    def set_service(self, key, service):
        self.log.append(f"set {key} {service.Type}")

    def delete_service(self, key):
        self.log.append(f"delete {key}")

    def set_endpoint(self, service, endpoint):
        self.log.append(f"set {service} {endpoint.ip}:{endpoint.port} {endpoint.local}")

    def delete_endpoint(self, service, endpoint):
        self.log.append(f"delete {service} {endpoint.ip}:{endpoint.port}")

    def reset(self):
        self.log.append("reset")

    async def commit(self, revision):
        self.log.append(f"commit {revision.rev}")
        if self.fail:
            raise OSError("refused")


class IncrementalTest(unittest.TestCase):
    def test_a_listener_receives_only_changes_in_their_order(self):
        local = service("a", "10.0.0.1", "10.0.0.3")
        local.Endpoints.Endpoints[0].Local = True
        state, changes, calls = State(), Changes(everything=True), Calls()
        sync = incremental(calls)
        for name, items, fail, expected in [
            (
                "full state",
                full(1, service("b"), service("a", "10.0.0.1", "10.0.0.2")),
                False,
                ["node node-a", "set ns/a ", "set ns/a 10.0.0.1:8080 False", "set ns/a 10.0.0.2:8080 False", "set ns/b ", "commit 1"],
            ),
            (
                "endpoints",
                delta(2, local),
                False,
                ["set ns/a 10.0.0.1:8080 True", "set ns/a 10.0.0.3:8080 False", "delete ns/a 10.0.0.2:8080", "commit 2"],
            ),
            (
                "a commit that fails",
                delta(3, service("a", "10.0.0.3", Type="NodePort")),
                True,
                ["set ns/a NodePort", "delete ns/a 10.0.0.1:8080", "commit 3"],
            ),
            ("the retry repeats nothing", delta(3), False, ["commit 3"]),
            ("deleted", delta(4, removed("a")), False, ["delete ns/a 10.0.0.3:8080", "delete ns/a", "commit 4"]),
        ]:
            answer = Answer()
            for item in items:
                answer.add(item)
            state.apply(answer, changes)
            calls.log, calls.fail = [], fail
            try:
                asyncio.run(sync(state, changes))
                changes = Changes()
            except OSError:
                self.assertTrue(fail)
            self.assertEqual(calls.log, expected, name)
        calls.log = []
        asyncio.run(sync(state, Changes(everything=True, resync=True)))
        self.assertEqual(calls.log, ["reset", "node node-a", "set ns/b ", "commit 4"])

    def test_port_endpoints_contain_each_port_of_an_endpoint(self):
        ports = [pb.PortMapping(Name="dns", Protocol=pb.UDP), pb.PortMapping(Name="http", Protocol=pb.TCP)]
        names = [pb.PortName(Name="dns", Port=53), pb.PortName(Name="http", Port=80), pb.PortName(Name="other", Port=1)]
        endpoint = pb.Endpoint(IPs=pb.IPSet(V6=["fd00::1"]), PortOverrides=names)
        of = pb.ServiceEndpoints(Service=pb.Service(Ports=ports), Endpoints=[endpoint])
        found = [(one.port_name, one.protocol, one.ip, one.port) for one in port_endpoints(of)]
        self.assertEqual(found, [("dns", pb.UDP, "fd00::1", 53), ("http", pb.TCP, "fd00::1", 80)])
        self.assertEqual(port_endpoints(None), [])

    def test_a_revision_and_a_key_have_a_text(self):
        [key] = changed("a").services
        self.assertEqual(f"{Revision(7, 3)} {key}", "7:3 ns/a")


def apply(diff, before):
    """What a backend holds after it has applied a diff."""
    after = {} if diff.unknown else dict(before)
    after.update(diff.set)
    for key in diff.removed:
        del after[key]
    return after


class DiffStoreTest(unittest.TestCase):
    def test_applying_the_diff_gives_the_desired_entries(self):
        """Plays random changes against a backend that sometimes fails."""
        for seed in range(300):
            rng = random.Random(seed)

            def entries():
                return {rng.randrange(12): rng.randrange(3) for _ in range(rng.randrange(8))}

            store, holds = DiffStore(), entries()
            if rng.randrange(2):
                store.adopt(holds)
            for _ in range(8):
                desired = entries()
                store.replace(desired)
                diff = store.diff()
                match rng.randrange(5):
                    case 0:  # Nothing is applied.
                        pass
                    case 1:  # It is unknown what was applied.
                        holds = {key: value for key, value in apply(diff, holds).items() if key % 2}
                        store.forget()
                    case 2:
                        store.adopt(holds)
                    case 3 if not diff.unknown:  # A part is applied.
                        after = apply(diff, holds)
                        for key in filter(lambda key: key % 2, diff.set.keys() | diff.removed.keys()):
                            holds.pop(key, None)
                            holds.update({key: after[key]} if key in after else {})
                            store.commit_key(key)
                    case 4:
                        holds = apply(diff, holds)
                        store.commit()
                        self.assertFalse(store.diff(), seed)
                        self.assertEqual(holds, desired, seed)
                self.assertEqual(dict(store.items()), desired, seed)
            self.assertEqual(apply(store.diff(), holds), desired, seed)

    def test_a_diff_contains_only_changes(self):
        store = DiffStore()
        store.replace({key: key for key in range(1000)})
        self.assertTrue(store.diff().unknown)
        store.commit()
        store.set(7, 0)
        store.set(8, 8)
        store.delete(9)
        store.delete(1001)
        diff = store.diff()
        self.assertEqual((diff.set, diff.removed), ({7: 0}, {9: 9}))
        self.assertEqual((store.desired(7), store.applied(7), store.applied(1001)), (0, 7, None))
        store.set(7, 7)
        store.set(9, 9)
        self.assertFalse(store.diff(), "an undone change is not a change")

    def test_equal_compares_values(self):
        store = DiffStore(lambda a, b: a % 10 == b % 10)
        store.adopt({"a": 1, "b": 2})
        store.replace({"a": 11, "b": 3})
        self.assertEqual(store.diff().set, {"b": 3})

    def test_adopt_discards_what_was_known(self):
        store = DiffStore()
        store.adopt({1: 1})
        self.assertEqual(store.diff().removed, {1: 1})
        store.adopt({})
        self.assertFalse(store.diff())
