"""The draft localnet.v1. The tests of the loop are in test_loop."""

import asyncio
import unittest
from typing import NamedTuple

import grpc

from localnet_client import v1
from localnet_client.localnet import v1 as pb
from localnet_client.v1 import (
    BrainError,
    Changes,
    EndpointKey,
    FamilyErrors,
    Listener,
    Revision,
    ServiceEndpoints,
    ServiceKey,
    State,
    incremental,
    reason,
)
from localnet_client.v1.answer import Answer, _decode
from localnet_client.v1.reports import add_withheld

from .fake import DOWN, Fake, failure, play

REFUSED = OSError("refused")
# The digest of the node is the largest number, so the sum exceeds 64 bits.
NODE_DIGEST = (1 << 64) - 1


class Synced(NamedTuple):
    """What a Sync received: the number of the revision, the state, and the changes, as texts."""

    number: int
    state: str
    changes: str


class FakeV1(Fake):
    library = v1

    def describe(self, state, changes):
        services = [
            f"{key.name}({of.service.type})" + listed(f"{at.address}/{at.ordinal}:{one.local}" for at, one in of.endpoints.items())
            for key, of in state.services.items()
        ]
        changed = [
            "+" * of.service + key.name + listed(f"{at.address}/{at.ordinal}" for at in of.endpoints) for key, of in changes.services.items()
        ]
        flags = [name for name in ("everything", "resync", "node") if getattr(changes, name)]
        return Synced(state.revision.rev, " ".join(sorted(services)), " ".join(sorted(changed) + flags))

    async def token(self, *messages, error=None):
        """Answers the next request, and returns its token."""
        return (await self.answer(*messages, error=error)).token


def listed(texts):
    return f"[{' '.join(sorted(texts))}]"


def play_v1(test, **options):
    play(test, FakeV1, **options)


def begin(number, base=""):
    return pb.Begin(revision=pb.Revision(instance="0000000000000007", number=number), base=base)


def full(number, total, *updates):
    """A full state of the instance 7, in two messages. Its token is "full"."""
    commit = pb.Commit(token="full", digest=(total + NODE_DIGEST) % (1 << 64))
    node = pb.NodeState(name="node-a", digest=NODE_DIGEST)
    return [pb.NextStateResponse(begin=begin(number), node=node), pb.NextStateResponse(services=updates, commit=commit)]


def delta(number, base, total, *updates):
    """An answer with changes of the state with the token base. Its own token is "delta"."""
    commit = pb.Commit(token="delta", digest=(total + NODE_DIGEST) % (1 << 64))
    return pb.NextStateResponse(begin=begin(number, base), services=updates, commit=commit)


def key(name):
    return pb.ServiceKey(namespace="ns", name=name)


def service(name, *endpoints, replace=False, **fields):
    """A Service with a port and these endpoints. Its digest is 100."""
    ports = [pb.ServicePort(name="http", protocol=pb.PROTOCOL_TCP, number=80)]
    record = pb.Service(**{"digest": 100, "type": pb.SERVICE_TYPE_CLUSTER_IP, "ports": ports, **fields})
    return pb.ServiceUpdate(key=key(name), service=record, endpoints=endpoints, replace=replace)


def changed(name, *endpoints, gone=()):
    """Changes endpoints of a Service, and removes those at the addresses `gone`."""
    removed = [pb.EndpointKey(address=address) for address in gone]
    return pb.ServiceUpdate(key=key(name), endpoints=endpoints, removed_endpoints=removed)


def removed(name):
    return pb.ServiceUpdate(key=key(name), removed=True)


def at(address, digest, port=8080, **fields):
    """An endpoint with this digest."""
    ports = [pb.EndpointPort(name="http", number=port)]
    return pb.Endpoint(address=address, digest=digest, ports=ports, scopes=[pb.SCOPE_INTERNAL], **fields)


