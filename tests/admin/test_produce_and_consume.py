"""Lines that become messages, and messages that become lines: produce and consume."""

import asyncio
import json
import os
import signal
import sys
import threading
from typing import ClassVar

import msgspec
import pytest
from click.testing import CliRunner
from command_fakes import QUEUE, FakeAdmin, dledger, message, use_fakes

from dledger_admin.cli import main
from dledger_admin.commands import client_calls, consume, produce
from dledger_admin.commands import message as message_commands
from dledger_admin.commands.message_format import formatter
from dledger_admin.errors import AdminError
from dledger_client import (
    ConnectionLostError,
    GroupMember,
    InvalidArgumentError,
    MessageQueue,
    NoRouteError,
    NotFoundError,
    QueueStatus,
    RefusedError,
    SendError,
    SendResult,
    Sql,
    TopicRoute,
)
from dledger_client.outgoing import OutgoingEncoder
from dledger_remoting.errors import (
    GroupNotExist,
    ServiceNotAvailable,
)
from dledger_remoting.route import BrokerData


@pytest.fixture(autouse=True)
def cluster(monkeypatch):
    use_fakes(monkeypatch)


@pytest.mark.parametrize(
    ("pattern", "shown"),
    [
        (r"%s\n", b"hello\n"),
        (r"%t/%b/%p@%o %T %S", b"orders/broker-a/1@7 2000 5"),
        (r"%k|%g|%h|%i %%\t", b"k1 k2|a|p=v|UNIQUE %\t"),
        ("plain", b"plain"),
    ],
)
def test_format_strings_are_kcats(pattern, shown):
    assert formatter(pattern)(message()) == shown


@pytest.mark.parametrize("pattern", ["%x", "%", "a\\q"])
def test_an_unknown_token_is_named_with_the_known_ones(pattern):
    with pytest.raises(AdminError, match=r"means nothing; known are %s body"):
        formatter(pattern)


class FakeProducer:
    """Remembers what it is asked to send."""

    sent: ClassVar[list[tuple]] = []
    delays: ClassVar[list[tuple]] = []

    def __init__(self, namesrv, *, timeout=None):
        self.sent.clear()
        self.delays.clear()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        return None

    async def send_batch(self, topic, messages, *, ordering_key=None, queue=None):
        self.sent.extend((one.body, one.key, one.tags, one.properties, one.ordering_key) for one in messages)
        self.delays.extend((one.delay_s, one.deliver_at) for one in messages)
        return [
            SendResult("K", "ID", topic, "broker-a", 0, 0, recall_handle="H" if one.delay_s else None)
            for one in messages
        ]

    async def recall(self, topic, handle):
        assert (topic, handle) == ("T", "H")
        return "K1"


@pytest.fixture
def starting(monkeypatch):
    """A cluster that somebody has just started: a follower registers, then a leader, then its topics."""
    follower, leader = (BrokerData("c", "broker-a", {number: "127.0.0.1:1"}) for number in (2, 0))
    stages = [{}, {}, {"broker-a": follower}, {"broker-a": leader}]

    async def broker_groups(self):
        return stages.pop(0) if stages else {"broker-a": leader}

    async def topic_route(self, topic):
        if stages or topic != "broker-a":
            raise NoRouteError(topic, "no registered broker has it")
        return TopicRoute(topic, (QUEUE,), (QUEUE,))

    monkeypatch.setattr(FakeAdmin, "broker_groups", broker_groups)
    monkeypatch.setattr(FakeAdmin, "topic_route", topic_route)
    monkeypatch.setattr(client_calls, "_PAUSE_SECONDS", 0)
    return stages


def test_produce_right_after_the_start_waits_for_a_leader_and_says_so(monkeypatch, starting):
    monkeypatch.setattr(produce, "Producer", FakeProducer)
    result = CliRunner().invoke(main, ["produce", "--topic", "T", "--namesrv", "n:9"], input="one\n")
    assert (result.exit_code, result.stdout) == (0, "1 messages, 3 bytes to T\n")
    assert result.stderr == (
        "waiting until a broker registers with name server n:9\n"
        "waiting until a leader of broker-a registers with name server n:9\n"
    )
    assert not starting


