"""Replica whose state is only rows, with its time index."""

import asyncio
import struct
from collections.abc import Sequence
from functools import partial

import msgspec

from dledger.format import encode_command, iter_commands
from dledger_broker.testing import FakeEnvironment
from dledger_broker.testing.databases import MemoryDatabases
from dledger_broker.testing.node import FakeLog, FakeNode
from dledger_broker.views.logreader import LogReader
from dledger_broker.views.timeindex import TimeIndex
from dledger_broker.views.timerows import Row, RowChanges

ADD, GONE, END, OTHER = 33, 34, 35, 36
ROW = struct.Struct(">QQI")
SEGMENT_BYTES = 4096
FOREVER = 1 << 60


class RowsMachine:
    """State machine whose state is `pending_rows`, by position."""

    stretch_bytes = 1024

    def __init__(self, log: FakeLog, databases: MemoryDatabases, incarnation: str = "one", **settings) -> None:
        self.env = FakeEnvironment()
        self.databases = databases
        self.pending_rows: dict[int, Row] = {}
        self.ended_below = 0
        self.applied_position = 0
        self.node = self.log = FakeNode(self, self.env, log)
        settings = {"always_compare": True, "soon_rows": 4, **settings}
        self.index = TimeIndex(databases, self.env, LogReader(self), self, self, **settings)
        self.follower = self.index.follower
        self.follower.incarnation = incarnation
        self.loop = asyncio.new_event_loop()

    # ---------------------------------------------------------------- RowSource

    def decode_command(self, kind: int, payload: bytes | memoryview) -> RowChanges | None:
        if kind == END:
            return RowChanges()
        rows = [Row(*row) for row in ROW.iter_unpack(payload)] if kind in {ADD, GONE} else None
        if rows is None:
            return None
        return RowChanges(added=rows) if kind == ADD else RowChanges(removed=[row[:2] for row in rows])

    def lowest(self) -> int | None:
        return min(self.pending_rows, default=None)

    def pending(self) -> dict[int, tuple[int, int]]:
        counts: dict[int, tuple[int, int]] = {}
        for row in self.pending_rows.values():
            start = row.position - row.position % self.stretch_bytes
            rows, size = counts.get(start, (0, 0))
            counts[start] = rows + 1, size + row.size
        return counts

    # ---------------------------------------------------------------- StateMachine

    def apply(self, entries) -> None:
        added: list[Row] = []
        gone: list[tuple[int, int]] = []
        for entry in entries:
            for kind, payload in iter_commands(entry.commands):
                change = self.decode_command(kind, payload) or RowChanges()
                added += change.added
                gone += change.removed
                self.pending_rows.update({row[1]: Row(*row) for row in change.added})
                for _, position in change.removed:
                    self.pending_rows.pop(position, None)
                if kind == END:
                    (below,) = struct.unpack(">Q", payload)
                    self.pending_rows = {p: row for p, row in self.pending_rows.items() if p >= below}
                    self.index.drop_below(below)
            self.applied_position = entry.end
        if added or gone:
            self.index.applied(added, gone, self.applied_position)

    def rebuild(self, entries) -> None: ...

    def dropped(self, contexts, full) -> None: ...

    def on_leadership(self, leadership) -> None: ...

    def snapshot(self):
        yield msgspec.msgpack.encode(list(self.pending_rows.values()))

    def decode(self, *args):
        """Decode a snapshot or a command. Two protocols have a method `decode`."""
        if isinstance(args[0], int):
            return self.decode_command(*args)
        meta, chunks = args
        rows = [] if meta is None else [Row(*row) for row in msgspec.msgpack.decode(next(iter(chunks)))]
        return partial(self._restore, rows, 0 if meta is None else meta.position)

    def _restore(self, rows: list[Row], position: int) -> int:
        self.pending_rows = {row.position: row for row in rows}
        self.applied_position = position
        self.index.restored(position)
        return position

    # ---------------------------------------------------------------- what tests do

    def write(self, commands: bytes, records: int = 0) -> int:
        """Write one entry and return the position of its records."""
        buffer = bytearray(commands)
        position = self.node.stage(records, lambda _: [bytes(records)] if records else [], commands=buffer)
        self.node.commit()
        self.applied_position = max(self.applied_position, self.node.applied_position)
        return position

    def add(self, dues: Sequence[int], size: int = 10) -> list[Row]:
        """Write one entry with records that are due at these times, and return their rows."""
        rows: list[Row] = []
        buffer = bytearray(encode_command(ADD, bytes(ROW.size * len(dues))))

        def fill(position: int) -> list[bytes]:
            rows.extend(Row(due, position + size * number, size) for number, due in enumerate(dues))
            buffer[6:] = b"".join(ROW.pack(*row) for row in rows)
            return [bytes(size * len(dues))]

        self.node.stage(size * len(dues), fill, commands=buffer)
        self.node.commit()
        return rows

    def filed(self, dues: Sequence[int]) -> list[Row]:
        """Do as `add` does, and let the file follow."""
        rows = self.add(dues)
        self.settle()
        return rows

    def stop(self) -> None:
        self.run(self.follower.close())

    def start_and_stop(self) -> None:
        async def life() -> None:
            self.follower.start()
            await self.follower.stop()

        self.run(life())

    def end(self, rows: Sequence[Row]) -> None:
        """Write one entry that says that these rows are gone."""
        self.write(encode_command(GONE, b"".join(ROW.pack(*row) for row in rows)))

    def end_below(self, position: int) -> None:
        self.write(encode_command(END, struct.pack(">Q", position)))

    def run(self, coroutine):
        return self.loop.run_until_complete(self.env.finish(coroutine))

    def settle(self) -> None:
        """Let the file follow as far as it can."""
        while self.run(self.follower.fold()):
            pass
        self.env.run_ready()

    def ask(self, before_ms: int = FOREVER, limit: int = 100) -> list[list[Row]]:
        """Ask for due rows, and return the list that receives the answer."""
        answers: list[list[Row]] = []
        self.index.due(before_ms, limit, answers.append)
        return answers

    def due(self, before_ms: int = FOREVER, limit: int = 100) -> list[Row]:
        """Return everything that is due, with as many questions as a job needs."""
        found: list[Row] = []
        while True:
            answers = self.ask(before_ms, limit)
            self.env.run_ready()
            found += answers[0]
            if not answers[0]:
                return found


def replica(log: FakeLog | None = None, databases: MemoryDatabases | None = None, **settings) -> RowsMachine:
    """Return a replica that leads."""
    machine = RowsMachine(log or FakeLog(SEGMENT_BYTES), databases or MemoryDatabases(), **settings)
    machine.node.start()
    machine.applied_position = machine.node.applied_position
    return machine