class ReaderTest(unittest.TestCase):
    def test_changes_become_states(self):
        async def test(fake):
            services = service("a", at("10.0.0.1", 1), at("10.0.0.2", 2)), service("b", at("fd00::1", 1))
            self.assertEqual(await fake.token(*full(1, 204, *services)), "")
            state = "a(1)[10.0.0.1/0:False 10.0.0.2/0:False] b(1)[fd00::1/0:False]"
            self.assertEqual(await fake.end(), Synced(1, state, "+a[10.0.0.1/0 10.0.0.2/0] +b[fd00::1/0] everything node"))
            # 10.0.0.9 has come and gone.
            update = changed("a", at("10.0.0.2", 20, local=True), at("10.0.0.3", 3), gone=["10.0.0.1", "10.0.0.9"])
            self.assertEqual(await fake.token(delta(2, "full", 224, update)), "full")
            state = "a(1)[10.0.0.2/0:True 10.0.0.3/0:False] b(1)[fd00::1/0:False]"
            self.assertEqual(await fake.end(), Synced(2, state, "a[10.0.0.1/0 10.0.0.2/0 10.0.0.3/0]"))
            typed = service("b", type=pb.SERVICE_TYPE_NODE_PORT, digest=50)
            self.assertEqual(await fake.token(delta(3, "delta", 51, typed, removed("a"), removed("gone"))), "delta")
            self.assertEqual(await fake.end(), Synced(3, "b(2)[fd00::1/0:False]", "+a[10.0.0.2/0 10.0.0.3/0] +b[]"))
            node, commit = pb.NodeState(name="node-b", digest=5), pb.Commit(token="delta", digest=56)
            await fake.token(pb.NextStateResponse(begin=begin(4, "delta"), node=node, commit=commit))
            self.assertEqual(await fake.end(), Synced(4, "b(2)[fd00::1/0:False]", "node"))

        play_v1(test)

    def test_a_replaced_service_has_only_its_new_endpoints(self):
        async def test(fake):
            await fake.token(*full(1, 106, service("a", at("10.0.0.1", 1), at("10.0.0.2", 2), at("10.0.0.3", 3))))
            await fake.end()
            # One Service may be in several updates. Only what differs in the end has changed.
            updates = service("a", at("10.0.0.1", 10), replace=True), changed("a", at("10.0.0.2", 20, local=True))
            await fake.token(delta(2, "full", 130, *updates))
            state = "a(1)[10.0.0.1/0:False 10.0.0.2/0:True]"
            self.assertEqual(await fake.end(), Synced(2, state, "a[10.0.0.2/0 10.0.0.3/0]"))

        play_v1(test)

    def test_a_restarted_brain_changes_only_what_differs(self):
        async def test(fake):
            await fake.token(*full(5, 201, service("a", at("10.0.0.1", 1)), service("b")))
            await fake.end()
            messages = full(1, 112, service("a", at("10.0.0.1", 33), at("10.0.0.2", 2), digest=77))
            messages[0].begin.revision.instance = "ffffffffffffffff"
            messages[0].node.digest, messages[1].commit.digest = 5, 117
            self.assertEqual(await fake.token(*messages), "full")
            self.assertEqual(await fake.end(), Synced(1, "a(1)[10.0.0.1/0:False 10.0.0.2/0:False]", "+b[] a[10.0.0.2/0]"))

        play_v1(test)

    def test_a_torn_or_wrong_answer_is_never_applied(self):
        def without(message, field):
            message.ClearField(field)
            return message

        gone = changed("a", gone=["10.0.0.2"])
        uncommitted = without(delta(2, "full", 101, gone), "commit")
        named = delta(2, "full", 103)
        named.begin.revision.instance = "seven"
        whole = service("a", at("10.0.0.1", 1), at("10.0.0.2", 2))
        nodeless = full(2, 103 - NODE_DIGEST, whole)
        nodeless[0].ClearField("node")
        address = pb.ServiceAddress(address="10.0.0", kind=pb.ADDRESS_KIND_CLUSTER_IP)
        node_port = pb.ServicePort(name="http", protocol=pb.PROTOCOL_TCP, number=80, node_port=65536)
        # The last column is the token of the next request. If nothing has happened, the loop repeats the request. If the reader has
        # lost something, the loop reads the full state.
        for name, messages, error, token in [
            ("unavailable", [], DOWN, "full"),
            ("cut after a change", [uncommitted], DOWN, "full"),
            ("failed after the commit", [delta(2, "full", 101, gone)], DOWN, "full"),
            ("empty", [], None, "full"),
            ("no commit", [uncommitted], None, "full"),
            ("cut full state", full(2, 0)[:1], None, "full"),
            ("of another state", [delta(2, "other", 101, gone)], None, ""),
            ("a removal is missing", [delta(2, "full", 101)], None, ""),
            ("a removal too many", [delta(2, "full", 103, gone)], None, ""),
            ("an unknown Service", [delta(2, "full", 104, changed("b", at("10.0.0.4", 1)))], None, ""),
            ("replaced by nothing", [delta(2, "full", 0, pb.ServiceUpdate(key=key("a"), replace=True))], None, ""),
            ("a full state with a wrong sum", full(2, 99, service("b")), None, ""),
            ("a full state without a node", nodeless, None, ""),
            ("undecodable", [delta(2, "full", 103), None], None, ""),
            ("no begin", [without(delta(2, "full", 103), "begin")], None, ""),
            ("no instance", [named], None, ""),
            ("no name", [delta(2, "full", 103, changed(""))], None, ""),
            ("an invalid address", [delta(2, "full", 104, changed("a", at("10.0.0.256", 1)))], None, ""),
            ("an invalid removed address", [delta(2, "full", 103, changed("a", gone=["web"]))], None, ""),
            ("an invalid port", [delta(2, "full", 103, changed("a", at("10.0.0.1", 1, port=65536)))], None, ""),
            ("an invalid address of a Service", [delta(2, "full", 103, service("a", addresses=[address]))], None, ""),
            ("an invalid NodePort", [delta(2, "full", 103, service("a", ports=[node_port]))], None, ""),
        ]:

            async def test(fake):
                await fake.token(*full(1, 103, whole))
                await fake.end()
                await fake.token(*messages, error=error)
                following = [delta(3, "full", 203, service("d"))] if token else full(3, 203, whole, service("d"))
                self.assertEqual(await fake.token(*following), token)
                self.assertEqual(await fake.end(), Synced(3, "a(1)[10.0.0.1/0:False 10.0.0.2/0:False] d(1)[]", "+d[]"))

            with self.subTest(name):
                play_v1(test)

    def test_a_full_state_with_a_wrong_sum_is_read_again_with_backoff(self):
        async def test(fake):
            clock = asyncio.get_running_loop().time
            await fake.token(*full(1, 1))
            for seconds in (0.1, 0.2, 0.4):
                began = clock()
                self.assertEqual(await fake.token(*full(1, 1)), "")
                self.assertTrue(seconds / 2 - 1e-6 <= clock() - began <= seconds + 1e-6)
            await fake.token(*full(1, 0))
            self.assertEqual((await fake.end()).number, 1)

        play_v1(test)

    def test_a_failed_sync_is_retried_with_all_changes(self):
        async def test(fake):
            await fake.token(*full(1, 101, service("a", at("10.0.0.1", 1))))
            await fake.end()
            await fake.token(delta(2, "full", 103, changed("a", at("10.0.0.2", 2))))
            await fake.end(REFUSED)
            self.assertEqual((await fake.end(REFUSED)).changes, "a[10.0.0.2/0]")
            await fake.token(delta(3, "delta", 106, changed("a", at("10.0.0.3", 3))))
            self.assertEqual((await fake.end()).changes, "a[10.0.0.2/0 10.0.0.3/0]")

        play_v1(test)

    def test_resume_waits_for_another_revision(self):
        async def test(fake):
            self.assertEqual(await fake.token(*full(3, 100, service("a"))), "")
            self.assertEqual(await fake.token(delta(4, "full", 101, changed("a", at("10.0.0.1", 1)))), "full")
            self.assertEqual(await fake.end(), Synced(4, "a(1)[10.0.0.1/0:False]", "+a[10.0.0.1/0] everything node"))

        async def other(fake):
            await fake.token(*full(4, 100, service("a")))
            self.assertEqual((await fake.end()).number, 4)

        play_v1(test, resume=Revision(7, 3))
        play_v1(other, resume=Revision(7, 3))

    def test_a_request_says_who_reads_and_what(self):
        capabilities, metadata = [pb.CAPABILITY_SOURCE_FILTERS], pb.MetadataSelector(label_keys=["app"])

        async def test(fake):
            reader = pb.Reader(name="test", version="1.2", role=pb.READER_ROLE_OBSERVER, capabilities=capabilities)
            want = pb.NextStateRequest(reader=reader, metadata=metadata, endpoint_details=True, view=pb.VIEW_DNS)
            self.assertEqual(await fake.answer(*full(1, 0)), want)
            await fake.end()
            want.token = "full"
            self.assertEqual(await fake.answer(delta(2, "full", 0)), want)
            await fake.end()
            await asyncio.sleep(3600)
            self.assertTrue(fake.reports.empty(), "an observer must not report")

        options = {"capabilities": capabilities, "metadata": metadata, "endpoint_details": True, "view": pb.VIEW_DNS}
        play_v1(test, name="test", version="1.2", observer=True, **options)

    def test_a_withheld_service_has_no_endpoints(self):
        async def test(fake):
            await fake.token(*full(1, 103, service("a", at("10.0.0.1", 1), at("10.0.0.2", 2))))
            await fake.end()
            self.assertEqual((await fake.accept(None, pb.ReportStatusResponse())).skipped, pb.SkippedParts())
            # Its digest is the sum of the digests that it replaces.
            withheld = service("a", replace=True, digest=108, withheld=True, requires=[pb.CAPABILITY_SOURCE_FILTERS, 77])
            await fake.token(delta(2, "full", 108, withheld))
            self.assertEqual(await fake.end(), Synced(2, "a(1)[]", "+a[10.0.0.1/0 10.0.0.2/0]"))
            skipped = (await fake.accept(None, pb.ReportStatusResponse())).skipped
            self.assertEqual([(part.service.name, part.diagnostic.code) for part in skipped.parts], [("a", "service-withheld")])
            self.assertIn("lacks CAPABILITY_SOURCE_FILTERS and 77", skipped.parts[0].diagnostic.problem)

        play_v1(test, name="test")

    def test_a_report_lists_as_many_withheld_services_as_there_is_room(self):
        service = ServiceEndpoints(pb.Service(withheld=True))
        services = {ServiceKey("ns", f"s{i:03}"): service for i in range(256)}
        state = State(services=services, withheld=set(services))
        skipped = pb.SkippedParts(count=1, parts=[pb.SkippedPart()])
        add_withheld(skipped, state, ())
        self.assertEqual((skipped.count, len(skipped.parts), skipped.parts[-1].service.name), (257, 256, "s254"))

    def test_unknown_values_of_a_newer_brain_are_left_out(self):
        newer = service("a", at("10.0.0.1", 1))
        newer.service.ports.add(name="new", protocol=77, number=81)
        newer.service.addresses.add(address="10.96.0.1", kind=pb.ADDRESS_KIND_CLUSTER_IP)
        newer.service.addresses.add(address="new:family", kind=77)
        newer.endpoints[0].ports.add(name="new", number=8081)
        update = _decode(newer)
        self.assertEqual((len(update.service.ports), len(update.service.addresses)), (1, 1))
        [found] = v1.port_endpoints(ServiceEndpoints(update.service, dict(update.endpoints)))
        self.assertEqual((found.ip, found.port), ("10.0.0.1", 8080))
        self.assertTrue(found.has(pb.SCOPE_INTERNAL) and not found.has(pb.SCOPE_EXTERNAL))


