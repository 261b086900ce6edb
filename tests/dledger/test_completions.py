"""No callback runs in the service while an entry is half written, and the service calls nothing at that moment."""

import asyncio
import os
from pathlib import Path

import pytest

from dledger import Node
from dledger.errors import OutcomeUnknownError, StorageError
from dledger.replica.driver import Completions
from dledger.store.disk import OsFile
from dledger_base.invariants import InvariantError
from tests.dledger.node_group import Group, Journal, alone, until

SEGMENT_BYTES = 1 << 20
BIG_BYTES = 600_000
"""Size of a unit in bytes: two do not fit a segment, and one with a successor's header does."""


class Chained(Journal):
    """State machine that stages one more unit for each applied unit of the first round."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.node: Node | None = None
        self.places: dict[object, int] = {}
        self.seen: list[object] = []

    def stage(self, number: int) -> None:
        assert self.node is not None
        body = number.to_bytes(4, "big") * (self.size // 4)
        self.places[number] = self.node.stage(len(body), lambda _: (body,), context=number)

    def apply(self, entries):
        super().apply(entries)
        for entry in entries:
            for number in filter(lambda context: isinstance(context, int), entry.contexts):
                self.seen.append(number)
                if number < 10:  # the units of the first round
                    self.stage(number + 10)


def sole_voter(directory: Path, machine: Chained, **options: object) -> Node:
    machine.node = Node(alone(directory, flush="async", segment_bytes=SEGMENT_BYTES, **options), machine)
    return machine.node


async def test_a_group_of_one_voter_with_async_flush_can_be_founded(tmp_path):
    async with sole_voter(tmp_path, Chained(100)) as node:
        await until(lambda: node.is_ready)
        position = await node.append(b"hello")
        assert await node.read(position, 5) == b"hello"


async def test_a_unit_staged_by_a_callback_crosses_no_segment_and_survives_a_restart(tmp_path):
    machine = Chained(BIG_BYTES)
    async with sole_voter(tmp_path, machine) as node:
        await until(lambda: node.is_ready)
        for number in range(3):
            machine.stage(number)  # the second seals the first, which is committed at once
        assert machine.seen == [], "nothing is applied inside stage"
        await until(lambda: len(machine.seen) == 6)
        places = dict(machine.places)
    for place in places.values():
        assert place // SEGMENT_BYTES == (place + BIG_BYTES - 1) // SEGMENT_BYTES, "a unit crosses no segment"
    again = sole_voter(tmp_path, Chained(BIG_BYTES), bootstrap=False)
    async with again:
        await until(lambda: again.is_ready)
        assert again.replica.store.corrupt_ranges == ()
        for number, place in places.items():
            assert isinstance(number, int)
            assert await again.read(place, 4) == number.to_bytes(4, "big")


async def test_the_callback_of_a_read_may_stage(tmp_path):
    async with Group(tmp_path, flush="async") as group:
        leader = await group.leader()
        results: list[object] = []

        def read_done(error: Exception | None) -> None:
            body = os.urandom(1000)
            results.append((error, leader.stage(len(body), lambda _: (body,))))

        leader.read_index(read_done)
        await until(lambda: bool(results))
        error, place = results[0]  # type: ignore[misc]
        assert error is None
        assert place < leader.last_position
        await group.append(3)


async def test_waiting_callers_are_answered_if_a_write_fails_inside_stage(tmp_path, monkeypatch):
    node = sole_voter(tmp_path, Chained(100))
    await node.start()
    try:
        await until(lambda: node.is_ready)
        answers: list[object] = []
        node.read_index(answers.append)

        def fail(*_: object) -> None:
            raise StorageError("writing failed: Input/output error")

        first = asyncio.ensure_future(node.append(bytes(BIG_BYTES)))
        await asyncio.sleep(0)
        monkeypatch.setattr(OsFile, "pwrite", fail)
        with pytest.raises(StorageError):
            node.stage(BIG_BYTES, lambda _: (bytes(BIG_BYTES),))  # does not fit, so the open entry is written
        monkeypatch.undo()
        with pytest.raises(OutcomeUnknownError):
            async with asyncio.timeout(5):
                await first
        assert len(answers) == 1
    finally:
        await node.stop()


async def test_staging_while_a_unit_is_filled_is_refused(tmp_path):
    machine = Chained(100)
    async with sole_voter(tmp_path, machine) as node:
        await until(lambda: node.is_ready)

        def fill(_position: int) -> tuple[bytes, ...]:
            machine.stage(20)
            return (b"outer",)

        with pytest.raises(InvariantError, match="between executions"):
            node.stage(5, fill)


def test_completions_wait_for_the_end_of_the_outermost_execution():
    failures: list[BaseException] = []
    completions, told = Completions(failures.append), []
    completions.executing += 1
    completions.add(lambda: told.append("first"))
    completions.executing += 1
    completions.add(lambda: told.append("second"))
    completions.executing -= 1
    with pytest.raises(InvariantError):
        completions.run()
    assert told == []
    completions.executing -= 1
    completions.run()
    assert told == ["first", "second"]
    assert failures == []


def test_a_completion_added_by_another_runs_after_the_waiting_ones():
    completions, told = Completions(lambda error: pytest.fail(str(error))), []

    def first() -> None:
        completions.add(lambda: told.append("third"))
        completions.run()
        told.append("first")

    completions.add(first)
    completions.add(lambda: told.append("second"))
    completions.run()
    assert told == ["first", "second", "third"]


def test_a_completion_that_raises_is_reported_and_the_others_run():
    failures: list[BaseException] = []
    completions, told = Completions(failures.append), []
    error = ValueError("the service failed")

    def failing() -> None:
        raise error

    completions.add(failing)
    completions.add(lambda: told.append("second"))
    completions.run()
    assert failures == [error]
    assert told == ["second"]
