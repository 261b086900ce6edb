"""`produce` turns lines into messages, and `consume` turns messages into lines."""

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
from command_fakes import QUEUE, Entered, FakeAdmin, answering, dledger, message, refused, run, use_fakes

from dledger_admin.cli import main
from dledger_admin.commands import client_calls, consume, dlq, produce
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
from dledger_client.sending.outgoing import OutgoingEncoder
from dledger_remoting.errors import GroupNotExist, ServiceNotAvailable
from dledger_remoting.route import BrokerData


@pytest.fixture(autouse=True)
def cluster(monkeypatch):
    use_fakes(monkeypatch)
    monkeypatch.setattr(produce, "Producer", FakeProducer)
    monkeypatch.setattr(consume, "PullConsumer", FakePullConsumer)
    monkeypatch.setattr(consume, "PushConsumer", FakePushConsumer)


@pytest.mark.parametrize(
    ("pattern", "shown"),
    [
        (r"%s\n", b"hello\n"),
        (r"%t/%b/%p@%o %T %S", b"orders/broker-a/1@7 2000 5"),
        (r"%k|%g|%h|%i %%\t", b"k1 k2|a|p=v|UNIQUE %\t"),
        ("plain", b"plain"),
    ],
)
def test_format_strings_follow_kcat(pattern, shown):
    assert formatter(pattern)(message()) == shown


@pytest.mark.parametrize("pattern", ["%x", "%", "a\\q"])
def test_an_unknown_token_is_named_with_the_known_ones(pattern):
    with pytest.raises(AdminError, match=r"means nothing; known are %s body"):
        formatter(pattern)


class FakeProducer(Entered):
    """Producer that records messages."""

    sent: ClassVar[list[tuple]] = []
    delays: ClassVar[list[tuple]] = []

    def __init__(self, namesrv, *, timeout=None):
        self.sent.clear()
        self.delays.clear()

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
    """Return a cluster that is just starting: first a follower registers, then a leader, then its topics."""
    follower, leader = (BrokerData("c", "broker-a", {number: "127.0.0.1:1"}) for number in (2, 0))
    stages = [{}, {}, {"broker-a": follower}, {"broker-a": leader}]

    async def broker_groups(self):
        return stages.pop(0) if stages else {"broker-a": leader}

    async def topic_route(self, topic):
        if stages or topic not in ("broker-a", "T"):
            raise NoRouteError(topic, "no registered broker has it")
        return TopicRoute(topic, (QUEUE,), (QUEUE,))

    monkeypatch.setattr(FakeAdmin, "broker_groups", broker_groups)
    monkeypatch.setattr(FakeAdmin, "topic_route", topic_route)
    monkeypatch.setattr(client_calls, "_PAUSE_SECONDS", 0)
    return stages


def test_produce_right_after_the_start_waits_for_a_leader_and_says_so(starting):
    result = run("produce", "--topic", "T", "--namesrv", "n:9", stdin="one\n")
    assert (result.exit_code, result.stdout) == (0, "1 messages, 3 bytes to T\n")
    assert result.stderr == (
        "waiting until a broker registers with name server n:9\n"
        "waiting until a leader of broker-a registers with name server n:9\n"
    )
    assert not starting


def test_produce_names_the_topic_that_was_probably_meant_when_it_has_made_another(monkeypatch):
    async def topic_route(self, topic):
        if topic == "oders":
            raise NoRouteError(topic, "no registered broker has it")

    monkeypatch.setattr(FakeAdmin, "topic_route", topic_route)
    monkeypatch.setattr(client_calls, "ask_quietly", lambda *_: ["oders", "orders"])
    monkeypatch.setattr(produce, "Producer", FakeProducer)
    for topic, said in (
        ("orders", ""),
        ("oders", "topic 'oders' was not there: its first message made it. Did you mean 'orders'?\n"),
    ):
        result = CliRunner().invoke(main, ["produce", "--topic", topic, "--namesrv", "n:9"], input="one\n")
        assert (result.exit_code, result.stderr) == (0, said)


