"""Real connections to a brain in this process."""

import argparse
import asyncio
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import grpc

from localnet_client import BrainError, Flags, Options, Revision, TLSFiles, dial, run
from localnet_client.localnetv1_pb2_grpc import EndpointsServicer, add_EndpointsServicer_to_server

from .fake import NODE, service, token

ROOT = pathlib.Path(__file__).parents[1]


class FakeBrain(EndpointsServicer):
    """It has one state. If `torn` is set, its answers stop before their end."""

    def __init__(self, instance, torn=None):
        self.instance, self.torn = instance, torn

    async def Next(self, request, context):
        if request.InstanceID != self.instance:
            for item in (token(self.instance, 1), NODE, service("web", "10.0.0.1")):
                yield item
            if not self.torn:
                return
            self.torn.set()
        await asyncio.Event().wait()


class Authority:
    """Issues certificates."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        config = "[req]\ndistinguished_name=dn\n[dn]\n[ca]\nbasicConstraints=critical,CA:TRUE\n[leaf]\nsubjectAltName=IP:127.0.0.1\n"
        (self.folder / "config").write_text(config)
        self._openssl("ca", "ca")
        self._openssl("leaf", "leaf", "-CA", "ca.cert", "-CAkey", "ca.key")
        self.ca, self.cert, self.key = (self.folder.joinpath(name).read_bytes() for name in ("ca.cert", "leaf.cert", "leaf.key"))

    def _openssl(self, kind, name, *arguments):
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.cert"]
        command = ["openssl", "req", "-x509", "-config", "config", "-extensions", kind, "-subj", f"/CN={name}", *key, *arguments]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)

    def credentials(self):
        return grpc.ssl_server_credentials([(self.key, self.cert)], self.ca, require_client_auth=True)


class BrainTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def authority(self, name):
        folder = self.folder / name
        folder.mkdir()
        return Authority(folder)

    async def serve(self, address, brain, credentials=None):
        """Runs a brain until the end of the test. Returns a server and its port."""
        server = grpc.aio.server()
        add_EndpointsServicer_to_server(brain, server)
        port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
        await server.start()
        self.addAsyncCleanup(server.stop, None)
        return server, port

    def follow(self, brain):
        """Runs a backend that puts the instance of each state into a queue."""
        synced = asyncio.Queue()

        async def sync(state, changes):
            synced.put_nowait(state.revision.instance_id)

        task = asyncio.create_task(run(brain, sync))

        async def stop():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await brain.close()

        self.addAsyncCleanup(stop)
        return synced

    async def test_a_unix_socket_is_followed_when_the_brain_restarts(self):
        address = f"unix://{self.folder}/brain%2541.sock"
        synced = self.follow(dial(f"unix://{self.folder}/brain%41.sock"))  # The brain does not run yet.
        server, _ = await self.serve(address, FakeBrain(1))
        self.assertEqual(await synced.get(), 1)
        await server.stop(None)
        torn = asyncio.Event()
        server, _ = await self.serve(address, FakeBrain(2, torn))
        await torn.wait()
        await server.stop(None)
        await self.serve(address, FakeBrain(3))
        self.assertEqual(await synced.get(), 3, "the torn state was discarded")

    async def test_renewed_tls_files_are_read_and_the_last_usable_ones_stay(self):
        old, renewed = self.authority("old"), self.authority("renewed")
        files = TLSFiles(*(str(self.folder / name) for name in ("ca", "cert", "key")))

        def renew(authority):
            for file, content in zip(files, (authority.ca, authority.cert, authority.key)):
                pathlib.Path(file).write_bytes(content)

        server, port = await self.serve("127.0.0.1:0", FakeBrain(1), old.credentials())
        address = f"127.0.0.1:{port}"
        with self.assertRaisesRegex(ValueError, files.ca):
            dial(f"tcp://{address}", files)
        renew(old)
        synced = self.follow(dial(f"tcp://{address}", files))
        self.assertEqual(await synced.get(), 1)

        await server.stop(None)
        pathlib.Path(files.cert).write_bytes(b"x" * 100)
        server, _ = await self.serve(address, FakeBrain(2), old.credentials())
        self.assertEqual(await synced.get(), 2, "with the last usable files")

        await server.stop(None)
        renew(renewed)
        await self.serve(address, FakeBrain(3), renewed.credentials())
        self.assertEqual(await synced.get(), 3, "with the renewed files")

    async def test_an_untrusted_brain_is_an_error(self):
        trusted, other = self.authority("trusted"), self.authority("other")
        _, port = await self.serve("127.0.0.1:0", FakeBrain(1), other.credentials())

        async def sync(state, changes):
            self.fail("the brain is not trusted")

        async with dial(f"tcp://127.0.0.1:{port}", TLSFiles(str(trusted.folder / "ca.cert"))) as brain:
            with self.assertRaisesRegex(BrainError, "(?i)certificate"):
                await run(brain, sync, Options(once=True))

    async def test_the_error_for_an_invalid_address_names_the_problem(self):
        for address, problem in {
            "/run/brain.sock": "unknown scheme",
            "unix://brain.sock": "the path must be absolute",
            "unix:///": "the path must be absolute",
            "tcp://127.0.0.1": "the port is missing",
            "tcp://127.0.0.1:http": "the port is not a number from 0 to 65535",
            "tcp://:80": "the host is missing",
            "tcp://::1:80": "an IPv6 address needs brackets",
            "http://localhost/brain:12090": "unknown scheme",
        }.items():
            with self.subTest(address), self.assertRaisesRegex(ValueError, problem):
                dial(address)
        for address in ("unix:///run/localnet/brain.sock", "tcp://127.0.0.1:12090", "tcp://[::1]:1", "tcp://brain.example:0"):
            await dial(address).close()

    async def test_the_example_of_the_readme_prints_the_endpoints(self):
        await self.serve(f"unix://{self.folder}/brain.sock", FakeBrain(1))
        example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
        address = "unix:///run/localnet/brain.sock"
        self.assertIn(address, example)
        code = example.replace(address, f"unix://{self.folder}/brain.sock")
        running = await asyncio.create_subprocess_exec(sys.executable, "-uc", code, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
        try:
            self.assertEqual(await running.stdout.readline(), b"ns/web http 10.0.0.1 8080\n")
        finally:
            running.kill()
            await running.communicate()


class FlagsTest(unittest.IsolatedAsyncioTestCase):
    def flags(self, text):
        parser = argparse.ArgumentParser(exit_on_error=False)
        Flags.register(parser)
        return Flags(parser.parse_args(text.split()))

    async def test_flags_set_the_options(self):
        flags = self.flags("--api tcp://127.0.0.1:1 --once --instance-id 18446744073709551615 --rev 3 --min-sync-interval 2000")
        self.assertEqual(flags.options("a"), Options(name="a", once=True, resume=Revision(2**64 - 1, 3), min_interval=2.0))
        await flags.dial().close()

    async def test_a_flag_that_needs_another_is_an_error(self):
        for text, problem in {
            "--rev 3": "--instance-id and --rev need each other",
            "--instance-id 3": "--instance-id and --rev need each other",
            "--tls-ca ca --tls-cert c": "--tls-cert and --tls-key need each other",
            "--tls-cert c --tls-key k": "--tls-cert needs --tls-ca",
            "--api tcp://a:1 --tls-ca /x/ca": "/x/ca",
            "--api unix:///a --tls-ca /x/ca": "does not use TLS",
            "--api unix://relative/brain.sock": "the path must be absolute",
        }.items():
            with self.subTest(text), self.assertRaisesRegex(ValueError, problem):
                self.flags(text).dial()

    def test_a_number_without_a_value_is_an_error(self):
        for value in ("-1", "x", str(2**64)):
            with self.subTest(value), self.assertRaisesRegex(argparse.ArgumentError, "invalid uint64 value"):
                self.flags(f"--rev={value}")