def test_no_leader_until_the_deadline_is_an_error_that_says_what_was_missing(monkeypatch):
    async def broker_groups(self):
        return {}

    monkeypatch.setattr(FakeAdmin, "broker_groups", broker_groups)
    words = ("produce", "--topic", "T", "--namesrv", "n:9", "--timeout", "0.01")
    result = CliRunner().invoke(main, words, input="one\n")
    assert result.exit_code == 1
    assert "Error: a broker did not register with name server n:9 within 0.01 s" in result.stderr


def test_each_line_is_a_message(monkeypatch):
    monkeypatch.setattr(produce, "Producer", FakeProducer)
    arguments = ("produce", "--topic", "T", "--tag", "x", "--property", "a=b=c", "-o", "json")
    output = dledger(*arguments, stdin="one\n\ntwo without end")
    assert json.loads(output) == {"topic": "T", "messages": 3, "body_bytes": 18}
    assert FakeProducer.sent == [(body, None, "x", {"a": "b=c"}, None) for body in (b"one", b"", b"two without end")]


def test_a_standard_input_that_does_not_block_is_read_to_its_end(monkeypatch, capsys):
    reading, writing = os.pipe()
    os.set_blocking(reading, False)

    def write_the_rest():
        os.write(writing, b"3\n")
        os.close(writing)

    class SlowlyFed(FakeProducer):
        async def send_batch(self, topic, messages, *, ordering_key=None, queue=None):
            results = await super().send_batch(topic, messages)
            if len(self.sent) == 2:
                threading.Timer(0.1, write_the_rest).start()
            return results

    monkeypatch.setattr(produce, "Producer", SlowlyFed)
    os.write(writing, b"1\n2\n")
    with open(reading) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        main(["produce", "--topic", "T"], standalone_mode=False)
    assert capsys.readouterr().out.startswith("3 messages")
    assert [one[0] for one in SlowlyFed.sent] == [b"1", b"2", b"3"]


class FailingProducer(FakeProducer):
    """Refuses what is no message, and breaks down at a body."""

    async def send_batch(self, topic, messages, *, ordering_key=None, queue=None):
        OutgoingEncoder().encode_batches(topic, messages)
        bodies = [one.body for one in messages]
        if b"break" in bodies:
            stored = [SendResult("", "", topic, "broker-a", 0, 0)] * bodies.index(b"break")
            raise SendError(topic, 1, "unknown", ConnectionLostError("n:1", "closed"), stored)
        return []


@pytest.mark.parametrize(
    ("options", "stdin", "said"),
    [
        ((), "1\n2\nbreak\n4\n", "lines 3 to 4: message to 'T' failed"),
        (("--ordered",), "1\n2\nbreak\n4\n", "lines 1 to 4: message to 'T' failed"),
        ((), "break\n", "line 1: message to 'T' failed"),
        (("--key-delimiter", ":"), "1\n2\n\x01:3\n", "line 3: property 'KEYS'"),
    ],
)
def test_an_error_says_which_lines_it_is_about(monkeypatch, options, stdin, said):
    monkeypatch.setattr(produce, "Producer", FailingProducer)
    failed = CliRunner().invoke(main, ["produce", "--topic", "T", *options], input=stdin)
    assert failed.exit_code == 1
    assert f"Error: {said}" in failed.output
    stored = "the first 2 lines are stored" if said.startswith("lines 3") else "no line is known to be stored"
    assert failed.output.endswith(f"; {stored}\n")


def test_keys_come_from_the_line_and_order_it(monkeypatch):
    monkeypatch.setattr(produce, "Producer", FakeProducer)
    dledger("produce", "--topic", "T", "--key-delimiter", ":", "--ordered", stdin="a:1\nb:2\na:3\n")
    assert [(body, key, order) for body, key, _, _, order in FakeProducer.sent] == [
        (b"1", "a", "a"),
        (b"2", "b", "b"),
        (b"3", "a", "a"),
    ]


def test_all_lines_may_have_one_ordering_key(monkeypatch):
    monkeypatch.setattr(produce, "Producer", FakeProducer)
    dledger("produce", "--topic", "T", "--key-delimiter", ":", "--ordering-key", "k", stdin="a:1\nb:2\n")
    assert [(body, key, order) for body, key, _, _, order in FakeProducer.sent] == [(b"1", "a", "k"), (b"2", "b", "k")]


