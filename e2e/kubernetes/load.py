"""Load on Services: load.py RESULT RATE TARGET…. The servers are agnhost's netexec. A target is one of these:

  tcp:ADDRESS:PORT     RATE new connections a second, with one request on each
  udp:ADDRESS:PORT     RATE datagrams a second, each from another port
  held:ADDRESS:PORT    four connections that stay open, with ten requests a second on each
  kept:ADDRESS:PORT    the same as an HTTP client does it: if the server has closed a connection that was used before, a GET whose answer has
                       not begun is repeated on a new connection (RFC 9112, 9.3.1)

It prints each failure at once. After SIGTERM, it writes the counts to RESULT as JSON. Nothing else is retried: a request without a correct
answer within 3 s has failed.
"""
import asyncio
import errno
import itertools
import json
import signal
import sys
import time

REQUEST = b"GET /hostname HTTP/1.1\r\nHost: load\r\n\r\n"
LIMIT = 3.0
HELD = 4
# Connection tracking remembers a datagram, and a connection that is closed, for two minutes at most. Until then, the kernel may send a new
# connection from the same port to the same endpoint, even if no rule leads there any more. So the ports take turns.
PORTS = itertools.cycle(range(20000, 60000))


class Count:
    def __init__(self, name):
        self.name = name
        self.answered, self.failed, self.slowest, self.failures, self.repeated = 0, 0, 0.0, [], 0

    async def of(self, request):
        """Counts a request, and returns whether it was answered."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(LIMIT):
                await request
        except (OSError, TimeoutError, EOFError) as error:
            self.failed += 1
            failure = f"{time.strftime('%H:%M:%S')} {type(error).__name__} {error}"
            print(self.name, failure, file=sys.stderr, flush=True)
            if len(self.failures) < 20:
                self.failures.append(failure)
            return False
        self.answered += 1
        self.slowest = max(self.slowest, time.monotonic() - began)
        return True


async def request(reader, writer):
    writer.write(REQUEST)
    await writer.drain()
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().splitlines()
    if head[0] != "http/1.1 200 ok":
        raise OSError(head[0])
    length = next(int(line.split(":")[1]) for line in head if line.startswith("content-length:"))
    await reader.readexactly(length)


def any_address(address):
    return "::" if ":" in address else "0.0.0.0"


async def connect(address, port):
    while True:
        try:
            return await asyncio.open_connection(address, port, local_addr=(any_address(address), next(PORTS)))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise


async def tcp(address, port):
    reader, writer = await connect(address, port)
    try:
        await request(reader, writer)
    finally:
        writer.close()


async def held(address, port, count, stop):
    while not stop.is_set():
        streams = []

        async def first():
            streams.extend(await connect(address, port))
            await request(*streams)

        answered = await count.of(first())
        while answered and not stop.is_set():
            await asyncio.sleep(0.1)
            answered = await count.of(request(*streams))
        if streams:
            streams[1].close()
        await asyncio.sleep(0.1)


async def kept(address, port, count, stop):
    streams = []

    async def reconnect():
        if streams:
            streams[1].close()
        streams[:] = await connect(address, port)

    async def repeatable():
        if streams:
            try:
                return await request(*streams)
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                if getattr(error, "partial", b""):
                    raise
                count.repeated += 1
        await reconnect()
        await request(*streams)

    while not stop.is_set():
        if not await count.of(repeatable()) and streams:
            streams[1].close()
            streams.clear()
        await asyncio.sleep(0.1)
    if streams:
        streams[1].close()


class Datagram(asyncio.DatagramProtocol):
    def __init__(self):
        self.answer = asyncio.get_running_loop().create_future()

    def datagram_received(self, data, _):
        if not self.answer.done():
            self.answer.set_result(data)

    def error_received(self, error):
        if not self.answer.done():
            self.answer.set_exception(error)


async def udp(address, port):
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(
        Datagram, local_addr=(any_address(address), next(PORTS)), remote_addr=(address, port)
    )
    try:
        transport.sendto(b"hostname")
        await protocol.answer
    finally:
        transport.close()


async def main(result, rate, names):
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    counts, tasks, repeated = {}, set(), []
    for name in names:
        kind, target = name.split(":", 1)
        address, port = target.rsplit(":", 1)
        counts[name] = count = Count(name)
        if kind in ("held", "kept"):
            hold = {"held": held, "kept": kept}[kind]
            tasks.update(asyncio.create_task(hold(address, port, count, stop)) for _ in range(HELD))
        else:
            repeated.append(({"tcp": tcp, "udp": udp}[kind], address, port, count))
    due = time.monotonic()
    while not stop.is_set():
        for send, address, port, count in repeated:
            task = asyncio.create_task(count.of(send(address, port)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        due += 1 / rate
        await asyncio.sleep(max(0, due - time.monotonic()))
    await asyncio.gather(*tasks)
    with open(result, "w") as file:
        json.dump({name: vars(count) for name, count in counts.items()}, file, indent=1)


asyncio.run(main(sys.argv[1], float(sys.argv[2]), sys.argv[3:]))
