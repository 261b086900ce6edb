"""Opted-in sends with consecutive unique keys: remembered together, told apart one by one."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, make_served_broker, send_ext

from dledger.errors import LogFullError
from dledger_broker.features.sending.dedup import idempotent
from dledger_broker.features.sending.dedup.remembered import REMEMBERED
from dledger_broker.features.sending.send import SendRequests
from dledger_remoting.batch import BatchMessage, encode_batch
from dledger_remoting.command import RemotingCommand, encode_command
from tests.broker.features.quotas.quota_calls import stored
from tests.broker.features.sending.dedup.remembering import keyed, remembering
from tests.broker.features.sending.majority import Majority

STEM = "7F0000010BB818B4AAC20000000"


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    """Return a broker that leads, has topics T1 and T2, and remembers sends."""
    return of_two_topics(make_broker)


def of_two_topics(make_broker: MakeBroker) -> ServedBroker:
    """Return such a broker that has stored a send to each topic, so that later sends take the fast path."""
    broker = remembering(make_broker(topics=("T1", "T2")), window_ms=60_000, max_keys=100_000)
    warm(broker)
    return broker


@dataclass(frozen=True)
class Send:
    """Send, with everything that makes up its identity."""

    key: str
    body: bytes = b"hello"
    topic: str = "T1"
    group: str = "PG"
    opted_in: bool = True
    batch: int = 0

    def frame(self, opaque: int) -> bytes:
        properties = keyed(self.key)
        ext = send_ext(self.topic, 0, "" if self.batch else properties, a=self.group)
        ext |= {"idempotent": str(self.opted_in).lower(), "m": str(self.batch > 0).lower()}
        keys = [properties, *(keyed(f"{self.key}-{n}") for n in range(1, self.batch))]
        body = encode_batch(BatchMessage(0, self.body, key.encode()) for key in keys) if self.batch else self.body
        return encode_command(RemotingCommand(320 if self.batch else 310, opaque, ext=ext, body=body, version=479))


def feed(client: FakeClient, sends: list[Send], first_opaque: int = 1000) -> list[int]:
    """Hand sends to the broker as one read, and return their opaques."""
    opaques = list(range(first_opaque, first_opaque + len(sends)))
    client.feed(b"".join(send.frame(opaque) for send, opaque in zip(sends, opaques, strict=True)))
    return opaques


def places(client: FakeClient, opaques: list[int]) -> list[tuple[str, str]]:
    answers = [client.answered(opaque) for opaque in opaques]
    assert {answer.code for answer in answers} == {0}
    return [(answer.ext["msgId"], answer.ext["queueOffset"]) for answer in answers]


def sent(broker: ServedBroker, sends: list[Send]) -> list[tuple[str, str]]:
    client = broker.client()
    opaques = feed(client, sends)
    broker.settle()
    return places(client, opaques)


def warm(broker: ServedBroker) -> None:
    """Send once to each topic, so that later sends take the fast path."""
    for topic in ("T1", "T2"):
        sent(broker, [Send("first", topic=topic)])


def counting(count: int, begin: int = 0, **kind: object) -> list[Send]:
    return [Send(f"{STEM}{n:05X}", b"%d" % n * (n % 7), **kind) for n in range(begin, begin + count)]


def test_keys_that_follow_each_other_share_rows_and_each_repetition_is_found(broker: ServedBroker):
    rows = len(broker.memory.machine.state.table(REMEMBERED))
    sends = counting(50, begin=5)
    first = sent(broker, sends)
    assert len(broker.memory.machine.state.table(REMEMBERED)) == rows + 4
    assert len(set(first)) == 50
    for number, send in enumerate(sends):
        assert sent(broker, [send]) == [first[number]]
    assert sent(broker, sends[::-1]) == first[::-1]
    again = make_served_broker(broker.config, broker.memory.restart())
    again.advance(0.1)
    assert sent(again, sends[20:]) == first[20:]
    assert again.counters.idempotent_repeats == 30
    assert stored(again) == 51


def test_a_repetition_that_is_not_in_memory_is_read_from_the_disk(broker: ServedBroker):
    sends = counting(20)
    first = sent(broker, sends)
    broker.memory.node.cold = True
    ext = send_ext("T1", properties=keyed(sends[13].key), idempotent="true")
    again = broker.client().call_from_disk(310, ext, sends[13].body)
    assert (again.ext["msgId"], again.ext["queueOffset"]) == first[13]
    assert stored(broker) == 21


def test_idempotent_sends_that_the_log_refused_are_stored_when_repeated(broker: ServedBroker):
    sends = counting(20)
    client = broker.client()
    broker.memory.node.stage_error = LogFullError("no space")
    refused = feed(client, sends)
    broker.settle()
    assert {client.answered(opaque).code for opaque in refused} == {14}
    broker.memory.node.stage_error = None
    first = sent(broker, sends)
    assert len(set(first)) == 20
    assert sent(broker, sends) == first
    assert (stored(broker), broker.counters.idempotent_waits) == (21, 0)


def test_sends_lost_with_leadership_are_stored_once_when_sent_twice_again(broker: ServedBroker):
    sends = counting(3)
    client = broker.client()
    feed(client, sends)
    broker.service.parts[SendRequests].gathering.flush()
    broker.memory.node.step_down()
    broker.memory.node.lead()
    broker.settle()
    opaques = feed(client, [*sends, *sends], 2000)
    broker.settle()
    broker.advance(0.05)
    found = places(client, opaques)
    assert found[3:] == found[:3]
    assert (stored(broker), broker.counters.idempotent_waits) == (4, 3)


def test_sends_in_flight_while_rows_are_indexed_stay_known(make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(idempotent, "MAX_NOT_INDEXED", 0)
    monkeypatch.setattr(idempotent, "MAX_SEEN", 0)
    broker = of_two_topics(make_broker)
    node, client = broker.memory.node, broker.client()
    commit, node.commit = node.commit, lambda: None  # no commit at the end of each turn
    earlier, later = counting(3), counting(3, begin=3)
    opaques = feed(client, earlier)
    broker.service.parts[SendRequests].gathering.flush()
    commit()  # rows will be indexed at the end of this turn
    opaques += feed(client, later, 2000)
    broker.service.parts[SendRequests].gathering.flush()
    broker.settle()
    opaques += feed(client, earlier, 3000)
    broker.settle()
    opaques += feed(client, later, 4000)
    broker.settle()
    commit()
    broker.advance(0.05)
    found = places(client, opaques)
    assert found[6:] == found[:6]
    assert (stored(broker), broker.counters.idempotent_waits) == (7, 3)


def test_the_table_of_recent_sends_stays_bounded_with_a_repetition_in_every_unit(make_broker, monkeypatch):
    monkeypatch.setattr(idempotent, "MAX_SEEN", 10)
    broker = of_two_topics(make_broker)
    again = counting(1)
    first = sent(broker, again)
    for begin in range(16, 1600, 16):
        assert sent(broker, [*counting(1, begin=begin), *again])[1:] == first
        assert len(broker.service.parts[SendRequests]._idempotent._recent_members) <= 11


def test_sends_stored_under_another_leader_are_recognized(broker: ServedBroker):
    sends = counting(6)
    first = sent(broker, sends[:3])
    broker.memory.node.step_down()
    other = make_served_broker(broker.config, broker.memory.restart())
    other.advance(0.1)
    warm(other)
    first += sent(other, sends[3:])
    other.memory.node.step_down()
    broker.memory.node.catch_up()
    broker.memory.node.lead()
    broker.advance(0.1)
    for send, place in zip(sends, first, strict=True):
        assert sent(broker, [send]) == [place]


@dataclass
class Model:
    """Model of a broker's answers: the first place of each idempotent send, and new places for all others."""

    first: dict[Send, tuple[str, str]] = field(default_factory=dict)
    places: set[tuple[str, str]] = field(default_factory=set)

    def see(self, send: Send, place: tuple[str, str]) -> None:
        if send.opted_in:
            known = self.first.setdefault(send, place)
            assert place == known, send
        else:
            assert place not in self.places, send
        self.places.add(place)