def test_lines_for_later_are_shown_with_what_takes_them_back(monkeypatch):
    monkeypatch.setattr(produce, "Producer", FakeProducer)
    assert dledger("produce", "--topic", "T", "--delay", "1.5", stdin="1\n2\n") == ("2 messages, 2 bytes to T\nH\nH\n")
    assert FakeProducer.delays == [(1.5, None)] * 2
    output = dledger("produce", "--topic", "T", "--delay", "1.5", "-o", "json", stdin="1\n")
    assert json.loads(output) == {"topic": "T", "messages": 1, "body_bytes": 1, "recall_handles": ["H"]}
    dledger("produce", "--topic", "T", "--deliver-at", "2030-01-02T03:04:05Z", stdin="1\n")
    assert FakeProducer.delays == [(None, 1_893_553_445_000)]
    monkeypatch.setattr(message_commands, "Producer", FakeProducer)
    assert dledger("message", "recall", "H", "--topic", "T") == "K1 is not delivered to T\n"


@pytest.mark.parametrize(
    "words",
    [
        ("--delay", "1", "--deliver-at", "2030-01-02"),
        ("--ordering-key", "k", "--ordered"),
        ("--ordering-key", "k", "--queue", "1"),
        ("--delay", "-1"),
        ("--deliver-at", "tomorrow"),
    ],
)
def test_what_contradicts_itself_is_refused_before_a_line_is_read(words):
    refused = CliRunner().invoke(main, ["produce", "--topic", "T", *words], input="1\n")
    assert refused.exit_code == 2
    assert words[0] in refused.stderr


@pytest.mark.parametrize(
    ("read_bytes", "stored", "said"), [(1000, [], ""), (4, [b"1"], "; the first 1 lines are stored")]
)
def test_keys_that_are_not_utf8_are_refused_and_none_becomes_another(monkeypatch, read_bytes, stored, said):
    monkeypatch.setattr(produce, "Producer", FakeProducer)
    monkeypatch.setattr(produce, "_READ_BYTES", read_bytes)
    stdin = b"a:1\ncaf\xe9:2\ncaf\xe8:3\n"
    refused = CliRunner().invoke(main, ["produce", "--topic", "T", "--key-delimiter", ":"], input=stdin)
    assert refused.exit_code == 1
    assert refused.output == f"Error: line 2: the key b'caf\\xe9' is not UTF-8{said}\n"
    assert [one[0] for one in FakeProducer.sent] == stored


class Blocks:
    """A stream that gives out its blocks one by one."""

    def __init__(self, *blocks: bytes) -> None:
        self._blocks = list(blocks)

    def read1(self, size: int) -> bytes:
        return self._blocks.pop(0) if self._blocks else b""


async def test_lines_are_cut_right_wherever_the_stream_breaks():
    reader = produce.LineReader(Blocks(b"on", b"e\ntw", b"o", b"\n\n", b"end").read1)
    assert [line async for lines in reader.batches() for line in lines] == [b"one", b"two", b"", b"end"]


async def test_a_line_that_no_message_can_hold_is_refused_before_it_has_come_to_its_end():
    came = []

    def read(size):
        came.append(size)
        return b"one\ntwo\n" if len(came) == 1 else bytes(size) if len(came) < 1000 else b""

    reader = produce.LineReader(read)
    batches = reader.batches()
    assert await anext(batches) == [b"one", b"two"]
    with pytest.raises(AdminError, match=r"line 3 is longer than 4194304 bytes, more than a message holds"):
        await anext(batches)
    assert sum(came) <= 5 << 20


def test_a_program_that_ends_does_not_wait_for_input_that_never_comes():
    came = threading.Event()
    rescue = threading.Timer(5, came.set)
    rescue.start()

    def read(_size):
        came.wait()
        return b""

    async def wait_for_a_line():
        async with asyncio.timeout(0.01):
            await anext(produce.LineReader(read).batches())

    with pytest.raises(TimeoutError):
        asyncio.run(wait_for_a_line())
    ended_alone = not came.is_set()
    rescue.cancel()
    came.set()
    assert ended_alone


FIRST_MS = 1_700_000_000_000
"""When the first message was stored; another followed each millisecond."""