def refusal(details):
    """An error with these bytes of google.rpc.Status."""
    metadata = grpc.aio.Metadata(("other", "text"), ("grpc-status-details-bin", details))
    return grpc.aio.AioRpcError(grpc.StatusCode.PERMISSION_DENIED, grpc.aio.Metadata(), metadata, "not published")


def encoded(reason, domain=b"localnet.dev"):
    """What other implementations of gRPC send, as encoded by protoc."""
    url = b"type.googleapis.com/google.rpc.ErrorInfo"

    def of(number, content):
        assert len(content) < 128
        return bytes([number << 3 | 2, len(content)]) + content

    info = of(1, reason) + of(2, domain) + of(3, of(1, b"key") + of(2, b"app"))
    other = of(3, of(1, b"type.googleapis.com/google.rpc.Help"))
    detail = of(1, url) + of(2, info)
    return b"\x08\x07" + of(2, b"bye") + other + b"\x1a" + bytes([len(detail) & 0x7F | 0x80, len(detail) >> 7]) + detail


class ReasonTest(unittest.TestCase):
    def failed(self, error):
        """What a run with `once` raises if the first request fails."""

        async def test(fake):
            await fake.token(error=error)
            with self.assertRaises(BrainError) as raised:
                await fake.task
            self.raised = raised.exception

        play_v1(test, once=True)
        return self.raised

    def test_the_reason_of_an_error_is_known(self):
        good = refusal(encoded(b"NOT_PUBLISHED"))
        expected = (pb.ERROR_REASON_NOT_PUBLISHED, {"key": "app"})
        self.assertEqual(reason(good), expected)
        self.assertEqual(reason(self.failed(good)), expected)
        others = [encoded(b"NEW"), encoded(b"NOT_PUBLISHED", b"other.example"), b"", b"\x1a\x7f", b"\x80", b"\x0d1234", b"\x1a\x02\x0a\x7f"]
        for error in [self.failed(DOWN), REFUSED, *map(refusal, others)]:
            self.assertEqual(reason(error), (pb.ERROR_REASON_UNSPECIFIED, {}))

    def test_the_error_names_the_flag_that_the_brain_lacks(self):
        self.assertIn("--draft-v1", str(self.failed(failure(grpc.StatusCode.UNIMPLEMENTED, "unknown service"))))


