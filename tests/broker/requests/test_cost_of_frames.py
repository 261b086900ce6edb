"""No frame of any code, legal or not, occupies a broker's event loop for a quarter of the shortest election time."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from struct import pack
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from served_broker import ServedBroker, make_served_broker, send_ext

from dledger_broker.config import BrokerConfig
from dledger_broker.features.accounts.sealing import read_key_file
from dledger_broker.frontend.connection import ClientConnection
from dledger_broker.frontend.listener import Listener
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.testing import BrokerInMemory, environment
from dledger_broker.testing.node import NODE_ID
from dledger_remoting.accounts import ROOT
from dledger_remoting.batch import BatchMessage, encode_batch
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand, encode_command
from dledger_remoting.signatures import Credentials, signed
from tests.access_keys import KEY_FILE
from tests.slowness import slowness

LIMIT_S: Final = BrokerConfig.election_min_ms / 1000 / 4
BODY_BYTES: Final = (16 << 20) - (300 << 10)
READ_BYTES: Final = 256 << 10
"""Maximum size of what asyncio reads of a connection in a turn, in bytes."""
MAX_TURNS: Final = 6
"""Number of turns behind a read before its client leaves."""
PLACE: Final = 12_345
"""Code in frames that are encoded once for all codes."""
FIELDS: Final = send_ext("T1") | {
    "AccessKey": ROOT,
    "Signature": "a guess",
    "SecurityToken": "a token",
    "topic": "T1",
    "consumerGroup": "CG",
    "producerGroup": "PG",
    "group": "CG",
    "clientID": "c1",
    "queueId": "0",
    "queueOffset": "0",
    "offset": "0",
    "maxMsgNums": "32",
    "sysFlag": "0",
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subVersion": "0",
    "timestamp": "0",
    "key": "k",
    "maxNum": "32",
    "beginTimestamp": "0",
    "endTimestamp": "9999999999999",
    "username": "app",
    "subject": "User:app",
}


EXT: Final[dict[str, dict[str, str]]] = {
    "a million fields": FIELDS | {str(number): "" for number in range(1_000_000)},
    "many fields": FIELDS | {f"x{number}": "y" * 1_000 for number in range(200)},
    "tags": FIELDS | {"subscription": "a||" * 80_000, "expressionType": "TAG"},
    "SQL": FIELDS | {"subscription": "(a=1 OR " * 30_000, "expressionType": "SQL92"},
    "properties": FIELDS | {"i": "KEYS\x01" + "k " * 120_000, "properties": "a\x01b\x02" * 30_000},
}
BODIES: Final[dict[str, bytes]] = {
    "empty objects": (b"[" + b"{}," * (BODY_BYTES // 3))[: BODY_BYTES - 1] + b"]",
    "names": b'{"a":[' + b'"",' * (BODY_BYTES // 3 - 9) + b'""]}',
    "depth": b"[" * BODY_BYTES,
    "fields": b"a=1\n" * (BODY_BYTES // 4),
}


def _heartbeat(subscriptions: int, **more: object) -> bytes:
    entries = [{"topic": f"T{number}", **more} for number in range(subscriptions)]
    consumer = {"groupName": "CG", "subscriptionDataSet": entries}
    return json.dumps({"clientID": "c1", "consumerDataSet": [consumer]}).encode()


def _batch(count: int, properties: str) -> bytes:
    return encode_batch(BatchMessage(n, b"", properties.replace("#", str(n)).encode()) for n in range(count))


LOCKS: Final = [{"topic": "T1", "brokerName": "broker-a", "queueId": number} for number in range(8_000)]
ACKS: Final = [
    {"c": "CG", "t": "T1", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1, "b": "/" * 64} for _ in range(250)
]
TOPICS: Final = [{"topicName": f"N{number}"} for number in range(1_024)]
DEAR: Final[list[tuple[int, bytes]]] = [
    (RequestCode.HEART_BEAT, _heartbeat(8_000)),
    (RequestCode.HEART_BEAT, _heartbeat(4, subString="a||" * 10_000)),
    (RequestCode.HEART_BEAT, _heartbeat(4, subString="a||" * 80_000)),
    (RequestCode.LOCK_BATCH_MQ, json.dumps({"consumerGroup": "CG", "clientId": "c1", "mqSet": LOCKS}).encode()),
    (RequestCode.UNLOCK_BATCH_MQ, json.dumps({"consumerGroup": "CG", "clientId": "c1", "mqSet": LOCKS}).encode()),
    (RequestCode.BATCH_ACK_MESSAGE, json.dumps({"brokerName": "broker-a", "acks": ACKS}).encode()),
    (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, json.dumps({"topicConfigList": TOPICS}).encode()),
    (RequestCode.SEND_BATCH_MESSAGE, pack(">iiiiiH", 22, 0, 0, 0, 0, 0) * 180_000),
    (RequestCode.SEND_BATCH_MESSAGE, pack(">iiiiiH", 22, 0, 0, 0, 0, 0) * 46_000),
    (RequestCode.SEND_BATCH_MESSAGE, _batch(40_000, "TAGS\x01#\x02")),
    (RequestCode.SEND_BATCH_MESSAGE, _batch(90_000, "A\x01#\x02")),
    (RequestCode.SEND_BATCH_MESSAGE, _batch(120, "KEYS\x01" + "k " * 16_000)),
]


@pytest.fixture(autouse=True)
def _collected_when_idle() -> Iterator[None]:
    """Turn garbage collection off, as in a node, whose thresholds leave large collections to idle moments."""
    gc.disable()
    yield
    gc.enable()


class Owner(Listener):
    """Listener without a socket or a loop. Everything that is ready at the same time is one turn, which is timed."""

    def __init__(self, broker: ServedBroker) -> None:
        service, ready = broker.service, broker.memory.env
        super().__init__(
            *(NODE_ID, LiveConfig(broker.config), BrokerCounters(), set()),
            *(service.requests.on_reads, service.channel_lost),
            flow=service.requests.flow,
        )
        self.loop = cast(
            Any, SimpleNamespace(time=time.thread_time, call_soon=ready.call_soon, call_later=ready.call_later)
        )
        self._ready = ready._ready
        self.longest_s = 0.0

    def turn(self, *events: Callable[[], None]) -> None:
        """Handle what was ready before, then the events. The work of a worker takes no time of the loop."""
        callbacks = [*self._ready, *events]
        self._ready.clear()
        spent_s = 0.0
        for callback in callbacks:
            began = time.thread_time()
            callback()
            if not (isinstance(callback, partial) and callback.func is environment._run):
                spent_s += time.thread_time() - began
        self.longest_s = max(self.longest_s, spent_s)

    def cost_of(self, data: bytes, connections: int = 1) -> float:
        """Return the seconds of a core that the dearest turn of a read takes.

        The consequences of the read and the end of its connection count as well. Each of several connections brings the
        read in the same turn.
        """
        self.longest_s = 0.0
        opened = [self._connect() for _ in range(connections)]
        self.turn(*(partial(one.data_received, data) for one in opened))
        for _ in range(MAX_TURNS):
            self.turn()
        self.turn(*(partial(one.connection_lost, None) for one in opened))
        while self._ready:
            self.turn()
        return self.longest_s

    def _connect(self) -> ClientConnection:
        transport = SimpleNamespace(
            get_extra_info=lambda *_: None,
            set_write_buffer_limits=lambda **_: None,
            is_closing=lambda: False,
            pause_reading=lambda: None,
            resume_reading=lambda: None,
            write=lambda _: None,
            writelines=lambda _: None,
            get_write_buffer_size=lambda: 0,
            close=lambda: None,
            abort=lambda: None,
        )
        connection = ClientConnection(self)
        connection.connection_made(cast(asyncio.Transport, transport))
        return connection


def least_cost(owner: Owner, frame: bytes, connections: int = 1) -> float:
    """Return the seconds of the dearest turn, on a machine of usual speed. Beyond the limit, it is tried again.

    The least of up to five results counts, because other processes can only add to it.
    """
    costs: list[float] = []
    while len(costs) < 5:
        cost = owner.cost_of(frame, connections)
        costs.append(cost if cost <= LIMIT_S else cost / slowness())
        if costs[-1] <= LIMIT_S:
            break
    return min(costs)


def frames() -> Iterator[tuple[str, int, bytes]]:
    """Yield every code in every form. Frames are encoded once, and then get what differs between codes."""

    def encode(ext: dict[str, str], body: bytes, serialize_type: int) -> bytes:
        return encode_command(RemotingCommand(PLACE, 1, ext=ext, body=body, serialize_type=serialize_type))

    encoded = [
        (name, serialize_type, encode(ext, body, serialize_type))
        for serialize_type in (0, 1)
        for name, ext, body in (
            *((name, ext, b"") for name, ext in EXT.items()),
            *((name, FIELDS, body) for name, body in BODIES.items()),
        )
    ]
    for code in (*RequestCode, 30_000):
        for name, serialize_type, frame in encoded:
            if serialize_type == 0 or len(frame) < 1 << 20:
                yield name, code, _of_code(code, serialize_type, frame)


def _of_code(code: int, serialize_type: int, frame: bytes) -> bytes:
    if serialize_type:
        return frame[:8] + pack(">h", code if code < 1 << 15 else 0) + frame[10:]
    old, new = b'{"code":%d,' % PLACE, b'{"code":%d,' % code
    lengths = (int.from_bytes(frame[at : at + 4], "big") + len(new) - len(old) for at in (0, 4))
    return b"".join((*(pack(">I", length) for length in lengths), new, frame[8 + len(old) :]))


def owned_broker(config: BrokerConfig) -> tuple[ServedBroker, Owner]:
    """Return a broker whose clock is the processor time of this thread."""
    memory = BrokerInMemory()
    memory.create_topic("T1")
    memory.env.now = time.thread_time  # type: ignore[method-assign]
    broker = make_served_broker(config, memory)
    return broker, Owner(broker)


DEAR_IF_SMALL: Final = (26, 34)
"""Codes whose smallest requests cost most: a question and a change."""


@pytest.mark.parametrize("codes", [DEAR_IF_SMALL, pytest.param((*RequestCode, 30_000), marks=pytest.mark.long)])
async def test_no_turn_takes_long_for_reads_full_of_small_requests(codes: tuple[int, ...]) -> None:
    config = BrokerConfig(broker_group="broker-a", node_id=NODE_ID, data_dir=Path("unused"))
    _, owner = owned_broker(config)
    costs: list[tuple[float, int, int]] = []
    for code in codes:
        frame = encode_command(RemotingCommand(code if code < 1 << 15 else 0, 1, serialize_type=1))
        costs.append((least_cost(owner, frame * (READ_BYTES // len(frame)), 4), code, 0))
        if codes is not DEAR_IF_SMALL:
            for ext in (send_ext("T1"), FIELDS):
                frame = encode_command(RemotingCommand(code, 1, ext=dict(ext)))
                costs.append((least_cost(owner, frame * (READ_BYTES // len(frame))), code, len(ext)))
    assert [(round(cost, 3), *what) for cost, *what in costs if cost > LIMIT_S] == []


@pytest.mark.parametrize("guarded", [False, pytest.param(True, marks=pytest.mark.long)])
async def test_no_turn_takes_long_for_any_frame(guarded: bool) -> None:
    keys = KEY_FILE if guarded else None
    config = BrokerConfig(broker_group="broker-a", node_id=NODE_ID, data_dir=Path("unused"), access_key_file=keys)
    _, owner = owned_broker(config)
    root = Credentials(ROOT, read_key_file(KEY_FILE).root_secrets[0])
    costs: list[tuple[float, str, int]] = []
    for name, code, frame in frames():
        costs.append((least_cost(owner, frame), name, code))
    for code, body in DEAR:
        ext = signed(FIELDS | {"m": "true"}, body, root)
        costs.append((least_cost(owner, encode_command(RemotingCommand(code, 1, ext=ext, body=body))), "dear", code))
    assert [
        (round(cost, 3), name, code) for cost, name, code in costs if cost > LIMIT_S and cost > LIMIT_S * slowness()
    ] == []


@pytest.mark.parametrize(
    ("code", "body", "text"),
    [
        (41, b"[" + b"1," * 40_000 + b"1]", "queue locks body: up to 40001 values, the limit is 32768"),
        (46, bytes(70_000), "CHECK_CLIENT_CONFIG body: 70000 bytes, the limit is 65536"),
        (200151, b"{" * 16_385, "batch ack body: up to 16385 values, the limit is 16384"),
        (34, _heartbeat(5, subString="a||" * 10_000), "150000 characters, the limit is 131072"),
        (200151, json.dumps({"acks": [dict(ACKS[0], b="/" * 4_096)] * 5}).encode(), "the limit is 16384"),
        (18, json.dumps({"topicConfigList": [{"topicName": "N"}] * 1_025}).encode(), "the limit is 1024"),
        (225, json.dumps({"groupConfigList": [{"groupName": "N"}] * 1_025}).encode(), "the limit is 1024"),
    ],
)
def test_a_body_beyond_a_limit_is_refused_with_the_limit_in_the_text(
    broker: ServedBroker, code: int, body: bytes, text: str
) -> None:
    answer = broker.client().call(code, FIELDS, body)
    assert answer.code in (1, 29)
    assert text in (answer.remark or "")