class FakePullConsumer:
    """A queue that is read three messages at a time and never ends; its end was 10 when somebody asked."""

    committed: ClassVar[list[int]] = []

    filters: ClassVar[list[object]] = []

    def __init__(self, namesrv, group, *, filter="*"):  # noqa: A002
        self.filters[:] = [filter]
        self.positions = {}
        self.committed.clear()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        return None

    async def queues(self, topic):
        return (QUEUE,)

    async def assign(self, queues):
        self.positions = {queue: self.positions.get(queue, 3) for queue in queues}

    def seek(self, queue, offset):
        self.positions = {**self.positions, queue: offset}

    async def seek_to_begin(self):
        self.positions = dict.fromkeys(self.positions, 0)

    async def seek_to_end(self):
        self.positions = dict.fromkeys(self.positions, 10)

    async def seek_to_time(self, timestamp_ms):
        self.positions = dict.fromkeys(self.positions, timestamp_ms - FIRST_MS)

    async def poll(self, limit, timeout):
        first = self.positions[QUEUE]
        self.positions[QUEUE] = first + min(limit, 3)
        return [message(b"%d" % offset, offset) for offset in range(first, self.positions[QUEUE])]

    async def commit(self):
        self.committed.append(self.positions[QUEUE])


def test_consume_ends_at_what_was_the_end_when_it_began(monkeypatch):
    monkeypatch.setattr(consume, "PullConsumer", FakePullConsumer)
    shown = dledger("consume", "--topic", "orders", "--from-beginning", "--exit-eof")
    assert shown.split() == [str(offset) for offset in range(10)]
    assert FakePullConsumer.committed == []


@pytest.mark.parametrize(
    ("words", "offsets"),
    [
        (("--to", "end"), range(10)),
        (("--from", "beginning", "--to", "4"), range(4)),
        (("--from", "7", "--to", "end"), range(7, 10)),
        (("--from", "-2", "--to", "end"), range(8, 10)),
        (("--from", str(FIRST_MS + 5), "--to", "-1"), range(5, 9)),
        (("--from", "12", "-n", "2"), range(12, 14)),
        (("--from", "5", "--to", "5"), range(0)),
        (("--from", "8", "--to", "12"), range(8, 12)),
        (("--from", "3", "-n", "4"), range(3, 7)),
        (("--queue", "broker-a/1", "--to", "2"), range(2)),
    ],
)
def test_consume_begins_and_ends_where_it_is_told_to(monkeypatch, words, offsets):
    monkeypatch.setattr(consume, "PullConsumer", FakePullConsumer)
    assert dledger("consume", "--topic", "orders", *words).split() == [str(offset) for offset in offsets]


@pytest.mark.parametrize(("committed", "first"), [(8, 3), (None, 6)])
def test_a_group_begins_where_it_is_told_to_only_if_it_is_new(monkeypatch, committed, first):
    async def offsets(self, group, topic):
        return [QueueStatus(QUEUE, 0, 10, committed)]

    monkeypatch.setattr(FakeAdmin, "offsets", offsets, raising=False)
    monkeypatch.setattr(consume, "PullConsumer", FakePullConsumer)
    words = ("--group", "billing", "--from", str(FIRST_MS + 6), "--to", "end")
    assert dledger("consume", "--topic", "orders", *words).split() == [str(offset) for offset in range(first, 10)]
    assert FakePullConsumer.committed[-1] == 10


def test_keys_are_shown_as_produce_reads_them(monkeypatch):
    monkeypatch.setattr(consume, "PullConsumer", FakePullConsumer)
    assert dledger("consume", "--topic", "orders", "-n", "1", "-k") == "k1 k2\t10\n"
    assert dledger("consume", "--topic", "orders", "-n", "1", "--key-delimiter", ": ") == "k1 k2: 10\n"
    monkeypatch.setattr(produce, "Producer", FakeProducer)
    dledger("produce", "--topic", "T", "-k", stdin="k1 k2\t10\n\tno key\nneither\n")
    assert [one[:2] for one in FakeProducer.sent] == [(b"10", "k1 k2"), (b"no key", None), (b"neither", None)]


def test_lines_are_read_by_a_format(monkeypatch):
    monkeypatch.setattr(produce, "Producer", FakeProducer)
    dledger("produce", "--topic", "T", "-f", "[%g] %k: %s\\n", stdin="[a] k: b: c\n[] : \n")
    assert [one[:3] for one in FakeProducer.sent] == [(b"b: c", "k", "a"), (b"", None, None)]
    refused = CliRunner().invoke(main, ["produce", "--topic", "T", "-f", "%k: %s"], input="a: b\nc\n")
    assert refused.exit_code == 1
    assert "Error: line 2 does not have the form '%k: %s': b'c'" in refused.stderr


