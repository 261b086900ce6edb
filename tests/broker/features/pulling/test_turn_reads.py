"""Pulls of one turn are read together, and each gets what it would get alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn, TypeVar

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, bodies, pull_ext

from dledger.store.reader import OpenFile
from dledger_base.invariants import InvariantError
from dledger_base.native_part import Ask, Found
from dledger_broker.features.pulling.requests import PullRequests
from dledger_broker.features.sending.on_their_way import RECENT_S
from dledger_broker.frontend.pull_turns import PullTurns
from dledger_broker.views.reading import choose_units
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand, encode_command
from tests.broker.features.pulling.pull_calls import position, trimmed
from tests.broker.features.quotas.quota_calls import put

T = TypeVar("T")


class Part:
    """Native part's read of pulls, in Python. `calls` has the start of each file and the number of pulls read there."""

    def __init__(self, broker: ServedBroker) -> None:
        self.node = broker.memory.node
        self.calls: list[tuple[int, int]] = []
        self.closed: set[int] = set()
        """Starts of files that are not open."""

    def with_open_file(self, position: int, use: Callable[[OpenFile], T]) -> T | None:
        starts = self.node.log.segment_starts
        number = bisect_right(starts, position)
        file = OpenFile(3, starts[number - 1], (*starts, self.node.log.end)[number])
        return None if file.start in self.closed else use(file)

    def read_pulls(self, asks: Sequence[Ask], log: OpenFile, first_position: int) -> list[Found | None]:
        self.calls.append((log.start if log.end > 0 else -1, len(asks)))
        return [self._read(ask, log, first_position) for ask in asks]

    def _read(self, ask: Ask, log: OpenFile, first_position: int) -> Found | None:
        units, *_, max_messages, max_bytes, codes = ask
        assert units is not None
        passed, count, size, _, runs = choose_units(
            units, max_messages, max_bytes, codes, first_position, whole=codes is None
        )
        if not count:
            return None
        if any(at < log.start or at + length > log.end for at, length in runs):
            return passed, count, size, runs[0][0], None
        return passed, count, size, runs[0][0], b"".join(self.node.log.data[at : at + length] for at, length in runs)


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    """Return a broker with two messages in each of four queues, to which nobody has sent lately."""
    broker = make_broker()
    client = broker.client()
    for number in range(8):
        client.send_message("T1", b"%d" % number, queue_id=number % 4, properties=f"TAGS\x01{'ab'[number // 4]}\x02")
    client.pull("T1")  # makes its group
    broker.advance(RECENT_S)
    return broker