def test_produce_without_a_leader_fails_at_the_deadline_with_the_reason(monkeypatch):
    monkeypatch.setattr(FakeAdmin, "broker_groups", answering({}))
    error = refused("produce", "--topic", "T", "--namesrv", "n:9", "--timeout", "0.01", stdin="one\n")
    assert "Error: a broker did not register with name server n:9 within 0.01 s" in error


def test_each_line_is_a_message():
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
    """Producer that refuses invalid messages, and breaks down at one body."""

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
    error = refused("produce", "--topic", "T", *options, stdin=stdin)
    assert f"Error: {said}" in error
    stored = "the first 2 lines are stored" if said.startswith("lines 3") else "no line is known to be stored"
    assert error.endswith(f"; {stored}\n")


@pytest.mark.parametrize(("options", "orders"), [(("--ordered",), "aba"), (("--ordering-key", "k"), "kkk")])
def test_produce_takes_the_key_and_the_ordering_key_from_the_line_or_one_ordering_key_for_all(options, orders):
    dledger("produce", "--topic", "T", "--key-delimiter", ":", *options, stdin="a:1\nb:2\na:3\n")
    found = [(body, key, order) for body, key, _, _, order in FakeProducer.sent]
    assert found == list(zip((b"1", b"2", b"3"), "aba", orders, strict=True))


def test_produce_prints_recall_handles_of_delayed_messages(monkeypatch):
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
def test_contradictory_or_invalid_produce_options_are_refused(words):
    assert words[0] in refused("produce", "--topic", "T", *words, code=2, stdin="1\n")


@pytest.mark.parametrize(
    ("read_bytes", "stored", "said"), [(1000, [], ""), (4, [b"1"], "; the first 1 lines are stored")]
)
def test_keys_that_are_not_utf8_are_refused_and_never_altered(monkeypatch, read_bytes, stored, said):
    monkeypatch.setattr(produce, "_READ_BYTES", read_bytes)
    error = refused("produce", "--topic", "T", "--key-delimiter", ":", stdin=b"a:1\ncaf\xe9:2\ncaf\xe8:3\n")
    assert error == f"Error: line 2: the key b'caf\\xe9' is not UTF-8{said}\n"
    assert [one[0] for one in FakeProducer.sent] == stored


class Blocks:
    """Stream that returns its blocks one by one."""

    def __init__(self, *blocks: bytes) -> None:
        self._blocks = list(blocks)

    def read1(self, size: int) -> bytes:
        return self._blocks.pop(0) if self._blocks else b""


async def test_lines_are_cut_right_wherever_the_stream_breaks_and_an_overlong_one_is_refused_before_its_end():
    reader = produce.LineReader(Blocks(b"on", b"e\ntw", b"o", b"\n\n", b"end").read1)
    assert [line async for lines in reader.batches() for line in lines] == [b"one", b"two", b"", b"end"]
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


def test_an_ending_program_does_not_wait_for_its_input():
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
"""Store time of the first message in ms. Each later message follows after one millisecond."""


class FakePullConsumer(Entered):
    """Queue that is read three messages at a time without end. Its end offset is reported as 10."""

    committed: ClassVar[list[int]] = []

    filters: ClassVar[list[object]] = []

    def __init__(self, namesrv, group, *, filter="*", keep_unreadable=True):  # noqa: A002
        assert keep_unreadable
        self.filters[:] = [filter]
        self.positions = {}
        self.committed.clear()

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
        (("--queue", "broker-a/1", "--to", "2"), range(2)),
    ],
)
def test_consume_reads_from_the_given_start_to_the_given_end(words, offsets):
    assert dledger("consume", "--topic", "orders", *words).split() == [str(offset) for offset in offsets]


