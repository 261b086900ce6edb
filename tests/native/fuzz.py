"""`python -m tests.native.fuzz`: mutated records, units and frames of sends through the native part and its twins.

If the native part accepts an input, its twin must read it alike. Other inputs are left to the twin. A crash of the
process, an exception, a panic, or a difference ends the run. The printed seed repeats it.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import tempfile
import time

import click
import numpy as np

from dledger_broker.features.sending.tails import RecordTails
from dledger_broker.features.sending.unit import PendingSend, SendUnit
from dledger_broker.kernel.records import magic_of, message_sizes
from dledger_broker.kernel.requests import Request
from dledger_broker.views import keyscan, reading, scan
from dledger_broker.views.units import UNIT
from dledger_remoting.batch import BatchMessage, encode_batch
from dledger_remoting.errors import FrameError
from dledger_remoting.frame import join_frame, split_frames
from dledger_remoting.hosts import HostAddress
from dledger_remoting.hotpath import decode_send_v2_json
from dledger_remoting.ids import UniqueKeyGenerator
from dledger_remoting.record import MessageRecord, encode_record, topic_field

native = importlib.import_module("dledger_native")

HOST = HostAddress("10.0.0.9", 4000)
BYTES = (0, 1, 2, 3, 0x20, 0x7F, 0x80, 0xFF)
PLACES = (0, 1, -1, 70, 2**31, 2**62, 2**63 - 1, 2**63 - 2, -(2**63), -(2**63) + 1)
SIZES = (0, 1, 5, 100, -1, -5, 2**31 - 1, -(2**31))
SHOWN_EVERY_S = 20.0
PIECES = (
    b"TAGS\x01",
    b"\x02TAGS\x01",
    b"KEYS\x01a b\x02",
    b"UNIQ_KEY\x01",
    b"\x01",
    b"\x02",
    bytes(4),
    b"\xda\xa3\x20\xa7",
)


LOG_CONTENT = bytes(number % 251 for number in range(700))
LOG, _path = tempfile.mkstemp()  # an in-memory file does not support reads of the page cache only
os.unlink(_path)
os.write(LOG, LOG_CONTENT)


class Counts:
    """Number of compared inputs of each kind."""

    def __init__(self) -> None:
        self.records = self.units = self.frames = 0

    def __str__(self) -> str:
        return f"{self.records:,} records, {self.units:,} units of queues, {self.frames:,} frames of sends"


def sound_entry(rng: random.Random, counts: Counts) -> bytearray:
    """Return a few sound records, mostly of one producer."""
    data = bytearray()
    count = rng.randint(1, 4)
    counts.records += count
    for number in range(count):
        properties = b"UNIQ_KEY\x01%016X\x02TAGS\x01%b\x02KEYS\x01x y%d\x02" % (
            number,
            rng.choice((b"a", b"b")),
            number,
        )
        data += encode_record(
            MessageRecord(
                topic=rng.choice(("A", "A", "topic")),
                queue_id=rng.randrange(2),
                queue_offset=number,
                physical_offset=number,
                body=bytes(rng.randrange(40)),
                properties=properties[: rng.choice((0, 20, 99, 99, 99))],
                sys_flag=rng.choice((0, 0, 0, 12)),
                born_timestamp=1,
                born_host=HOST,
                store_timestamp=number,
                store_host=HOST,
            )
        )
    return data


def mutate(rng: random.Random, data: bytearray) -> None:
    """Change some bytes, in place."""
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        if not data:
            return
        at = rng.randrange(len(data))
        kind = rng.randrange(6)
        if kind < 3:
            data[at] = rng.choice(BYTES) if kind else data[at] ^ 1 << rng.randrange(8)
        elif kind == 3:
            data[at : at + 4] = (rng.choice((0, 1, len(data), 2**31 - 1, 2**31, 2**32 - 1))).to_bytes(4, "big")
        elif kind == 4:
            piece = rng.choice(PIECES)
            data[at : at + rng.choice((0, len(piece)))] = piece
        else:
            del data[at : at + rng.choice((1, 4, len(data)))]


def compare_records(data: bytes) -> int:
    """Check that both native scanners equal their twins, and return the number of those that accepted the data."""
    taken = 0
    runs = native.scan_runs(data, 77)
    if runs is not None:
        taken += 1
        assert runs == scan._scan_one_by_one(data, 77)
    rows = native.scan_keys(data, [(0, len(data))])
    if rows is not None:
        taken += 1
        assert np.array_equal(np.frombuffer(rows, keyscan.KEYS_TYPE), keyscan._scan_in_python(data, [(0, len(data))]))
    return taken


def compare_units(rng: random.Random, counts: Counts) -> int:
    """Check that the native part chooses and reads units as its twin does.

    Return the number of the two calls that the native part accepted.
    """
    damaged = rng.random() < 0.3
    units, position = bytearray(), rng.choice(PLACES if damaged else (0, 70))
    count = rng.randrange(8)
    counts.units += count
    for _ in range(count):
        size = rng.choice(SIZES) if damaged else rng.randrange(100)
        if damaged and rng.random() < 0.3:
            position = rng.choice(PLACES) + rng.choice((0, size, -size))
        position = max(-(2**63), min(2**63 - 1, position + rng.choice((0, 0, 0, 5))))
        units += UNIT.pack(position, size, rng.choice((0, 1, 2**63 - 1)))
        position += size
    if rng.random() < 0.3:
        mutate(rng, units)
    codes = rng.choice((None, frozenset((1,)), frozenset(range(70))))
    max_bytes, first_position = rng.choice((0, 100, 9_999)), rng.choice((0, 0, 0, 100))
    if damaged:
        max_bytes, first_position = rng.choice((9_999, *PLACES)), rng.choice((0, *PLACES))
    asked = bytes(units), rng.randint(1, 9), max_bytes, codes, first_position
    whole = codes is None and rng.random() < 0.5
    chosen = native.select_units(*asked, whole)
    read = compare_read(*asked)
    if chosen is None:
        return read
    assert chosen == reading.choose_units(*asked, whole=whole)
    return read + 1


def compare_read(
    units: bytes, max_messages: int, max_bytes: int, codes: frozenset[int] | None, first_position: int
) -> int:
    """Check that the native part finds the same records, or their place, for a pull of a small log as its twin.

    Return 1 if the native part accepted the pull, otherwise 0.
    """
    ask = units, -1, 0, 0, 0, 0, max_messages, max_bytes, codes
    [found] = native.read_pulls([ask], (LOG, 0, len(LOG_CONTENT)), first_position)
    if found is not None:
        passed, count, size, _, runs = reading.choose_units(
            units, max_messages, max_bytes, codes, first_position, whole=codes is None
        )
        is_here = all(at >= 0 and length >= 0 and at + length <= len(LOG_CONTENT) for at, length in runs)
        records = b"".join(LOG_CONTENT[at : at + length] for at, length in runs) if is_here else None
        assert found == (passed, count, size, runs[0][0], records)
    return int(found is not None)


class Client:
    """Client of the sends."""

    forwards = in_flight = 0
    alias = None
    born_host = bytes(range(8))


class Queue:
    """Queue with an offset to hand out."""

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id
        self.staged_offset = 5


class Topic:
    """Topic with the attributes that sends need. See `SendTarget`."""

    idempotent = may_be_idempotent = redirected = False
    retry_group = None
    queue_count = 2

    def __init__(self, name: str) -> None:
        self.topic = name
        self.topic_field = topic_field(name.encode())
        self.magic = magic_of(name.encode())
        self.layouts: dict[int, object] = {}
        self.by_id = [Queue(0), Queue(1)]


TAILS = RecordTails("DefaultCluster", "", UniqueKeyGenerator("10.0.0.1", 1, 1), lambda: 1)
FORMS = ("UNIQ_KEY\x01%032X\x02WAIT\x01true\x02", "KEYS\x01a\x02UNIQ_KEY\x01%032X")
TEXT_PIECES = (
    b'"+1"',
    b'"-0"',
    b'"',
    b"\\",
    b"{",
    b"}",
    b",",
    b":",
    b"\\u0001",
    b"\\u00e4",
    b"0",
    b"-",
    b" ",
    b'"e":"1",',
    b"\xc3\xa4",
    b"true",
)


def sound_sends(rng: random.Random, counts: Counts) -> bytearray:
    """Return the frames of a few sends."""
    data = bytearray()
    count = rng.randint(1, 3)
    counts.frames += count
    for number in range(count):
        ext = {"a": "PG", "b": rng.choice(("T", "T", "U")), "c": "TBW102", "d": "4", "e": str(rng.randrange(3))}
        ext |= {"f": rng.choice(("0", "0", "1", "256")), "g": "1700000000000", "h": rng.choice(("0", "-7"))}
        ext |= {"i": rng.choice(FORMS) % rng.randrange(1000), "j": "0", "k": "false"}
        code, ext["m"] = rng.choice(((310, "false"), (310, "false"), (310, "true"), (320, "true"), (320, "false")))
        if rng.randrange(8) == 0:
            del ext[rng.choice(tuple(ext))]
        command = {"code": code, "extFields": ext, "flag": rng.choice((0, 0, 2)), "opaque": number}
        command["language"] = rng.choice(("JAVA", "GO"))
        text = json.dumps(command, separators=(",", ":"), ensure_ascii=rng.random() < 0.8).encode()
        for _ in range(rng.choice((0, 0, 1, 2))):
            at, piece = rng.randrange(len(text)), rng.choice(TEXT_PIECES)
            text = text[:at] + piece + text[at + rng.choice((0, 1, len(piece))) :]
        is_batch = code == 320 or ext.get("m") == "true"
        data += join_frame(0, text, batch_body(rng) if is_batch else bytes(rng.randrange(30)))
    return data


def batch_body(rng: random.Random) -> bytes:
    """Return the body of a batch, sometimes mutated."""
    keys = [(rng.choice(FORMS) % rng.randrange(1000)).encode() for _ in range(rng.randint(1, 3))]
    body = bytearray(encode_batch(BatchMessage(rng.choice((0, -7)), bytes(rng.randrange(9)), key) for key in keys))
    if rng.random() < 0.3:
        mutate(rng, body)
    return bytes(body)


def compare_sends(data: bytes) -> int:
    """Check that records, units and answers of the native part equal those of the twin.

    Return the number of sends that the native part accepted.
    """
    try:
        frames, _ = split_frames(data, len(data))
    except FrameError:
        return 0
    found: list[tuple[object, ...]] = []
    for part in (native, None):
        client, topics = Client(), {name: Topic(name) for name in ("T", "U")}
        for topic in topics.values():
            for form in FORMS:
                TAILS.complete((form % 7).encode(), topic)
        if part is not None:
            run = part.SendRun()
            _, taken, full = run.take([(client, data, frames)], 0, 0, 1.0, topics.get, 1000, 100_000)
            assert not full
            taken = len(frames) if run.count == len(frames) else taken
            assert taken == run.count
            records, runs = run.encode(777, 9, b"storehos", b"0A000001")
            for queue, next_offset, _ in runs:
                queue.staged_offset = next_offset
            answers, silent = run.answers()
            replies = [frame for _, some in answers for frame in some]
        else:
            pending = [taken_by_twin(data, frames[place], topics, client) for place in range(taken)]
            unit = SendUnit(pending, 0.0, print, print)
            records = b"".join(unit.encode(777, 9, b"storehos", b"0A000001"))
            runs, silent = unit.runs, unit._oneway
            replies = [frame for _, some in unit._answers for frame in some]
        queues = [(name, queue.staged_offset) for name, topic in topics.items() for queue in topic.by_id]
        found.append((records, [(end, units) for _, end, units in runs], replies, len(silent), queues))
    assert found[0] == found[1]
    return taken


def taken_by_twin(
    data: bytes, frame: tuple[int, int, int, int], topics: dict[str, Topic], client: Client
) -> PendingSend:
    """Prepare a send as `SendRequests.take_run` does."""
    header_start, body_start, frame_end, serialize_type = frame
    send = decode_send_v2_json(data[header_start:body_start])
    assert send is not None
    assert (send.code in {310, 320}, send.flag & 1, serialize_type, send.ext.idempotent) == (True, 0, 0, False)
    assert send.ext.write_alias is None
    assert not send.ext.sys_flag & 0xCC
    topic, body = topics[send.ext.topic], data[body_start:frame_end]
    request = Request(client, send.code, send.opaque, send.flag, 0, data[header_start:body_start], body, 1.0)
    queue = topic.by_id[send.ext.queue_id]
    if send.ext.batch or send.code == 320:
        messages, has_own_keys = TAILS.batch(body, topic)
        assert has_own_keys
        sizes = message_sizes(messages)
        return PendingSend(request, send.ext, topic, queue, send.ext.queue_id, messages, b"", sizes, sum(sizes), 0)
    tail, key, tag_code, has_own_key = TAILS.complete(send.ext.properties.encode(), topic)
    assert has_own_key
    messages, size = ((body, tail, send.ext.user_flag, tag_code),), 88 + len(body) + len(tail)
    return PendingSend(request, send.ext, topic, queue, send.ext.queue_id, messages, key, None, size, 0)


@click.command()
@click.option("--cases", default=1_000_000, show_default=True, help="So many mutated inputs.")
@click.option("--seed", default=1, show_default=True)
def main(cases: int, seed: int) -> None:
    """Feed mutated records, units and sends to the native part, and compare what it takes with its twin."""
    counts, taken, shown_at = Counts(), 0, time.monotonic()
    panics: list[tuple[str, str]] = []
    native.on_panic(lambda function, said: panics.append((function, said)))
    for number in range(cases):
        rng = random.Random(f"{seed} {number}")
        data = sound_entry(rng, counts)
        mutate(rng, data)
        try:
            taken += compare_records(bytes(data))
            taken += compare_units(rng, counts)
            data = sound_sends(rng, counts)
            if rng.random() < 0.3:
                mutate(rng, data)
            taken += compare_sends(bytes(data))
            assert not panics, panics
        except BaseException:
            click.echo(f"seed {seed}, case {number}: {bytes(data).hex()}", err=True)
            raise
        if time.monotonic() - shown_at > SHOWN_EVERY_S:
            shown_at = time.monotonic()
            click.echo(f"{number + 1:,} cases")
    click.echo(f"{cases:,} cases of seed {seed}: {counts}; {taken:,} answers, each that of its twin")


if __name__ == "__main__":
    main()