@pytest.mark.parametrize("pattern", ["%k", "%k%s", "%s %s", "%s %o", "%s\\n%k", "%s %h"])
def test_a_format_by_which_no_line_can_be_read_is_refused(pattern):
    refused = CliRunner().invoke(main, ["produce", "--topic", "T", "-f", pattern], input="")
    assert refused.exit_code == 2
    assert "lines are read by %s body, and %k keys and %g tag if they are there" in refused.stderr


def test_produce_sends_as_many_lines_as_it_is_told_to_the_queue_it_is_told(monkeypatch):
    queues = []

    class ToQueue(FakeProducer):
        async def queues(self, topic):
            return (QUEUE, QUEUE._replace(broker_group="broker-b"), QUEUE._replace(queue_id=0))

        async def send_batch(self, topic, messages, *, ordering_key=None, queue=None):
            queues.append(queue)
            return await super().send_batch(topic, messages)

    monkeypatch.setattr(produce, "Producer", ToQueue)
    monkeypatch.setattr(produce, "_READ_BYTES", 4)
    words = ("produce", "--topic", "orders", "-n", "3", "--queue")
    assert dledger(*words, "broker-a/1", stdin="1\n2\n3\n4\n5\n").startswith("3 messages")
    assert [one[0] for one in ToQueue.sent] == [b"1", b"2", b"3"]
    assert set(queues) == {QUEUE}
    refused = CliRunner().invoke(main, [*words, "1"], input="1\n")
    assert (refused.exit_code, refused.stderr) == (1, "Error: --queue 1 is one of broker-a/1, broker-b/1: say which\n")


def test_a_topic_that_cannot_be_read_is_told_how_it_can(monkeypatch):
    class Unreadable(FakePullConsumer):
        async def queues(self, topic):
            return ()

        async def poll(self, limit, timeout):
            raise InvalidArgumentError("no queue is assigned")

    monkeypatch.setattr(consume, "PullConsumer", Unreadable)
    result = CliRunner().invoke(main, ["consume", "--topic", "orders", "--exit-eof"])
    assert result.exit_code == 1
    assert "orders has no readable queues: `dledger topic create orders --permission read-write`" in result.output


def test_consume_filters_by_tags_or_in_sql(monkeypatch):
    monkeypatch.setattr(consume, "PullConsumer", FakePullConsumer)
    read = ("consume", "--topic", "orders", "--from-beginning", "--exit-eof")
    dledger(*read, "--tag", "a || b")
    assert FakePullConsumer.filters == ["a || b"]
    dledger(*read, "--sql", "amount > 100")
    assert FakePullConsumer.filters == [Sql("amount > 100")]
    both = CliRunner().invoke(main, [*read, "--sql", "amount > 100", "--tag", "a"])
    assert both.exit_code == 2
    assert "--tag and --sql filter each alone" in both.output


def test_consume_commits_what_it_printed_for_a_group(monkeypatch):
    monkeypatch.setattr(consume, "PullConsumer", FakePullConsumer)
    lines = dledger("consume", "--topic", "orders", "--group", "billing", "--exit-eof", "-o", "json").splitlines()
    assert [msgspec.json.decode(line)["queue_offset"] for line in lines] == list(range(3, 10))
    assert FakePullConsumer.committed == [6, 9, 10]


def test_consume_prints_on_while_a_commit_is_under_way_and_has_all_committed_in_the_end(monkeypatch):
    class Slow(FakePullConsumer):
        polls = 0
        polled = asyncio.Condition()

        async def poll(self, limit, timeout):
            messages = await super().poll(limit, timeout)
            async with self.polled:
                self.polls += 1
                self.polled.notify_all()
            return messages

        async def commit(self):
            taken = self.positions[QUEUE]
            async with asyncio.timeout(10), self.polled:
                await self.polled.wait_for(lambda: self.polls >= 3)
            self.committed.append(taken)

    monkeypatch.setattr(consume, "PullConsumer", Slow)
    lines = dledger("consume", "--topic", "orders", "--group", "billing", "--exit-eof").splitlines()
    assert len(lines) == 7
    assert Slow.committed == [6, 10]