@pytest.mark.parametrize(("committed", "first"), [(8, 3), (None, 6)])
def test_the_from_option_applies_only_to_a_group_without_offsets(monkeypatch, committed, first):
    status = QueueStatus(QUEUE, 0, 10, committed)
    monkeypatch.setattr(FakeAdmin, "offsets", answering([status]))
    words = ("--group", "billing", "--from", str(FIRST_MS + 6), "--to", "end")
    assert dledger("consume", "--topic", "orders", *words).split() == [str(offset) for offset in range(first, 10)]
    assert FakePullConsumer.committed[-1] == 10


def test_consume_prints_keys_in_the_form_that_produce_reads():
    assert dledger("consume", "--topic", "orders", "-n", "1", "-k") == "k1 k2\t10\n"
    assert dledger("consume", "--topic", "orders", "-n", "1", "--key-delimiter", ": ") == "k1 k2: 10\n"
    dledger("produce", "--topic", "T", "-k", stdin="k1 k2\t10\n\tno key\nneither\n")
    assert [one[:2] for one in FakeProducer.sent] == [(b"10", "k1 k2"), (b"no key", None), (b"neither", None)]


def test_lines_are_read_by_a_format():
    dledger("produce", "--topic", "T", "-f", "[%g] %k: %s\\n", stdin="[a] k: b: c\n[] : \n")
    assert [one[:3] for one in FakeProducer.sent] == [(b"b: c", "k", "a"), (b"", None, None)]
    error = refused("produce", "--topic", "T", "-f", "%k: %s", stdin="a: b\nc\n")
    assert "Error: line 2 does not have the form '%k: %s': b'c'" in error


@pytest.mark.parametrize("pattern", ["%k", "%k%s", "%s %s", "%s %o", "%s\\n%k", "%s %h"])
def test_an_input_format_without_a_message_body_is_refused(pattern):
    error = refused("produce", "--topic", "T", "-f", pattern, code=2)
    assert "lines are read by %s body, and %k keys and %g tag if they are there" in error


def test_produce_sends_the_given_number_of_lines_to_the_given_queue(monkeypatch):
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
    assert refused(*words, "1", stdin="1\n") == "Error: --queue 1 is one of broker-a/1, broker-b/1: say which\n"


def test_consume_names_an_unreadable_message_and_reads_on(monkeypatch):
    class Poisoned(FakePullConsumer):
        async def poll(self, limit, timeout):
            found = await super().poll(limit, timeout)
            return [message(b"no zlib", 1, "no zlib stream") if one.queue_offset == 1 else one for one in found]

    monkeypatch.setattr(consume, "PullConsumer", Poisoned)
    read = run("consume", "--topic", "orders", "--to", "3")
    assert (read.exit_code, read.stdout) == (1, "0\n2\n")
    assert "offset 1 of orders/broker-a/1 (offset id OFFSET, unique key UNIQUE) cannot be read: no zlib" in read.stderr
    as_json = run("consume", "--topic", "orders", "--to", "3", "-o", "json")
    lines = [json.loads(line) for line in as_json.stdout.splitlines()]
    assert [(one["body"], one.get("fault")) for one in lines] == [("0", None), (None, "no zlib stream"), ("2", None)]


@pytest.mark.parametrize("words", [("consume", "--topic", "orders", "--to", "3"), ("dlq", "export", "G")])
def test_the_unique_key_of_an_unreadable_message_commands_no_terminal(monkeypatch, words):
    evil = msgspec.structs.replace(message(b"no zlib", 1, "no zlib stream"), message_id="\x1b]0;owned\x07\x1b[2J")

    class Poisoned(FakePullConsumer):
        async def poll(self, limit, timeout):
            return [evil if one.queue_offset == 1 else one for one in await super().poll(limit, timeout)]

    async def pages(*_):
        yield [evil]

    monkeypatch.setattr(consume, "PullConsumer", Poisoned)
    monkeypatch.setattr(dlq, "pages", pages)
    monkeypatch.setattr(dlq, "with_admin", lambda _, work: asyncio.run(work(None)))
    read = run(*words)
    assert read.exit_code == 1
    assert "unique key \ufffd]0;owned\ufffd\ufffd[2J) cannot be read" in read.stderr


