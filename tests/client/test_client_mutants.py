"""The checks of chaos runs convict each known bug of traces and of broadcasting that is put into the client.

A story on a fake cluster is recorded in the format of the workloads `filtered` and `broadcast`.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest
from client_fakes import fake_cluster, until

from dledger_chaos.mutants.clients import CATALOGUE
from dledger_chaos.workloads.payload import encode_payload
from dledger_chaos.workloads.records import Stored, Traced, position_of, seen_of
from dledger_client import Producer, PushConsumer, SendError
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import make_response
from dledger_remoting.compression import decompress
from dledger_remoting.traces import decode_traces
from tests.chaos.histories import History, verdict

TRACES = ["trace-of-another-place", "failed-send-traced-as-stored", "traced-before-its-answer"]
BROADCAST = ["file-written-before-handling", "one-file-for-all-members", "file-ignored-at-a-return"]
QUEUE = "T/broker-a/0"
PAGE = Path(__file__).parents[2] / "docs" / "proof" / "known-bugs.md"


def the_bug(name):
    return CATALOGUE[name].applied() if name else nullcontext()


async def traced_sends():
    """Send three messages, of which the second fails, and record their traces."""
    history = History("filtered")
    async with fake_cluster(topics={"T": 1, "traces": 1}) as cluster:
        async with Producer(cluster.namesrv, trace="traces") as producer:
            for number in range(1, 4):
                value = f"filtered.producer:{number}"
                for node in cluster.group.nodes:
                    node.on = {RequestCode.SEND_MESSAGE_V2: refuse} if number == 2 else {}
                try:
                    sent = await producer.send("T", encode_payload(value), key=value)
                except SendError as error:
                    history.add("send", "T", value, "fail", error=str(error))
                    for node in cluster.group.nodes:
                        node.on = {}
                else:
                    place = Stored(QUEUE, sent.queue_offset, position_of(sent.offset_message_id))
                    history.add("send", "T", value, answer=place)
        for record in cluster.group.queues["traces", 0]:
            for trace in decode_traces(decompress(record.body, record.sys_flag)).traces:
                position = position_of(trace.offset_message_id) if trace.succeeded else -1
                history.add("traced", trace.keys, msgspec.to_builtins(Traced(trace.succeeded, position)))
    return history.add("read-traces", "traces", None)


def refuse(command):
    return make_response(command, ResponseCode.MESSAGE_ILLEGAL, "the body is too long")


class Broadcast:
    """Queue with members that consume it, and the history of what they have seen."""

    def __init__(self, cluster, folder):
        self.history = History("broadcast")
        self.values = []
        self._cluster = cluster
        self._folder = folder

    def send(self, count):
        """Store messages and record them as acknowledged."""
        for _ in range(count):
            self.history.send(self._store(), len(self.values) - 1, QUEUE)

    def _store(self):
        value = f"broadcast.producer:{len(self.values) + 1}"
        self.values.append(value)
        self._cluster.group.store("T", 0, encode_payload(value))
        return value

    async def take(self, name, done_with=None, **options):
        """Run a member that finishes everything up to an offset and dies at the next message.

        Without `done_with` it runs up to a message that is sent after its start. That send has an unknown outcome, so
        no other member must get the message. Unfinished messages are not recorded.
        """
        path = self._folder / f"{name}.json"
        async with PushConsumer(
            self._cluster.namesrv, "CG", "T", broadcast=True, offset_file=path, auto_ack=False, **options
        ) as consumer:
            await until(lambda: any(one.progress is not None for one in consumer._running.assignments.fetchers()))
            dies_at = None if done_with is None else done_with + 1
            if done_with is None:
                done_with = len(self.values)
                self.history.send(self._store())
            async for message in consumer:
                if message.queue_offset == dies_at:
                    return
                self.history.add("deliver", QUEUE, seen_of(message), process=name)
                message.ack()
                if dies_at is None and message.queue_offset == done_with:
                    return


async def broadcast_messages(folder):
    """Run a member that dies over a message, returns after further sends, and a second one that starts late."""
    async with fake_cluster(topics={"T": 1}) as cluster:
        story = Broadcast(cluster, folder)
        story.send(5)
        await story.take("member-0", 1, start_from="first")
        story.send(2)
        await story.take("member-0", start_from="last")
        await story.take("member-1", start_from="first")
    return story.history.end(story.values, queue=QUEUE)


@pytest.mark.parametrize("bug", ["", *TRACES])
async def test_a_trace_that_tells_otherwise_than_the_answer_is_convicted(bug):
    with the_bug(bug):
        history = await traced_sends()
    assert verdict("traced", history.run()).result == ("invalid" if bug else "valid")


@pytest.mark.parametrize("bug", ["", *BROADCAST])
async def test_a_member_that_broadcasts_and_misses_something_is_convicted(bug, tmp_path):
    with the_bug(bug):
        history = await broadcast_messages(tmp_path)
    assert verdict("broadcast", history.run()).result == ("invalid" if bug else "valid")


def test_each_known_bug_of_the_client_has_a_story_and_a_line_of_the_page():
    assert {*TRACES, *BROADCAST} == CATALOGUE.keys()
    lines = PAGE.read_text().splitlines()
    assert [name for name in CATALOGUE if not any(line.startswith(f"| `{name}` |") for line in lines)] == []