class ReportTest(unittest.TestCase):
    def test_reports_contain_each_family(self):
        def seven(number):
            return pb.Revision(instance="0000000000000007", number=number)

        def report(received, *families):
            return pb.ReportStatusRequest(reader_name="test", received=seven(received), families=families)

        def status(family, applied=None, error=""):
            return pb.FamilyStatus(family=family, applied=applied, error=error)

        async def test(fake):
            v4, v6, known = pb.IP_FAMILY_IPV4, pb.IP_FAMILY_IPV6, pb.ReportStatusResponse()
            await fake.token(*full(1, 0))
            await fake.end(FamilyErrors({v6: OSError("no IPv6")}))
            first = report(1, status(v4, seven(1)), status(v6, error="no IPv6"))
            first.skipped.SetInParent()
            self.assertEqual(await fake.accept(None, known), first)
            await fake.end()
            self.assertEqual(await fake.accept(None, known), report(1, status(v4, seven(1)), status(v6, seven(1))))
            await fake.token(delta(2, "full", 0))
            await fake.end(OSError("a" + "é" * 600))
            error = "a" + "é" * 511
            self.assertEqual(await fake.accept(None, known), report(2, status(v4, seven(1), error), status(v6, seven(1), error)))
            await fake.end()
            await fake.accept(None, known)

        play_v1(test, name="test")
        errors = FamilyErrors({pb.IP_FAMILY_IPV6: OSError("no IPv6"), pb.IP_FAMILY_IPV4: OSError()})
        self.assertEqual(str(errors), "IPV4: OSError(); IPV6: no IPv6")

    def test_skipped_parts_are_sent_until_the_brain_knows_them(self):
        parts, none = pb.SkippedParts(count=1), pb.SkippedParts()
        current = parts

        async def test(fake):
            nonlocal current
            known, wanted = pb.ReportStatusResponse(), pb.ReportStatusResponse(complete_report_wanted=True)

            async def reported(response):
                report = await fake.accept(None, response)
                return report.skipped if report.HasField("skipped") else None

            async def following(number):
                await fake.token(delta(number, "full" if number == 2 else "delta", 0))
                await fake.end()

            await fake.token(*full(1, 0))
            await fake.end()
            self.assertEqual((await fake.accept(DOWN)).skipped, parts)
            self.assertEqual(await reported(known), parts, "the brain has not accepted the first report")
            await following(2)
            self.assertIsNone(await reported(known))
            current = none
            await following(3)
            self.assertEqual(await reported(wanted), none)
            await following(4)
            self.assertIsNone(await reported(wanted))
            self.assertEqual(await reported(known), none, "a restarted brain gets all of the report")
            await following(5)
            await fake.accept(failure(grpc.StatusCode.UNIMPLEMENTED))
            await asyncio.sleep(3600)
            self.assertTrue(fake.reports.empty(), "a brain that does not implement reports needs none")

        play_v1(test, name="test", report=lambda report: report.skipped.CopyFrom(current))


