"""A small fake cluster, and commands that are run against it."""

import json
from typing import ClassVar

from click.testing import CliRunner, Result

from dledger_admin.cli import main
from dledger_admin.commands import client_calls, consume, spark_sessions
from dledger_client import (
    ConnectError,
    GroupMember,
    MessageQueue,
    NoRouteError,
    NotFoundError,
    QueueReader,
    QueueStatus,
    QuotaRow,
    ReceivedMessage,
    TopicRoute,
)
from dledger_remoting.errors import QueryNotFound, TopicNotExist
from dledger_remoting.range_reads import PinRow
from dledger_remoting.route import BrokerData, ClusterInfo
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig
from dledger_remoting.traces import traces_about

QUEUE = MessageQueue("orders", "broker-a", 1)


def message(body: bytes = b"hello", offset: int = 7, fault: str | None = None) -> ReceivedMessage:
    return ReceivedMessage(
        topic="orders",
        body=body,
        tags="a",
        keys=("k1", "k2"),
        properties={"p": "v"},
        queue=QUEUE,
        queue_offset=offset,
        message_id="UNIQUE",
        offset_message_id="OFFSET",
        physical_offset=100,
        born_timestamp_ms=1000,
        stored_timestamp_ms=2000,
        reconsume_times=0,
        fault=fault,
    )


class Entered:
    """Context that does nothing at its begin and end."""

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        return None


def recording(what):
    """Return a method of a fake that adds this word and its arguments to the fake's `calls`."""

    async def method(self, *arguments, **options):
        self.calls.append((what, *arguments, *options.values()))

    return method


class FakeAdmin(Entered):
    """Administration client that answers as a small cluster does."""

    calls: ClassVar[list[tuple]] = []
    trace_bodies: ClassVar[list[bytes]] = []

    def __init__(self, namesrv):
        if namesrv == "127.0.0.1:1":
            raise ConnectError(namesrv, "refused")

    async def create_topic(self, topic, *, queues, perm, broker_groups, attributes, **_kept):
        self.calls.append(("create", topic, queues, perm, broker_groups, attributes))

    delete_topic = recording("delete")
    unpin = recording("unpin")
    delete_group = recording("delete group")
    set_offset = recording("set")
    forget_group = recording("forget")
    clone_offsets = recording("clone")

    async def pins(self):
        return {"broker-a": [PinRow("nightly", 4096, 3_600_000, 1_700_000_000_000)], "broker-b": []}

    async def topics(self, *, include_system):
        own = ["%RETRY%readers", "broker-a", "c", "c_REPLY_TOPIC", "orders"]
        return ["TBW102", *own] if include_system else own

    async def topic_config(self, topic):
        if topic != "orders":
            raise NotFoundError(TopicNotExist(f"topic {topic!r} does not exist"))
        return {"broker-a": TopicConfig(topic_name=topic, read_queue_nums=2, write_queue_nums=2, perm=6)}

    async def topic_route(self, topic):
        return TopicRoute(topic, (QUEUE,), (QUEUE,))

    async def first_offset(self, queue):
        return 3

    async def end_offset(self, queue):
        return 10

    async def groups(self):
        return {"billing": SubscriptionGroupConfig(group_name="billing", consume_enable=False, retry_max_times=5)}

    async def create_group(self, config):
        self.calls.append(("create group", config.group_name, config.consume_enable, config.retry_max_times))

    members_of_billing: ClassVar[list[GroupMember]] = []

    async def members(self, name):
        return self.members_of_billing if name == "billing" else []

    async def progress(self, name, topic=None):
        if name != "billing":
            return [] if topic is None else [QueueStatus(QUEUE._replace(topic=topic), 3, 10, None)]
        retries = QueueStatus(MessageQueue("%RETRY%billing", "broker-a", 0), 0, 2, None)
        return [one for one in (retries, QueueStatus(QUEUE, 3, 10, 8)) if topic in (None, one.queue.topic)]

    async def readers(self, name):
        return {QUEUE: QueueReader(QUEUE, ("b", "other"), "10.0.0.1:5", 4.0)}

    async def reset_offsets(self, name, topic, to, *, queue_id=None):
        self.calls.append(("reset", name, topic, to, queue_id))
        return {QUEUE._replace(topic=topic): 3}

    async def offsets(self, name, topic):
        return [QueueStatus(QUEUE._replace(topic=topic), 3, 10, 8)]

    async def settings(self, *, broker_groups=None):
        return {"broker-a": {"retention_hours": "48"}, "broker-b": {}}

    async def put_settings(self, values, *, broker_groups=None):
        self.calls.append(("put settings", dict(values), broker_groups))

    async def quotas(self, *, broker_groups=None):
        return {"broker-a": [QuotaRow("account", "app", 5), QuotaRow("topic", "t", 0, 9, 3, 1)], "broker-b": []}

    async def put_quota(self, quota, *, broker_groups=None):
        self.calls.append(("put quota", quota, broker_groups))

    async def broker_groups(self):
        return {"broker-a": BrokerData("c", "broker-a", {0: "127.0.0.1:10911", 2: "127.0.0.1:10921"})}

    async def cluster_info(self):
        return ClusterInfo(await self.broker_groups(), {"c": ["broker-a"]})

    async def message_by_id(self, offset_message_id, *, keep_unreadable):
        if offset_message_id != "OFFSET":
            raise NotFoundError(QueryNotFound(f"no message has the offset message id {offset_message_id}"))
        return message()

    async def messages_by_key(self, topic, key, *, unique, max_messages, keep_unreadable):
        self.calls.append(("by key", topic, key, unique, max_messages))
        return [message(b"\xff")] if key != "unused" else []

    async def message_trace(self, message_id, *, topic, max_messages):
        self.calls.append(("trace", message_id, topic, max_messages))
        if topic == "unknown":
            raise NoRouteError(topic, "the name servers do not know it")
        return traces_about(message_id, self.trace_bodies)


def use_fakes(monkeypatch):
    """Let commands use a fresh `FakeAdmin`."""
    FakeAdmin.calls = []
    for module in (client_calls, consume):
        monkeypatch.setattr(module, "Admin", FakeAdmin)
    for module in (client_calls, spark_sessions):
        monkeypatch.setattr(module, "require_name_server", lambda namesrv: None)


def answering(answer):
    """Return a method of a fake that gives this answer, or raises it if it is an error."""

    async def method(_self, *_arguments, **_options):
        if isinstance(answer, Exception):
            raise answer
        return answer

    return method


def run(*words: object, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], input=stdin)


def dledger(*words: object, stdin: str = "") -> str:
    result = run(*words, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.output


def as_json(*words: object):
    return json.loads(dledger(*words, "-o", "json"))


def refused(*words: object, code: int = 1, stdin: str | bytes = "") -> str:
    """Return the error of a command that prints nothing else."""
    result = run(*words, stdin=stdin)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    return result.stderr


def fails_in_one_line(*words: object) -> str:
    error = refused(*words)
    assert error.startswith(("Error: ", '{"error":'))
    assert error.count("\n") == 1
    return error
