"""Promises about messages, for the code that carries them."""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec

from dledger.consensus.engine import EngineKind
from dledger.types import Lane
from dledger_base.invariants import invariant
from dledger_sim.engine_group import Envelope
from dledger_sim.engine_suite.groups import LONG_S, Promise, led_by_a


def _story(kind: EngineKind) -> list[Envelope]:
    """Return all messages of a group that elects leaders, replicates, catches up and installs a snapshot."""
    said: list[Envelope] = []

    def overhear(envelope: Envelope) -> bool:
        said.append(envelope)
        return False

    group = led_by_a(kind)
    group.hold(overhear)
    group.isolate("c")
    last = group.propose("a", 5)
    group.settle()
    group.pass_time(0.3, "a", "b")
    group.compact("a", last - 2)
    group.heal()
    group.settle()
    group.install("a", "c")
    group.settle()
    group.pass_time(0.3)
    group.isolate("a")
    group.pass_time(LONG_S, "b", "c")
    group.heal()
    group.pass_time(0.3)
    return said


def decoded_message_equals_the_encoded_one(kind: EngineKind) -> None:
    """Check that a message is the same after encoding and decoding, as are the fields that its carriers may use."""
    for envelope in _story(kind):
        message = envelope.message
        again = kind.codec.decode(kind.codec.encode(message))
        invariant(again == message, "its bytes say all of it", message=message, again=again)
        known = [(one.term, one.lane, one.snapshot, one.entries is None) for one in (message, again)]
        invariant(known[0] == known[1], "carriers know the same of it", known=known)


def messages_about_the_log_keep_their_order(kind: EngineKind) -> None:
    """Check that messages about the log use the bulk lane, behind entries and pieces of snapshots.

    All other messages may overtake them.
    """
    lanes: set[Lane] = set()
    for envelope in _story(kind):
        message = envelope.message
        speaks = message.entries is not None or message.snapshot is not None
        invariant(
            message.lane is (Lane.BULK if speaks else Lane.CONTROL), "the lane is by what it says", message=message
        )
        invariant(message.term >= 0, "it has a term", message=message)
        if message.entries is None:
            invariant(not envelope.metas, "it brings what it says", message=message)
        else:
            entries = message.entries
            invariant(entries.count == len(envelope.metas), "it brings what it says", message=message)
            found = [meta.index for meta in envelope.metas]
            expected = list(range(entries.prev_index + 1, entries.prev_index + 1 + entries.count))
            invariant(found == expected, "its entries follow the one that it names", message=message)
        lanes.add(message.lane)
    invariant(lanes == set(Lane), "both lanes are in use", lanes=lanes)


def codec_refuses_other_bytes(kind: EngineKind) -> None:
    """Check that the codec refuses bytes that are no message with an expected error, whatever the bytes are.

    The sender of these bytes loses its link, and the receiving node must continue.
    """
    random = Random(1)
    real = [kind.codec.encode(envelope.message) for envelope in _story(kind)]
    for number in range(3_000):
        data = random.randbytes(random.randrange(40))
        if number % 2:
            bytes_of = bytearray(random.choice(real))
            bytes_of[random.randrange(len(bytes_of))] = random.randrange(256)
            data = bytes(bytes_of[: random.randrange(1, len(bytes_of) + 1)])
        try:
            message = kind.codec.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
        invariant(isinstance(message.lane, Lane), "what is taken is a message", data=data, message=message)


PROMISES: Final[tuple[Promise, ...]] = (
    decoded_message_equals_the_encoded_one,
    messages_about_the_log_keep_their_order,
    codec_refuses_other_bytes,
)