class Calls(Listener):
    """Records the calls of a Listener."""

    def __init__(self):
        self.log, self.fail = [], False

    def set_node(self, node):
        self.log.append(f"node {node.name}")

    def set_service(self, key, service):
        self.log.append(f"set {key} {service.type}")

    def delete_service(self, key):
        self.log.append(f"delete {key}")

    def set_endpoint(self, service, endpoint):
        self.log.append(f"set {service} {endpoint.ip}:{endpoint.port} {endpoint.protocol} {endpoint.endpoint.local}")

    def delete_endpoint(self, service, endpoint):
        self.log.append(f"delete {service} {endpoint.ip}:{endpoint.port}")

    def reset(self):
        self.log.append("reset")

    async def commit(self, revision):
        self.log.append("commit")
        if self.fail:
            raise REFUSED


class IncrementalTest(unittest.TestCase):
    def test_a_listener_receives_only_changes_in_their_order(self):
        typed = service("a", type=pb.SERVICE_TYPE_NODE_PORT)
        udp = service("c", ports=[pb.ServicePort(name="http", protocol=pb.PROTOCOL_UDP, number=80)])
        first, second = at("10.0.0.1", 1, port=8080), at("10.0.0.1", 1, port=8081, ordinal=1)
        # The first of two endpoints at one address goes, so the second one gets its ordinal.
        shifted = changed("c", at("10.0.0.1", 1, port=8081))
        shifted.removed_endpoints.add(address="10.0.0.1", ordinal=1)
        state, changes, calls = State(), Changes(everything=True), Calls()
        sync = incremental(calls)
        for name, is_full, updates, fail, expected in [
            (
                "full state",
                True,
                [service("b"), service("a", at("10.0.0.10", 1), at("10.0.0.2", 2))],
                False,
                ["node node-a", "set ns/a 1", "set ns/a 10.0.0.2:8080 1 False", "set ns/a 10.0.0.10:8080 1 False", "set ns/b 1", "commit"],
            ),
            (
                "endpoints",
                False,
                [changed("a", at("10.0.0.10", 1, local=True), at("fd00::1", 1), gone=["10.0.0.2"])],
                False,
                ["set ns/a 10.0.0.10:8080 1 True", "set ns/a fd00::1:8080 1 False", "delete ns/a 10.0.0.2:8080", "commit"],
            ),
            ("a commit that fails", False, [typed, changed("a", gone=["10.0.0.10"])], True, ["set ns/a 2", "delete ns/a 10.0.0.10:8080", "commit"]),
            ("the retry repeats nothing", False, [], False, ["commit"]),
            ("deleted", False, [removed("a")], False, ["delete ns/a fd00::1:8080", "delete ns/a", "commit"]),
            ("created again", False, [typed], False, ["set ns/a 2", "commit"]),
            ("deleted again", False, [removed("a")], False, ["delete ns/a", "commit"]),
            (
                "one address twice",
                False,
                [service("c", first, second)],
                False,
                ["set ns/c 1", "set ns/c 10.0.0.1:8080 1 False", "set ns/c 10.0.0.1:8081 1 False", "commit"],
            ),
            ("another ordinal", False, [shifted], False, ["set ns/c 10.0.0.1:8081 1 False", "delete ns/c 10.0.0.1:8080", "commit"]),
            ("another protocol", False, [udp], False, ["set ns/c 1", "set ns/c 10.0.0.1:8081 2 False", "commit"]),
            ("a full state without changes", True, [service("b"), udp, changed("c", at("10.0.0.1", 1, port=8081))], False, ["commit"]),
        ]:
            copies = [pb.ServiceUpdate.FromString(update.SerializeToString()) for update in updates]
            answer = Answer(Revision(7, 1), is_full, pb.NodeState(name="node-a"), [_decode(update) for update in copies])
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
        self.assertEqual(calls.log, ["reset", "node node-a", "set ns/b 1", "set ns/c 1", "set ns/c 10.0.0.1:8081 2 False", "commit"])

    def test_port_endpoints_contain_each_port_in_order(self):
        two = at("10.0.0.2", 1)
        # In the view for DNS, an endpoint may have ports that its Service lacks.
        two.ports.add(name="dns", number=53, protocol=pb.PROTOCOL_UDP)
        two.ports.add(name="other", number=1)
        endpoints = {EndpointKey(one.address): one for one in (at("fd00::1", 1), at("10.0.0.10", 1), two)}
        found = v1.port_endpoints(ServiceEndpoints(service("a").service, endpoints))
        expected = [("http", 1, "10.0.0.2"), ("dns", 2, "10.0.0.2"), ("http", 1, "10.0.0.10"), ("http", 1, "fd00::1")]
        self.assertEqual([(one.port_name, one.protocol, one.ip) for one in found], expected)
        self.assertEqual(v1.port_endpoints(None), [])
