"""Known bugs of our client in message traces and in broadcasting. No bug of a node could break these promises.

They are applied in the process that sends and consumes; the checks `traced` and `broadcast` convict them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from dledger_client.consuming.offsets import FileOffsetStore
from dledger_client.consuming.progress import QueueProgress
from dledger_client.messages import MessageQueue
from dledger_client.results import SendResult
from dledger_client.sending import tracing
from dledger_client.sending.wire import Outgoing
from dledger_remoting.ids import offset_message_id, parse_offset_message_id
from dledger_remoting.traces import SendTrace
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE: Final = Catalogue("client")

_real_traces = tracing.traces_of_send
_real_open = FileOffsetStore.__init__


def _trace_next_byte(
    outgoing: Outgoing, group: str, results: list[SendResult], begun_ms: int, cost_ms: int
) -> list[SendTrace]:
    traces = _real_traces(outgoing, group, results, begun_ms, cost_ms)
    return [
        msgspec.structs.replace(trace, offset_message_id=_shift_message_id(trace.offset_message_id))
        if results
        else trace
        for trace in traces
    ]


def _shift_message_id(message_id: str) -> str:
    host, position = parse_offset_message_id(message_id)
    return offset_message_id(host, position + 1)


CATALOGUE.add(
    "trace-of-another-place",
    "the trace of a send names the same place as the answer",
    (tracing, "traces_of_send", _trace_next_byte),
)


def _trace_all_as_stored(
    outgoing: Outgoing, group: str, results: list[SendResult], begun_ms: int, cost_ms: int
) -> list[SendTrace]:
    traces = _real_traces(outgoing, group, results, begun_ms, cost_ms)
    return [msgspec.structs.replace(trace, succeeded=True) for trace in traces]


CATALOGUE.add(
    "failed-send-traced-as-stored",
    "the trace of a failed send says that the send failed",
    (tracing, "traces_of_send", _trace_all_as_stored),
)


def _trace_without_results(
    outgoing: Outgoing, group: str, _results: list[SendResult], begun_ms: int, cost_ms: int
) -> list[SendTrace]:
    return _real_traces(outgoing, group, [], begun_ms, cost_ms)


CATALOGUE.add(
    "traced-before-its-answer",
    "the trace of a send waits for the answer",
    (tracing, "traces_of_send", _trace_without_results),
)


def _commit_buffered(self: QueueProgress) -> int:
    return self.next_offset


CATALOGUE.add(
    "file-written-before-handling",
    "the file of a broadcasting member counts only messages that are done",
    (QueueProgress, "committable", property(_commit_buffered)),
)


def _open_shared_file(self: FileOffsetStore, path: Path) -> None:
    _real_open(self, path.with_name("of-the-group.json"))


CATALOGUE.add(
    "one-file-for-all-members",
    "each broadcasting member goes on from its own file",
    (FileOffsetStore, "__init__", _open_shared_file),
)


async def _load_no_offset(_self: FileOffsetStore, _queue: MessageQueue, _deadline: float) -> int | None:
    return None


CATALOGUE.add(
    "file-ignored-at-a-return",
    "a broadcasting member that comes back goes on at the place in its file",
    (FileOffsetStore, "load", _load_no_offset),
)
