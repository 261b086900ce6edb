"""The load generator counts exactly the acknowledged messages."""

import asyncio
import json
import signal
import struct
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench.compiler import NoCompilerError, build_generator
from bench.generator import GeneratorError, Load, LoadResult, run_generator, run_load

RECORD_MAGIC = 0xDAA320A7


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build_generator(tmp_path_factory.mktemp("build"))
    except NoCompilerError as error:
        pytest.skip(str(error))


@dataclass
class FakeBroker:
    """Broker that answers sends and pulls from memory. `send_code` chooses the answer to the n-th send request."""

    queues: dict[int, int] = field(default_factory=dict)
    send_code: Callable[[int], int] = lambda _: 0
    corrupt_pull: bool = False
    shuffle_opaque: bool = False
    requests: list[dict] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size, header_size = struct.unpack(">II", await reader.readexactly(8))
                header = json.loads(await reader.readexactly(header_size))
                body = await reader.readexactly(size - 4 - header_size)
                self.requests.append(header)
                answer, answer_body = self.pull(header) if header["code"] == 11 else self.send(header, body)
                opaque = header["opaque"] + (1 if self.shuffle_opaque else 0)
                writer.write(frame({"flag": 1, "opaque": opaque, **answer}, answer_body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def send(self, header: dict, body: bytes) -> tuple[dict, bytes]:
        code = self.send_code(len(self.requests))
        fields = header["extFields"]
        messages = list(split_batch(body)) if header["code"] == 320 else [(body, fields["i"])]
        if code == 0:
            self.keys += [properties_of(properties)["UNIQ_KEY"] for _, properties in messages]
            queue = int(fields["e"])
            self.queues[queue] = self.queues.get(queue, 0) + len(messages)
        return {"code": code, "extFields": {"queueOffset": "0"}}, b""

    def pull(self, header: dict) -> tuple[dict, bytes]:
        fields = header["extFields"]
        offset, end = int(fields["queueOffset"]), self.queues.get(int(fields["queueId"]), 0)
        upto = min(end, offset + int(fields["maxMsgNums"]))
        if offset >= end:
            return {"code": 19, "extFields": {"nextBeginOffset": str(offset)}}, b""
        shift = 1 if self.corrupt_pull else 0
        body = b"".join(record(number + shift) for number in range(offset, upto))
        return {"code": 0, "extFields": {"nextBeginOffset": str(upto)}}, body


def frame(header: dict, body: bytes) -> bytes:
    encoded = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(encoded) + len(body), len(encoded)) + encoded + body


def record(queue_offset: int, body: bytes = b"x" * 9) -> bytes:
    size = 91 + len(body)
    head = struct.pack(">IIIIIQ", size, RECORD_MAGIC, 0, 0, 0, queue_offset)
    return (head + bytes(84 - len(head)) + struct.pack(">I", len(body)) + body).ljust(size, b"\0")


def split_batch(body: bytes) -> Iterator[tuple[bytes, str]]:
    at = 0
    while at < len(body):
        size, magic, crc, flag, length = struct.unpack_from(">IIIII", body, at)
        assert (magic, crc, flag) == (0, 0, 0)
        (properties_length,) = struct.unpack_from(">H", body, at + 20 + length)
        assert size == 22 + length + properties_length
        yield body[at + 20 : at + 20 + length], body[at + 22 + length : at + size].decode()
        at += size


def properties_of(text: str) -> dict[str, str]:
    return dict(pair.split("\x01") for pair in text.rstrip("\x02").split("\x02"))


@pytest.fixture
async def broker() -> Iterator[FakeBroker]:
    fake = FakeBroker()
    async with await asyncio.start_server(fake.serve, "127.0.0.1", 0) as server:
        fake.port = server.sockets[0].getsockname()[1]
        yield fake


def load_on(broker: FakeBroker, program: Path, load: Load, messages: int | None = None) -> Awaitable[LoadResult]:
    """Run until `messages` are acknowledged (the time limit is only a safeguard), or for a tenth of a second."""
    seconds = 0.1 if messages is None else 30
    return asyncio.to_thread(
        run_load, program, load, port=broker.port, topic="orders", seconds=seconds, messages=messages
    )


async def test_every_acknowledged_message_is_counted_once(broker: FakeBroker, program: Path) -> None:
    result = await load_on(broker, program, Load(connections=3, window=8, body_bytes=100), messages=1000)
    assert result.acknowledged_total == sum(broker.queues.values()) == 1000
    assert not result.errors
    assert 0 < result.p50_us <= result.p99_us <= result.p999_us <= result.max_us


async def test_send_frames_are_those_of_a_java_client(broker: FakeBroker, program: Path) -> None:
    await load_on(broker, program, Load(window=1, body_bytes=10, queues=1), messages=2)
    first = broker.requests[0]
    assert first["code"] == 310
    assert (first["language"], first["flag"], first["serializeTypeCurrentRPC"]) == ("JAVA", 0, "JSON")
    fields = first["extFields"]
    assert list(fields) == list("abcdefghijkm")
    assert all(isinstance(value, str) for value in fields.values())
    assert (fields["b"], fields["c"], fields["e"], fields["m"]) == ("orders", "TBW102", "0", "false")


async def test_each_message_has_its_own_unique_key_and_connections_spread_over_the_queues(
    broker: FakeBroker, program: Path
) -> None:
    load = Load(connections=6, window=4, batch=32, body_bytes=64, queues=3)
    await load_on(broker, program, load, messages=1920)
    assert broker.requests[0]["code"] == 320
    assert len(broker.keys) == len(set(broker.keys)) == 1920
    assert {len(key) for key in broker.keys} == {32}
    assert set(broker.queues) == {0, 1, 2}


async def test_two_topics_take_turns_and_each_message_counts_for_its_own(broker: FakeBroker, program: Path) -> None:
    result = await asyncio.to_thread(
        run_load, program, Load(), port=broker.port, topic="orders", other_topic="others", seconds=1.6
    )
    assert len(result.messages_of_turn) == 16
    assert result.messages - sum(result.messages_of_turn) <= 2 * Load().window, "those in flight at the ends"
    sent = Counter(request["extFields"]["b"] for request in broker.requests)
    assert set(sent) == {"orders", "others"}
    of_others = sum(result.messages_of_turn[turn] for turn in range(16) if (turn + 1) // 2 % 2)
    assert abs(sent["others"] - of_others) <= 2 * Load().window


async def test_refused_sends_are_errors_by_code_and_made_up_for(broker: FakeBroker, program: Path) -> None:
    broker.send_code = lambda count: {3: 14, 5: 2}.get(count, 0)
    result = await load_on(broker, program, Load(window=4, body_bytes=10), messages=100)
    assert result.errors == {"2": 1, "14": 1}
    assert result.acknowledged_total == sum(broker.queues.values()) == 100


async def test_pulls_walk_each_queue_in_order_and_start_over_at_its_end(broker: FakeBroker, program: Path) -> None:
    broker.queues = {0: 70, 1: 10, 2: 0, 3: 33}
    result = await load_on(broker, program, Load(mode="pull", queues=4), messages=400)
    assert not result.errors
    assert result.messages > 0
    begins = [int(request["extFields"]["queueOffset"]) for request in broker.requests if is_pull_of(request, 0)]
    assert begins[:5] == [0, 32, 64, 70, 0]


async def test_pulled_records_out_of_order_and_answers_to_nothing_are_errors(broker: FakeBroker, program: Path) -> None:
    broker.queues = {0: 10}
    broker.corrupt_pull = True
    with pytest.raises(GeneratorError, match='"record"'):
        await load_on(broker, program, Load(mode="pull", queues=1))
    broker.shuffle_opaque = True
    with pytest.raises(GeneratorError, match='"opaque":1'):
        await load_on(broker, program, Load(window=1, body_bytes=10))


async def test_a_closed_connection_is_reported_as_such(program: Path) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(GeneratorError, match="exit status 1"):
            await asyncio.to_thread(run_load, program, Load(), port=port, topic="orders", seconds=5)


def is_pull_of(request: dict, queue: int) -> bool:
    return request["code"] == 11 and request["extFields"]["queueId"] == str(queue)


def test_an_interrupt_taken_by_another_thread_ends_a_load(tmp_path: Path) -> None:
    """A signal that comes just before a read, or that another thread takes, does not interrupt the read."""
    has_begun = threading.Event()
    end = tmp_path / "it ran to its end"

    def interrupt() -> None:
        assert has_begun.wait(60)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    # The parent of the tests may ignore SIGINT, as shells do for background processes.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    other = threading.Thread(target=interrupt)
    other.start()
    begin = 'print(\'{"event":"start"}\', flush=True)'
    program = f"import pathlib, time; {begin}; time.sleep(30); pathlib.Path({str(end)!r}).touch()"
    try:
        with pytest.raises(KeyboardInterrupt):
            run_generator([sys.executable, "-c", program], on_start=has_begun.set)
    finally:
        signal.signal(signal.SIGINT, before)
    other.join()
    assert not end.exists()
