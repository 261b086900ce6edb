"""`dledger consume --group` commits exactly the messages that are printed and flushed.

Random commands run against the model of `test_takers_model`. A full disk, a closed pipe or a signal ends them at any
message.
"""

from __future__ import annotations

import asyncio
import sys
from typing import NamedTuple

import pytest
from hand_loop import HandLoop
from hypothesis import given, settings
from hypothesis import strategies as st
from test_takers_model import QUEUES, Model, brokers_on

from dledger_admin.commands.consume import _Printer, _Source
from dledger_admin.operations.positions import Edge
from dledger_remoting.codes import RequestCode

FOR_EVER = 1000


class Ending(NamedTuple):
    """Cause of a command's end, once `room` messages are out. `"end"` means that it comes to its own end."""

    room: int
    how: str


class Command(NamedTuple):
    """Call of `dledger consume --group CG`, and the messages sent before it.

    With `more_come`, messages arrive when the command asks for the ends of queues.
    """

    sent: list[int]
    joins: bool
    count: int | None
    ending: Ending
    commits_held_up: bool
    more_come: bool = False


COMMANDS = st.lists(
    st.builds(
        Command,
        st.lists(st.integers(0, QUEUES - 1), max_size=6),
        st.booleans(),
        st.none() | st.integers(1, 5),
        st.builds(Ending, st.integers(0, 5), st.sampled_from(["write fails", "flush fails", "signal", "end", "end"])),
        st.sampled_from([False, False, True]),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


class Output:
    """Standard output with room for some messages. Flushed messages are finished in the model."""

    def __init__(self, model: Model, ending: Ending) -> None:
        self.task: asyncio.Task | None = None
        self.printed = 0
        self._model = model
        self._ending = ending
        self._written: list[tuple[str, int, int]] = []

    @property
    def buffer(self) -> Output:
        return self

    def write(self, text: bytes) -> int:
        if self.printed >= self._ending.room:
            if self._ending.how == "write fails":
                raise OSError(28, "No space left on device")
            if self._ending.how == "signal":
                self.task.cancel()
        topic, queue_id, offset = text.decode().split()
        self._written.append((topic, int(queue_id), int(offset)))
        return len(text)

    def flush(self) -> None:
        if self.printed >= self._ending.room and self._ending.how == "flush fails":
            raise BrokenPipeError(32, "Broken pipe")
        self._model.done.update(self._written)
        self.printed += len(self._written)
        self._written.clear()


def shown(message) -> bytes:
    return f"{message.queue.topic} {message.queue_id} {message.queue_offset}\n".encode()


class Group:
    """Consumer group in which only the command reads."""

    def __init__(self) -> None:
        self.loop = HandLoop()
        self.model = Model()
        self.brokers = self.loop.do(brokers_on(self.loop, self.model))
        self.brokers.node.on[RequestCode.GET_MAX_OFFSET] = self._end_of_queue
        self._more_come = False

    async def _end_of_queue(self, command):
        response = await self.brokers.node.handle(command, None)
        if self._more_come:
            self.brokers.cluster.group.store("T", int(command.ext["queueId"]), b"x", b"")
        return response

    def run(self, command: Command) -> Output:
        """Run one command to its end. A signal ends a member if nothing else does."""
        output = Output(self.model, command.ending)
        end = None if command.joins else Edge.END
        source = _Source(self.brokers.cluster.namesrv, "T", "CG", "*", None, Edge.BEGINNING, end, (), command.count)

        async def begin() -> None:
            for queue_id in command.sent:
                self.brokers.cluster.group.store("T", queue_id, b"x")
            self._more_come = command.more_come
            if command.commits_held_up:
                self.brokers.commits_go.clear()
            output.task = asyncio.get_running_loop().create_task(_Printer(shown).print_all(source))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", output)
            self.loop.do(begin())
            self.loop.do(self.loop.advance(3.0))
            self.brokers.commits_go.set()
            self.loop.do(self.loop.advance(30.0))
            if not output.task.done():
                assert command.joins, "it has come to the end"
                output.task.cancel()
                self.loop.do(self.loop.advance(30.0))
            assert output.task.done()
            if not output.task.cancelled():
                output.task.exception()
        assert not self.brokers.faults, self.brokers.faults[0]
        return output

    def committed(self) -> dict[int, int]:
        return {queue_id: self.brokers.committed("T", queue_id) for queue_id in range(QUEUES)}

    def stored(self) -> dict[int, int]:
        return {queue_id: self.brokers.stored().get(("T", queue_id), 0) for queue_id in range(QUEUES)}


@given(COMMANDS)
@settings(max_examples=120, derandomize=True, deadline=None)
def test_consume_commits_only_printed_messages_and_finally_all_of_them(commands):
    group = Group()
    try:
        for command in commands:
            group.run(command)
        group.run(Command([], False, None, Ending(FOR_EVER, "end"), False))
        assert group.committed() == group.stored()
        assert len(group.model.done) == sum(group.stored().values())
    finally:
        group.loop.end()


@pytest.mark.parametrize("joins", [True, False])
def test_at_a_full_disk_members_commit_printed_messages_and_readers_none(joins):
    group = Group()
    try:
        output = group.run(Command([0] * 5, joins, None, Ending(3, "write fails"), False))
        assert (output.printed, group.committed()[0]) == (3, 3 if joins else 0)
        group.run(Command([], joins, None, Ending(FOR_EVER, "end"), False))
        assert group.committed()[0] == 5
    finally:
        group.loop.end()