@pytest.fixture
def part(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> Part:
    part = Part(broker)
    monkeypatch.setattr(broker.service.parts[PullRequests]._turn_reads, "_part", part)
    monkeypatch.setattr(broker.memory.node, "with_open_file", part.with_open_file)
    return part


def pull(queue_id: int, offset: int = 0, **fields: str) -> bytes:
    ext = pull_ext("T1", queue_id, offset, **fields)
    return encode_command(RemotingCommand(RequestCode.PULL_MESSAGE, opaque=queue_id, ext=ext))


def found(client: FakeClient) -> list[tuple[int, list[bytes]]]:
    return [(answer.opaque, bodies(answer)) for answer in client.answers]


def in_next_file(broker: ServedBroker) -> int:
    """Begin the next file of the log with another message in queue 0, and return the start of that file."""
    broker.memory.node.log.roll(0)
    broker.client().send_message("T1", b"new")
    broker.advance(RECENT_S)
    return broker.memory.node.log.segment_starts[-1]


EVERYTHING = [(0, [b"0", b"4"]), (1, [b"1", b"5"]), (2, [b"2", b"6"]), (3, [b"3", b"7"])]


def test_pulls_of_one_turn_are_read_in_one_call_and_answered_in_order(broker: ServedBroker, part: Part) -> None:
    for calls in ([(-1, 4), (0, 4)], [(0, 4)]):  # where the log is read is known from the first turn on
        client = broker.client()
        part.calls.clear()
        client.feed(b"".join(map(pull, range(4))))
        assert (found(client), part.calls) == (EVERYTHING, calls)
        assert {answer.ext["nextBeginOffset"] for answer in client.answers} == {"2"}


def test_each_gathered_pull_obeys_its_own_limits_and_filter(client: FakeClient, part: Part) -> None:
    client.feed(
        pull(0, maxMsgNums="1")
        + pull(1, maxMsgBytes="1")
        + pull(2, subscription="b")
        + pull(3, subscription="b", expressionType="SQL92")
    )
    by_itself, *answers = client.answers
    assert (by_itself.opaque, by_itself.code) == (3, 20), "a filter that looks into records"
    assert found(client)[1:] == [(0, [b"0"]), (1, [b"1"]), (2, [b"6"])]
    assert [answer.ext["nextBeginOffset"] for answer in answers] == ["1", "1", "2"]


def test_gathered_pulls_without_messages_are_answered_like_single_pulls(client: FakeClient, part: Part) -> None:
    client.feed(pull(0, offset=2) + pull(1, offset=9) + pull(2, subscription="c") + pull(3))
    client.broker.settle()
    told = {answer.opaque: position(answer) for answer in client.answers}
    assert told == {0: (19, "2"), 1: (21, "2"), 2: (20, "2"), 3: (0, "2")}
    assert part.calls == [(-1, 2), (0, 1)]


def test_records_in_several_files_are_read_file_by_file(broker: ServedBroker, part: Part) -> None:
    sender, client, log = broker.client(), broker.client(), broker.memory.node.log
    for queue_id in range(4):
        log.roll(0)
        sender.send_message("T1", b"new", queue_id=queue_id)
    broker.advance(RECENT_S)
    first, *others = log.segment_starts
    client.feed(pull(3, offset=0, maxMsgNums="2") + pull(1, offset=2) + pull(2, offset=2))
    assert found(client) == [(3, [b"3", b"7"]), (1, [b"new"]), (2, [b"new"])]
    assert part.calls == [(-1, 3), (first, 3), (others[1], 2), (others[2], 1)]


@pytest.mark.parametrize(
    ("closed", "asked", "answers", "reads"),
    [
        (set(), [(0, 0), (0, 2), (1, 0)], [(0, [b"0", b"4", b"new"]), (0, [b"new"]), (1, [b"1", b"5"])], [(0, 3)]),
        ({0}, [(1, 0), (0, 2)], [(1, [b"1", b"5"]), (0, [b"new"])], []),
    ],
    ids=["one of them over two files", "a file is closed"],
)
def test_a_pull_that_cannot_be_gathered_is_read_separately_and_the_others_natively(
    broker: ServedBroker,
    part: Part,
    closed: set[int],
    asked: list[tuple[int, int]],
    answers: object,
    reads: list[object],
) -> None:
    second, client = in_next_file(broker), broker.client()
    part.closed = closed
    client.feed(b"".join(pull(queue_id, offset) for queue_id, offset in asked))
    assert found(client) == answers
    assert part.calls == [(-1, len(asked)), *reads, (second, 1)]


def test_a_pull_whose_log_file_is_not_open_is_read_separately(broker: ServedBroker, part: Part) -> None:
    for _ in range(2):
        client = broker.client()
        client.feed(pull(0))
        assert found(client) == [(0, [b"0", b"4"])]
        part.closed = {0}
    assert part.calls == [(-1, 1), (0, 1), (-1, 1)]


def test_with_a_quota_each_gathered_pull_is_charged_before_the_next_reads(client: FakeClient, part: Part) -> None:
    assert put(client, "topic-reads", "T1", messages=2) == 0
    client.answers.clear()
    client.feed(b"".join(map(pull, range(3))))
    assert (found(client), part.calls) == ([(0, [b"0", b"4"])], [])


def test_a_failing_pull_does_not_affect_other_pulls_of_its_turn(
    broker: ServedBroker, part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    part.closed = {0}
    monkeypatch.setattr(broker.memory.node, "read_nowait", trimmed)
    broken, client = broker.client(), broker.client()
    monkeypatch.setattr(broken, "answer_frame", lambda _: 1 // 0)
    broken.feed(pull(0))
    client.feed(pull(1))
    assert [answer.code for answer in client.answers] == [20]
    assert [answer.code for answer in broken.answers] == [1]


def test_a_fault_in_a_turn_leaves_no_gathered_pull_unanswered(
    broker: ServedBroker, part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, client = broker.service.requests._pull_turns, broker.client()
    add = turns.add

    def broken() -> NoReturn:
        raise InvariantError("a promise of the code to itself does not hold")

    def adding(channel: str, handle: Callable[[], None]) -> None:
        add(channel, handle)
        add(channel, broken)

    monkeypatch.setattr(turns, "add", adding)
    with pytest.raises(InvariantError):
        client.feed(pull(0))
    assert found(client) == EVERYTHING[:1]


def test_a_pull_that_comes_while_pulls_are_gathered_answers_no_pull_twice(
    broker: ServedBroker, part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a turn, a handler may have the waiting pulls of a channel handled first (`let_pass`)."""
    turns, client = broker.service.requests._pull_turns, broker.client()
    assert isinstance(turns, PullTurns)
    add = turns.add

    def adding(channel: str, handle: Callable[[], None]) -> None:
        add(channel, handle)
        add(channel, partial(turns.let_pass, channel))

    monkeypatch.setattr(turns, "add", adding)
    client.feed(b"".join(map(pull, range(4))))
    assert sorted(found(client)) == EVERYTHING
