"""Known bugs of our client, of message traces and of broadcasting: what nodes do cannot break their promises.

They are applied in the process that sends and consumes; the checks `traced` and `broadcast` convict them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from dledger_client import tracing
from dledger_client.messages import MessageQueue
from dledger_client.offsets import FileOffsetStore
from dledger_client.progress import QueueProgress
from dledger_client.results import SendResult
from dledger_client.wire import Outgoing
from dledger_remoting.ids import offset_message_id, parse_offset_message_id
from dledger_remoting.traces import SendTrace
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE: Final = Catalogue("client")

_real_traces = tracing._traces_of_send  # noqa: SLF001 - what is patched is what is private
_real_open = FileOffsetStore.__init__


def _tell_of_the_byte_behind(
    outgoing: Outgoing, group: str, results: list[SendResult], begun_ms: int, cost_ms: int
) -> list[SendTrace]:
    traces = _real_traces(outgoing, group, results, begun_ms, cost_ms)
    return [
        msgspec.structs.replace(trace, offset_message_id=_behind(trace.offset_message_id)) if results else trace
        for trace in traces
    ]


def _behind(message_id: str) -> str:
    host, position = parse_offset_message_id(message_id)
    return offset_message_id(host, position + 1)


CATALOGUE.add(
    "trace-of-another-place",
    "the trace of a send names the place that its answer names",
    (tracing, "_traces_of_send", _tell_of_the_byte_behind),
)


def _call_all_stored(
    outgoing: Outgoing, group: str, results: list[SendResult], begun_ms: int, cost_ms: int
) -> list[SendTrace]:
    traces = _real_traces(outgoing, group, results, begun_ms, cost_ms)
    return [msgspec.structs.replace(trace, succeeded=True) for trace in traces]


CATALOGUE.add(
    "failed-send-traced-as-stored",
    "the trace of a send that failed says so",
    (tracing, "_traces_of_send", _call_all_stored),
)


def _know_no_answer(
    outgoing: Outgoing, group: str, _results: list[SendResult], begun_ms: int, cost_ms: int
) -> list[SendTrace]:
    return _real_traces(outgoing, group, [], begun_ms, cost_ms)


CATALOGUE.add(
    "traced-before-its-answer",
    "the trace of a send waits for its answer",
    (tracing, "_traces_of_send", _know_no_answer),
)


def _count_what_is_buffered(self: QueueProgress) -> int:
    return self.next_offset


CATALOGUE.add(
    "file-written-before-handling",
    "the file of a member that broadcasts counts no message that it has not done with",
    (QueueProgress, "committable", property(_count_what_is_buffered)),
)


def _open_one_for_all(self: FileOffsetStore, path: Path) -> None:
    _real_open(self, path.with_name("of-the-group.json"))


CATALOGUE.add(
    "one-file-for-all-members",
    "each member that broadcasts goes on from a file of its own",
    (FileOffsetStore, "__init__", _open_one_for_all),
)


async def _find_nothing(_self: FileOffsetStore, _queue: MessageQueue, _deadline: float) -> int | None:
    return None


CATALOGUE.add(
    "file-ignored-at-a-return",
    "a member that broadcasts and comes back goes on where its file says",
    (FileOffsetStore, "load", _find_nothing),
)
