import asyncio
import unittest

import grpc

from localnet_client import BrainError, FamilyErrors, Revision, port_endpoints
from localnet_client import localnetv1_pb2 as pb
from localnet_client.answer import Answer
from localnet_client.reports import _count

from .fake import DOWN, NODE, Synced, changed, continued, delta, failure, full, play, removed, service, token

REFUSED = OSError("refused")


def now():
    return asyncio.get_running_loop().time()


def wrong(change):
    """A Service b of which the test has changed an endpoint."""
    item = service("b", "10.0.0.1")
    change(item.Endpoints.Endpoints[0])
    return item


def set_address(endpoint):
    endpoint.IPs.V4[0] = "10.0.0.256"


def set_family(endpoint):
    endpoint.IPs.V4[0] = "fd00::1"


def add_address(endpoint):
    endpoint.IPs.V6.append("fd00::1")


def set_port(endpoint):
    endpoint.PortOverrides[0].Port = 65536


class LoopTest(unittest.TestCase):
    def requested(self, request, instance, rev, delta):
        self.assertEqual(request, pb.NextFilter(InstanceID=instance, Rev=rev, Delta=delta))

    def within(self, full, delay):
        """Fails unless a delay of the backoff is between half and all of this duration."""
        self.assertTrue(full / 2 - 1e-6 <= delay <= full + 1e-6, f"{delay} s instead of {full / 2} to {full} s")

    def test_deltas_become_states_with_their_changes(self):
        async def test(fake):
            first = full(1, service("a"), service("b", "10.0.0.1"), continued("b", "10.0.0.2"))
            self.requested(await fake.answer(*first), 0, 0, False)
            everything = changed("a", "b", everything=True, node=True)
            self.assertEqual(await fake.end(), Synced(Revision(7, 1), ["a", "b"], everything))
            second = delta(2, service("c"), removed("a"), service("b", "10.0.0.1", "10.0.0.2"))
            self.requested(await fake.answer(*second), 7, 1, True)
            self.assertEqual(await fake.end(), Synced(Revision(7, 2), ["b", "c"], changed("a", "c")), "b is unchanged")
            self.requested(await fake.answer(*delta(3, NODE)), 7, 2, True)
            self.assertEqual(await fake.end(), Synced(Revision(7, 3), ["b", "c"], changed()), "the node is unchanged")

        play(test)

    def test_a_restarted_brain_changes_only_what_differs(self):
        async def test(fake):
            await fake.answer(*full(5, service("a"), service("b"), service("c")))
            await fake.end()
            self.requested(await fake.answer(token(8, 1), NODE, service("b"), service("c", "10.0.0.1")), 7, 5, True)
            self.assertEqual(await fake.end(), Synced(Revision(8, 1), ["b", "c"], changed("a", "c")))

        play(test)

    def test_a_torn_or_invalid_answer_is_never_applied(self):
        for name, items, error in [
            ("unavailable", [], DOWN),
            ("cut after the token", delta(2), DOWN),
            ("cut after a Service", delta(2, service("b")), DOWN),
            ("cut full state", full(2, service("b")), DOWN),
            ("empty", [], None),
            ("undecodable", [*delta(2), None], None),
            ("no token", [NODE, service("b")], None),
            ("two tokens", delta(2, token(7, 3, True)), None),
            ("full state without a node", [token(7, 2), service("b")], None),
            ("full state that removes", full(2, removed("a")), None),
            ("sent and removed", delta(2, service("b"), removed("b")), None),
            ("sent twice", delta(2, service("b"), service("b")), None),
            ("continues nothing", delta(2, continued("b")), None),
            ("continues not the previous item", delta(2, service("b"), service("c"), continued("b")), None),
            ("a Service without a name", delta(2, service("")), None),
            ("an endpoint with a wrong address", delta(2, wrong(set_address)), None),
            ("an endpoint with an address of the other family", delta(2, wrong(set_family)), None),
            ("an endpoint with two addresses", delta(2, wrong(add_address)), None),
            ("an endpoint with a wrong port", delta(2, wrong(set_port)), None),
        ]:

            async def test(fake):
                await fake.answer(*full(1, service("a")))
                await fake.end()
                self.requested(await fake.answer(*items, error=error), 7, 1, True)
                self.requested(await fake.answer(*delta(3, service("d"))), 7, 1, True)
                self.assertEqual(await fake.end(), Synced(Revision(7, 3), ["a", "d"], changed("d")))

            with self.subTest(name):
                play(test)

    def test_changes_are_no_first_answer(self):
        async def test(fake):
            await fake.answer(*delta(1, NODE, service("a")))
            self.requested(await fake.answer(*full(1)), 0, 0, False)
            self.assertEqual(await fake.end(), Synced(Revision(7, 1), [], changed(everything=True, node=True)))

        play(test)

    def test_ports_with_unknown_protocols_are_skipped(self):
        item = service("a", "10.0.0.1")
        item.Endpoints.Service.Ports.add(Name="new", Protocol=99, Port=81)
        item.Endpoints.Endpoints[0].PortOverrides.add(Name="new", Port=8081)
        answer = Answer()
        answer.add(token(7, 1))
        answer.add(item)
        [of] = answer.services.values()
        self.assertEqual([port.Name for port in of.Service.Ports], ["http"])
        self.assertEqual([(one.ip, one.port) for one in port_endpoints(of)], [("10.0.0.1", 8080)])

    def test_requests_are_retried_with_backoff(self):
        async def fails(fake):
            await fake.answer(error=DOWN)
            for seconds in (0.1, 0.2, 0.4, 0.8, 1, 1):
                began = now()
                await fake.answer(error=DOWN)
                self.within(seconds, now() - began)

        async def test(fake):
            await fails(fake)
            await fake.answer(*full(1))
            await fake.end()
            await fails(fake)  # A success starts the delays again.

        play(test, max_backoff=1)

    def test_a_failed_sync_is_retried_and_a_newer_state_wins(self):
        async def test(fake):
            await fake.answer(*full(1, service("a")))
            await fake.end()
            await fake.answer(*delta(2, service("b")))
            await fake.end(REFUSED)
            began = now()
            again = await fake.end(REFUSED)  # The same state, although the brain sends no other.
            self.within(0.1, now() - began)
            self.assertEqual(again, Synced(Revision(7, 2), ["a", "b"], changed("b")))
            self.requested(await fake.answer(*delta(3, service("c"))), 7, 2, True)
            self.assertEqual(await fake.end(), Synced(Revision(7, 3), ["a", "b", "c"], changed("b", "c")))
            await fake.answer(*delta(4))
            self.assertEqual((await fake.end(REFUSED)).changes, changed())
            began = now()
            await fake.end()
            self.within(0.1, now() - began)  # A success starts the delays again.

        play(test)

    def test_a_resync_needs_no_brain(self):
        resync = asyncio.Event()

        async def test(fake):
            resync.set()  # Before the first state, there is nothing to apply.
            await fake.answer(*full(1, service("a")))
            await fake.end()
            await fake.requests.get()  # The brain does not answer.
            resync.set()
            self.assertEqual(await fake.end(), Synced(Revision(7, 1), ["a"], changed(everything=True, resync=True)))
            self.assertFalse(resync.is_set())
            fake.replies.put_nowait((delta(2, service("b")), None))
            self.assertEqual((await fake.end()).services, ["a", "b"], "the stream was not interrupted")

        play(test, resync=resync)

    def test_resume_waits_for_another_revision(self):
        async def test(fake):
            self.requested(await fake.answer(error=DOWN), 7, 3, False)
            self.requested(await fake.answer(*full(4)), 7, 3, False)
            self.assertEqual((await fake.end()).revision, Revision(7, 4))

        play(test, resume=Revision(7, 3))

    def test_the_next_state_is_requested_after_the_interval(self):
        async def test(fake):
            await fake.answer(*full(1))
            await fake.end()
            began = now()
            await fake.answer(*delta(2))
            self.assertAlmostEqual(now() - began, 60)

        play(test, min_interval=60)

    def test_once_ends_after_the_first_success_or_failure(self):
        async def applied(fake):
            await fake.answer(*full(1))
            await fake.end()
            await fake.task

        async def sync_failed(fake):
            await fake.answer(*full(1))
            await fake.end(REFUSED)
            with self.assertRaises(OSError):
                await fake.task

        async def unavailable(fake):
            await fake.answer(error=DOWN)
            with self.assertRaisesRegex(BrainError, "the brain is unavailable: UNAVAILABLE: connection refused"):
                await fake.task

        for test in (applied, sync_failed, unavailable):
            with self.subTest(test.__name__):
                play(test, once=True, name="test", report=lambda _: self.fail("a reader with once must not report"))

    def test_a_cancellation_lets_the_sync_end(self):
        async def test(fake):
            await fake.answer(*full(1))
            await fake.syncs.get()
            fake.task.cancel()
            await asyncio.sleep(60)
            self.assertFalse(fake.task.done())
            fake.results.put_nowait(REFUSED)
            with self.assertRaises(asyncio.CancelledError):
                await fake.task

        play(test)

    def test_a_cancellation_ends_requests_and_reports(self):
        async def test(fake):
            await fake.answer(*full(1))
            await fake.end()
            await fake.requests.get()
            await fake.reports.get()
            fake.task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await fake.task

        play(test, name="test")

    def test_reports_contain_each_family(self):
        def mode(report):
            report.ProxyMode = "nftables"

        def families(report):
            return [(family.AppliedRev, family.Error) for family in report.Families]

        async def test(fake):
            await fake.answer(*full(1))
            await fake.end(FamilyErrors({pb.IPv6: OSError("no IPv6")}))
            report = await fake.accept()
            self.assertEqual(families(report), [(1, ""), (0, "no IPv6")])
            self.assertEqual((report.ProxyMode, report.Families[1].Failures), ("nftables", 1))
            await fake.end()
            report = await fake.accept()
            self.assertEqual(families(report), [(1, ""), (1, "")])
            self.assertEqual(sum(report.Families[0].Full.Counts), 2)
            await fake.answer(token(8, 1), NODE)
            await fake.end(AssertionError())
            report = await fake.accept()
            # Nothing of the new instance is applied. An error without a text is no success.
            self.assertEqual(families(report), [(0, "AssertionError()")] * 2)
            self.assertEqual((report.InstanceID, report.Families[0].PartialFailures), (8, 1))

        play(test, name="test", report=mode)

    def test_the_newest_report_is_sent_until_the_brain_accepts_it(self):
        async def test(fake):
            await fake.answer(*full(1))
            await fake.end()
            await fake.accept(DOWN)
            began = now()
            await fake.accept(failure(grpc.StatusCode.INVALID_ARGUMENT, "unknown family"))
            self.within(0.1, now() - began)
            await fake.answer(*delta(2))
            await fake.end()
            newest = await fake.accept(failure(grpc.StatusCode.UNIMPLEMENTED, "unknown service"))
            self.assertEqual(newest.Rev, 2)
            with self.assertRaises(TimeoutError):  # A brain that does not implement reports needs none.
                async with asyncio.timeout(3600):
                    await fake.reports.get()

        play(test, name="test")

    def test_attempts_are_counted_by_duration(self):
        attempts = pb.Attempts()
        for took in (0, 0.001, 0.001001, 0.004, 16.384, 3600):
            _count(attempts, took)
        self.assertEqual(list(attempts.Counts), [2, 1, 1, *[0] * 11, 1, 1])