def test_consume_to_an_end_does_not_commit_for_a_group_with_members(monkeypatch):
    monkeypatch.setattr(consume, "PullConsumer", FakePullConsumer)
    monkeypatch.setattr(FakeAdmin, "members_of_billing", [GroupMember("a", "h:1", "JAVA", {}, False)])
    refused = CliRunner().invoke(main, ["consume", "--topic", "orders", "--group", "billing", "--to", "end"])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "consumer group 'billing' has 1 member, stop them first: a (h:1)" in refused.stderr


def test_consume_without_a_group_reads_queues_that_are_added_later(monkeypatch):
    added = MessageQueue("orders", "broker-b", 0)

    class Growing(FakePullConsumer):
        polls = 0

        async def queues(self, topic):
            return (QUEUE, added) if self.polls else (QUEUE,)

        async def assign(self, queues):
            self.positions = {**dict.fromkeys(queues, 0), **self.positions}

        async def poll(self, limit, timeout):
            self.polls += 1
            return [message(str(queue.broker_group).encode(), 10) for queue in sorted(self.positions)][:limit]

    monkeypatch.setattr(consume, "PullConsumer", Growing)
    assert dledger("consume", "--topic", "orders", "--count", "3").split() == ["broker-a", "broker-a", "broker-b"]


def test_consume_ends_after_the_messages_asked_for(monkeypatch):
    monkeypatch.setattr(consume, "PullConsumer", FakePullConsumer)
    assert dledger("consume", "--topic", "orders", "--count", "2", "--format", "%o ") == "10 11 "


@pytest.mark.parametrize(("number", "early"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize(("options", "bounded"), [((), False), (("--exit-eof",), True), (("--count", "100"), True)])
def test_consume_that_a_signal_ends_says_whether_it_came_to_its_end(monkeypatch, number, early, options, bounded):
    class Interrupted(FakePullConsumer):
        async def poll(self, limit, timeout):
            signal.raise_signal(number)
            await asyncio.sleep(10)

    monkeypatch.setattr(consume, "PullConsumer", Interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    result = CliRunner().invoke(main, ["consume", "--topic", "orders", "--from-beginning", *options])
    signal.signal(signal.SIGINT, before)
    assert (result.exit_code, result.output) == (early if bounded else 0, "")


class RefusedGroup(FakePullConsumer):
    """A member of a group that brokers do not make: messages come once it is told so."""

    refusal: ClassVar[Exception] = RefusedError(ServiceNotAvailable("the disk is full, nothing was stored: no space"))

    def __init__(self, namesrv, group, *, timeout):
        super().__init__(namesrv, group, filter="*")

    async def poll(self, limit, timeout):
        raise self.refusal


class FakePushConsumer:
    """A member of a group that gets three messages."""

    def __init__(self, namesrv, group, subscriptions, **options):
        self._left = [message(b"%d" % number, number) for number in range(3)]

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        return None

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop(0)


def test_a_group_that_cannot_be_made_is_told_of_once_and_waited_for(monkeypatch):
    monkeypatch.setattr(consume, "PullConsumer", RefusedGroup)
    monkeypatch.setattr(consume, "PushConsumer", FakePushConsumer)
    result = CliRunner().invoke(main, ["consume", "--topic", "orders", "--group", "new"])
    assert (result.exit_code, result.stdout) == (0, "0\n1\n2\n")
    assert result.stderr == (
        "consumer group 'new' cannot be made yet: the disk is full, nothing was stored: no space; "
        "free space on the disks of its brokers; waiting until it can\n"
    )


def test_a_group_that_brokers_never_make_ends_consume_with_what_to_do(monkeypatch):
    monkeypatch.setattr(RefusedGroup, "refusal", NotFoundError(GroupNotExist("create it first")))
    monkeypatch.setattr(consume, "PullConsumer", RefusedGroup)
    result = CliRunner().invoke(main, ["consume", "--topic", "orders", "--group", "new"])
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: consumer group 'new' does not exist, and brokers make none: `dledger group create new`\n"
    )


def test_a_group_that_exists_is_joined_at_once(monkeypatch):
    monkeypatch.setattr(consume, "PullConsumer", RefusedGroup)
    monkeypatch.setattr(consume, "PushConsumer", FakePushConsumer)
    assert dledger("consume", "--topic", "orders", "--group", "billing", "--count", "2").split() == ["0", "1"]