def test_consume_explains_how_to_make_a_topic_readable(monkeypatch):
    class Unreadable(FakePullConsumer):
        queues = answering(())
        poll = answering(InvalidArgumentError("no queue is assigned"))

    monkeypatch.setattr(consume, "PullConsumer", Unreadable)
    error = refused("consume", "--topic", "orders", "--exit-eof")
    assert "orders has no readable queues: `dledger topic create orders --permission read-write`" in error


def test_consume_filters_by_tags_or_in_sql():
    read = ("consume", "--topic", "orders", "--from-beginning", "--exit-eof")
    dledger(*read, "--tag", "a || b")
    assert FakePullConsumer.filters == ["a || b"]
    dledger(*read, "--sql", "amount > 100")
    assert FakePullConsumer.filters == [Sql("amount > 100")]
    assert "--tag and --sql filter each alone" in refused(*read, "--sql", "amount > 100", "--tag", "a", code=2)


def test_consume_keeps_printing_during_a_commit_and_finally_commits_everything(monkeypatch):
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
    monkeypatch.setattr(FakeAdmin, "members_of_billing", [GroupMember("a", "h:1", "JAVA", {}, False)])
    error = refused("consume", "--topic", "orders", "--group", "billing", "--to", "end")
    assert "consumer group 'billing' has 1 member, stop them first: a (h:1)" in error


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


@pytest.mark.parametrize(("number", "early"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize(("options", "bounded"), [((), False), (("--exit-eof",), True), (("--count", "100"), True)])
def test_the_exit_code_of_an_interrupted_bounded_consume_says_so(monkeypatch, number, early, options, bounded):
    class Interrupted(FakePullConsumer):
        async def poll(self, limit, timeout):
            signal.raise_signal(number)
            await asyncio.sleep(10)

    monkeypatch.setattr(consume, "PullConsumer", Interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    result = run("consume", "--topic", "orders", "--from-beginning", *options)
    signal.signal(signal.SIGINT, before)
    assert (result.exit_code, result.output) == (early if bounded else 0, "")


class RefusedGroup(FakePullConsumer):
    """Member of a group that brokers refuse to create."""

    refusal: ClassVar[Exception] = RefusedError(ServiceNotAvailable("the disk is full, nothing was stored: no space"))

    def __init__(self, namesrv, group, *, timeout):
        super().__init__(namesrv, group, filter="*")

    async def poll(self, limit, timeout):
        raise self.refusal


class FakePushConsumer(Entered):
    """Member of a group that gets three messages."""

    def __init__(self, namesrv, group, subscriptions, **options):
        self._left = [message(b"%d" % number, number) for number in range(3)]

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop(0)


def test_consume_reports_once_that_its_group_cannot_be_created_and_waits(monkeypatch):
    monkeypatch.setattr(consume, "PullConsumer", RefusedGroup)
    result = run("consume", "--topic", "orders", "--group", "new")
    assert (result.exit_code, result.stdout) == (0, "0\n1\n2\n")
    assert result.stderr == (
        "consumer group 'new' cannot be made yet: the disk is full, nothing was stored: no space; "
        "free space on the disks of its brokers; waiting until it can\n"
    )


def test_consume_of_a_missing_group_says_how_to_create_it_and_an_existing_group_is_joined_at_once(monkeypatch):
    monkeypatch.setattr(RefusedGroup, "refusal", NotFoundError(GroupNotExist("create it first")))
    monkeypatch.setattr(consume, "PullConsumer", RefusedGroup)
    assert refused("consume", "--topic", "orders", "--group", "new") == (
        "Error: consumer group 'new' does not exist, and brokers make none: `dledger group create new`\n"
    )
    assert dledger("consume", "--topic", "orders", "--group", "billing", "--count", "2").split() == ["0", "1"]
