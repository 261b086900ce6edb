"""Promises about messages, to those who carry them."""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec

from dledger.consensus.engine import EngineKind
from dledger.invariants import invariant
from dledger.testing.engine_group import Envelope
from dledger.testing.engine_suite.groups import LONG_S, Promise, led_by_a
from dledger.types import Lane


def _story(kind: EngineKind) -> list[Envelope]:
    """What a group says that elects leaders, replicates, catches up and installs a snapshot."""
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


def a_message_is_the_same_behind_its_bytes(kind: EngineKind) -> None:
    """And so is what those may know of it who carry it."""
    for envelope in _story(kind):
        message = envelope.message
        again = kind.codec.decode(kind.codec.encode(message))
        invariant(again == message, "its bytes say all of it", message=message, again=again)
        known = [(one.term, one.lane, one.snapshot, one.entries is None) for one in (message, again)]
        invariant(known[0] == known[1], "carriers know the same of it", known=known)


def what_speaks_of_the_log_keeps_its_order(kind: EngineKind) -> None:
    """It goes in the bulk lane, behind entries and pieces of snapshots; all else may overtake it."""
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


def other_bytes_are_no_message(kind: EngineKind) -> None:
    """They are refused as such, whatever they are: who sent them loses its link, and the node goes on."""
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
    a_message_is_the_same_behind_its_bytes,
    what_speaks_of_the_log_keeps_its_order,
    other_bytes_are_no_message,
)
