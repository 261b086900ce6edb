"""No frame of any code, valid or not, holds a name server's event loop for a quarter of an election time-out."""

import asyncio
import gc
import json
import time
import zlib
from collections import deque
from functools import partial
from struct import pack
from types import SimpleNamespace

import pytest
from served_names import A, registration, serving

from dledger_base.access_keys import access_keys
from dledger_base.request_turns import RequestTurns
from dledger_broker.config import BrokerConfig
from dledger_namesrv.connection import Connection
from dledger_remoting.accounts import root_credentials
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand, encode_command
from dledger_remoting.headers import RegisterBrokerHeader, encode_ext
from dledger_remoting.registration import encode_compressed_registration, encode_registration
from dledger_remoting.signatures import signed
from dledger_remoting.topics import TopicConfig
from tests.access_keys import KEY_FILE
from tests.slowness import slowness

LIMIT_S = BrokerConfig.election_min_ms / 1000 / 4
BODY_BYTES = (16 << 20) - (300 << 10)
NODE = encode_ext(RegisterBrokerHeader("b", A, "C", A, 0))
FIELDS = NODE | {
    "AccessKey": "dledger.root", "Signature": "a guess", "SecurityToken": "a token", "topic": "T1", "topics": "T1",
    "version": "0", "timeoutMillis": "1000", "namespace": "n", "key": "k", "value": "v", "cluster": "C",
}  # fmt: skip
EXT = {
    "a million fields": FIELDS | {str(number): "" for number in range(1_000_000)},
    "many fields": FIELDS | {f"x{number}": "y" * 1_000 for number in range(200)},
    "many topics": FIELDS | {"topics": ",".join(map(str, range(40_000)))},
}
BODIES = {
    "empty objects": b"[" + b"{}," * (BODY_BYTES // 3 - 1) + b"{}]",
    "names": b'{"topicConfigSerializeWrapper":{},"filterServerList":[' + b'"",' * (BODY_BYTES // 3 - 99) + b'""]}',
    "depth": b"[" * BODY_BYTES,
    "dialect": b"{" + b"0:0," * (BODY_BYTES // 4 - 9) + b"0:0}",
    "a little dialect": b"{" + b"0:0," * 16_000 + b"0:0}",
    "lines": b"a=1\n" * (BODY_BYTES // 4),
}


def registrations():
    """Yield large valid registrations, and some that only seem valid."""
    whole = registration(TopicConfig(f"topic-{number}") for number in range(60_000))
    line = pack(">i", 12) + b"a 1 1 6 S {}"
    for count, said in ((4_000_000, 4_000_000), (4_000_000, 1_000), (65_536, 65_536)):
        stream = pack(">i", 2) + b"{}" + pack(">i", said) + line * count + pack(">i", 2) + b"[]" + pack(">i", 0)
        yield zlib.compress(stream, 9), True
    yield encode_registration(whole), False
    yield encode_compressed_registration(whole), True
    small = ",".join(f'"{number}":{{"topicName":"{number}"}}' for number in range(65_000))
    yield f'{{"topicConfigSerializeWrapper":{{"topicConfigTable":{{{small}}}}}}}'.encode(), False


def frames():
    for code in (*RequestCode, 30_000):
        for ext in EXT.values():
            if code in (103, 105, 20001) or len(ext) < 1_000:
                yield code, encode_command(RemotingCommand(code, 1, ext=ext))
        for body in BODIES.values():
            if code < 110 or code in (205, 318, 322, 901, 904, 20001, 20005):
                yield code, encode_command(RemotingCommand(code, 1, ext=FIELDS, body=body))
    base = {"stateVersion": 1, "timestamp": 1, "counter": 1}
    changes = {"base": base, "dataVersion": base, "deleted": ["a"] * 30_000}
    yield 20005, encode_command(RemotingCommand(20005, 1, ext=FIELDS, body=json.dumps(changes).encode()))


class Sink(asyncio.Transport):
    """Transport that drops all answers."""

    def __init__(self, answered):
        super().__init__()
        self._answered = answered

    def is_closing(self):
        return False

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def get_write_buffer_size(self):
        return 0

    def write(self, data):
        self._answered.set()

    def abort(self):
        self._answered.set()

    pause_reading = resume_reading = close = lambda self: None


READ_BYTES = 256 << 10
"""Maximum size of what asyncio reads of a connection in a turn."""
TURNS = 6
"""Number of turns behind a read before its clients leave."""
TOPICS = 20_000
DEAR_IF_SMALL = (105, 106, 206)
"""Codes whose smallest requests cost most: what each asks, and what is answered in slices."""
HEAD = {"topic": "T1"}


def small_reads(codes, root):
    """Reads full of the smallest requests of each code, and of requests with all fields that any code has."""
    for code in codes:
        forms = [(HEAD, int(code < 1 << 15))]
        if codes is not DEAR_IF_SMALL:
            forms.append((FIELDS if root is None else signed(FIELDS, b"", root), 0))
        for ext, serialize_type in forms:
            frame = encode_command(RemotingCommand(code, 1, ext=ext, serialize_type=serialize_type))
            yield code, len(ext), frame * (READ_BYTES // len(frame))


async def least_cost(cost_of, data):
    """Return the seconds of the dearest turn, on a machine of usual speed. Beyond the limit, it is tried again.

    The least of up to five results counts, because other processes can only add to it.
    """
    costs = []
    while len(costs) < 5:
        cost = await cost_of(data)
        costs.append(cost if cost <= LIMIT_S else cost / slowness())
        if costs[-1] <= LIMIT_S:
            break
    return min(costs)


@pytest.mark.parametrize(
    ("codes", "guarded"),
    [
        (DEAR_IF_SMALL, False),
        pytest.param((*RequestCode, 30_000), False, marks=pytest.mark.long),
        pytest.param((*RequestCode, 30_000), True, marks=pytest.mark.long),
    ],
)
async def test_no_turn_of_a_name_server_is_dear_for_reads_full_of_small_requests(tmp_path, request, codes, guarded):
    root = root_credentials(access_keys(KEY_FILE)) if guarded else None
    whole = encode_registration(registration(TopicConfig(f"topic-{number}") for number in range(TOPICS)))
    ext = NODE if root is None else signed(NODE, whole, root)
    answered = asyncio.Event()
    ready = deque()
    dear = []

    async def cost_of(read):
        """Return the longest turn for a read that four connections bring in the same turn.

        All callbacks that are ready at the same time form a turn.
        """
        server.turns = RequestTurns(SimpleNamespace(time=time.thread_time, call_soon=ready.append))
        connections = [Connection(server, number) for number in range(10_000, 10_004)]
        for connection in connections:
            connection.connection_made(Sink(asyncio.Event()))
        longest = 0.0
        for number in range(TURNS + 2):
            callbacks = [*ready]
            if number == 1:
                callbacks += [partial(one.data_received, read) for one in connections]
            if number == TURNS:
                callbacks += [partial(one.connection_lost, None) for one in connections]
            ready.clear()
            began = time.thread_time()
            for callback in callbacks:
                callback()
            await asyncio.sleep(0)  # tasks take a step too
            longest = max(longest, time.thread_time() - began)
        ready.clear()
        return longest

    gc.disable()
    request.addfinalizer(gc.enable)
    async with serving(tmp_path, **guards(guarded)) as server:
        broker = Connection(server, 9_999)
        broker.connection_made(Sink(answered))
        broker.data_received(encode_command(RemotingCommand(103, 1, ext=ext, body=whole)))
        await answered.wait()
        assert server.counters.registrations == 1
        for code, fields, read in small_reads(codes, root):
            cost = await least_cost(cost_of, read)
            if cost > LIMIT_S:
                dear.append((code, fields, round(cost, 3)))
    assert dear == []


def guards(guarded):
    return {"access_key_file": KEY_FILE} if guarded else {}


@pytest.mark.parametrize("guarded", [False, True])
async def test_no_turn_of_a_name_server_is_dear_for_any_frame(tmp_path, guarded):
    dear = []

    async def check(code, data):
        cost = await least_cost(cost_of, data)
        if cost > LIMIT_S:
            dear.append((code, len(data), round(cost, 3)))

    async def cost_of(data):
        """Return the longest turn, measured between two callbacks of the test, one of which ends the turn."""
        answered = asyncio.Event()
        connection = Connection(server, 10_000)
        connection.connection_made(Sink(answered))
        longest, last = 0.0, time.thread_time()
        connection.data_received(data)
        while True:
            now = time.thread_time()
            longest, last = max(longest, now - last), now
            if answered.is_set() or not (connection._pending_answers or connection.waits_for_turn):
                break
            await asyncio.sleep(0)
        connection.connection_lost(None)
        return longest

    async with serving(tmp_path, **guards(guarded)) as server:
        for code, data in frames():
            await check(code, data)
        root = root_credentials(access_keys(KEY_FILE)) if guarded else None
        for body, compressed in registrations():
            ext = NODE | {"compressed": str(compressed).lower()}
            ext = ext if root is None else signed(ext, body, root)
            await check(103, encode_command(RemotingCommand(103, 1, ext=ext, body=body)))
        assert server.counters.registrations > 0
    assert dear == []