@pytest.mark.parametrize("seed", range(20))
def test_repetitions_and_new_sends_in_units_of_any_size_are_told_apart(make_broker, monkeypatch, seed):
    """Many repetitions of few sends are looked up in recent sends and in the index."""
    rng = random.Random(seed)
    monkeypatch.setattr(idempotent, "MAX_NOT_INDEXED", rng.choice([0, 3, 20, 1000]))
    monkeypatch.setattr(idempotent, "MAX_SEEN", rng.choice([0, 2, 10, 1000]))
    broker = of_two_topics(make_broker)
    bodies = [b"x", b"y", b"large" * rng.choice([1, 500, 4000])]
    model = Model()
    for _ in range(60):
        begin = rng.randrange(60)
        sends = [
            Send(
                f"{STEM}{n:05X}" if rng.random() < 0.9 else rng.choice(["K", "ab", f"{STEM}0000G", f"{STEM}0000:"]),
                bodies[0] if rng.random() < 0.8 else rng.choice(bodies),
                topic=rng.choice(["T1"] * 20 + ["T2"]),
                group=rng.choice(["PG"] * 20 + ["PG2"]),
                opted_in=rng.random() < 0.97,
                batch=rng.choice([0] * 30 + [1, 2, 3]),
            )
            for n in range(begin, begin + rng.choice([1, 3, 20, 50]))
        ]
        if rng.random() < 0.2:
            rng.shuffle(sends)
        client = broker.client()
        with monkeypatch.context() as patch:
            majority = Majority(broker, patch) if rng.random() < 0.3 else None
            half = rng.randrange(len(sends) + 1)
            opaques = feed(client, sends[:half])
            broker.settle()
            opaques += feed(client, sends[half:], 2000)
            broker.settle()
        if majority is not None:
            majority.has_it()
        broker.advance(0.05)
        for send, place in zip(sends, places(client, opaques), strict=True):
            model.see(send, place)
        if rng.random() < 0.1:
            if rng.random() < 0.5:
                broker.memory.node.snapshot()
            broker = make_served_broker(broker.config, broker.memory.restart())
            broker.advance(0.1)
        elif rng.random() < 0.1:
            broker.memory.node.step_down()
            broker.memory.node.lead()
            broker.advance(0.1)
    messages = sum(ids.count(",") + 1 for ids, _ in model.places)
    assert messages == stored(broker) + stored(broker, "T2") - 2
