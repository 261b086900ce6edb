"""Broker group whose nodes serve a log from memory, and misbehave as a test tells them."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from dledger.format import seal
from dledger_remoting.command import RemotingCommand, decode_command, encode_command, make_response
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.hosts import HostAddress
from dledger_remoting.record import MessageRecord, encode_record
from dledger_spark.partitions import LogSlice, Source
from dledger_spark.wanted import RowFilter, TopicRange

GROUP = "broker-a"
HOST = HostAddress("127.0.0.1", 10911)
FIRST_POSITION = 1 << 20


def record(topic: str, queue_id: int, queue_offset: int, physical_offset: int, **fields: Any) -> bytes:
    """Return a stored message."""
    where = {"queue_id": queue_id, "queue_offset": queue_offset, "physical_offset": physical_offset}
    what = {"body": b"x", "born_timestamp": 1, "born_host": HOST, "store_timestamp": 1, "store_host": HOST}
    return encode_record(MessageRecord(topic=topic, **where | what | fields))


def source(namesrv: str, **changes: Any) -> Source:
    """Return what tasks know of a group whose followers are read."""
    given = {
        "namesrv": (namesrv,), "group": GROUP, "ordinal": 0, "read_from": "follower", "roles": "follower",
        "read_timeout_s": 5.0, "fail_on_data_loss": True, "columns": ("value", "offset", "log_index"),
        "row_filter": RowFilter(),
    }  # fmt: skip
    return Source(**given | changes)


class FakeLog:
    """Entries with messages of one queue each. Offsets count from 0 per topic."""

    def __init__(self, entries: list[list[tuple[str, bytes]]]) -> None:
        self.cuts: list[dict[str, int]] = []
        self.entries: list[bytes] = []
        self.offsets: dict[str, int] = {}
        self.end, chain = FIRST_POSITION, 77
        for index, messages in enumerate(entries, start=5):
            self.cuts.append({"position": self.end, "index": index, "previousChain": chain})
            body = b""
            for topic, value in messages:
                body += self._record(topic, value, self.end + 48 + len(body))
            entry = bytearray(bytes(48) + body)
            chain = seal(entry, 1, index, 3, self.end, 0, chain).chain_crc
            self.entries.append(bytes(entry))
            self.end += len(entry)
        self.chain = chain

    def _record(self, topic: str, value: bytes, position: int) -> bytes:
        offset = self.offsets.get(topic, 0)
        self.offsets[topic] = offset + 1
        return record(topic, 0, offset, position, body=value, store_timestamp=1000 + offset)

    def run(self, start: int, max_entries: int) -> tuple[bytes, int]:
        """Return whole entries from `start` on, and the position of the next one."""
        places = [cut["position"] for cut in self.cuts]
        first = places.index(start)
        data = b"".join(self.entries[first : first + max_entries])
        return data, start + len(data)

    def slice(self, topic: str, namesrv: str, first: int = 0, last: int | None = None, **changes: Any) -> LogSlice:
        """Return the slice from entry `first` up to but without entry `last`."""
        cut = self.cuts[first]
        following = None if last is None else self.cuts[last]
        return LogSlice(
            source=source(namesrv, **changes),
            start=cut["position"],
            end=self.end if following is None else following["position"],
            index=cut["index"],
            previous_chain=cut["previousChain"],
            end_chain=self.chain if following is None else following["previousChain"],
            topics=[TopicRange(topic, {0: (0, self.offsets[topic])})],
            pin="p",
            preference=0,
        )


Answer: TypeAlias = RemotingCommand | Iterator[bytes] | None


@dataclass
class FakeNode:
    """Node whose `reads` counts the range reads that it answered. `misbehave(node, request)` may answer in its place.

    An answer that is an iterator is sent piece by piece.
    """

    log: FakeLog
    role: str = "follower"
    entries_per_answer: int = 2
    misbehave: Callable[[FakeNode, RemotingCommand], Answer] | None = None
    first_position: int = 0
    reads: int = 0
    asked: list[int] = field(default_factory=list)

    def answer(self, request: RemotingCommand) -> Answer:
        """Return the answer, or None to close the connection."""
        self.asked.append(request.code)
        if self.misbehave is not None:
            told = self.misbehave(self, request)
            if told is not request:
                return told
        if self.role not in request.ext.get("roles", self.role).split(","):
            return make_response(request, 20110, f"this is the {self.role}")
        if request.code == 20011:
            start = int(request.ext["start"])
            if start < self.first_position:
                return make_response(request, 20112, "trimmed")
            self.reads += 1
            data, end = self.log.run(start, self.entries_per_answer)
            ext = {"group": GROUP, "node": "n", "role": self.role, "term": "3", "commit": str(self.log.end)}
            return make_response(request, 0, ext=ext | {"start": str(start), "end": str(end)}, body=data)
        plan = {
            "version": 1,
            "group": GROUP,
            "ordinal": 0,
            "firstPosition": self.first_position,
            "commit": self.log.end,
            "cuts": [cut for cut in self.log.cuts if cut["position"] >= self.first_position],
            "topics": [
                {"name": name, "created": 0, "queues": [{"id": 0, "first": 0, "next": end}]}
                for name, end in self.log.offsets.items()
            ],
        }
        return make_response(request, 0, body=json.dumps(plan).encode())


@contextmanager
def served(*nodes: FakeNode) -> Iterator[str]:
    """Serve nodes, the first as the group's registered leader. Yield the name server's address."""
    listeners: list[socket.socket] = []
    stopped = threading.Event()

    def listen(answer: Callable[[RemotingCommand], Answer]) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        threading.Thread(target=accept, args=(listener, answer), daemon=True).start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    def accept(listener: socket.socket, answer: Callable[[RemotingCommand], Answer]) -> None:
        while not stopped.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=converse, args=(connection, answer), daemon=True).start()

    def converse(connection: socket.socket, answer: Callable[[RemotingCommand], Answer]) -> None:
        decoder = FrameDecoder()
        # A reader that ends or turns to another node resets its connection.
        with connection, suppress(ConnectionError):
            while data := connection.recv(65_536):
                decoder.receive_data(data)
                while (frame := decoder.next_frame()) is not None:
                    response = answer(decode_command(frame))
                    if response is None:
                        return
                    pieces = (encode_command(response),) if isinstance(response, RemotingCommand) else response
                    for piece in pieces:
                        connection.sendall(piece)

    addresses = {str(number): listen(node.answer) for number, node in enumerate(nodes)}
    table = {GROUP: {"brokerName": GROUP, "cluster": "c", "brokerAddrs": addresses}}
    body = json.dumps({"brokerAddrTable": table, "clusterAddrTable": {}}).encode()
    try:
        yield listen(lambda request: make_response(request, 0, body=body))
    finally:
        stopped.set()
        for listener in listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
