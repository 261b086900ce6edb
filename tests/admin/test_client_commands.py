"""Topics, groups and messages from the command line: JSON for programs, tables for people, one line for errors."""

import asyncio
import json
import os
import signal
import sys
import threading
from typing import ClassVar

import click
import msgspec
import pytest
from click.testing import CliRunner

from dledger_admin.cli import main
from dledger_admin.commands import client_calls, consume, group, options, produce, spark_sessions
from dledger_admin.commands.message_format import formatter
from dledger_admin.errors import AdminError
from dledger_client import (
    ConnectError,
    ConnectionLostError,
    GroupInUseError,
    GroupMember,
    InvalidArgumentError,
    MessageQueue,
    NoRouteError,
    NotFoundError,
    QueueReader,
    QueueStatus,
    ReceivedMessage,
    RefusedError,
    SendError,
    SendResult,
    TopicRoute,
)
from dledger_client.outgoing import OutgoingEncoder
from dledger_remoting.errors import (
    GroupNotExist,
    QueryNotFound,
    RequestCodeNotSupported,
    ServiceNotAvailable,
    TopicNotExist,
)
from dledger_remoting.range_reads import PinRow
from dledger_remoting.route import BrokerData, ClusterInfo
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig
from dledger_spark.jobs import LagResult

QUEUE = MessageQueue("orders", "broker-a", 1)


def message(body: bytes = b"hello", offset: int = 7) -> ReceivedMessage:
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
    )


class FakeAdmin:
    """Answers as a small cluster would."""

    calls: ClassVar[list[tuple]] = []

    def __init__(self, namesrv):
        if namesrv == "127.0.0.1:1":
            raise ConnectError(namesrv, "refused")

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        return None

    async def create_topic(self, topic, *, queues, perm, broker_groups, attributes, **_kept):
        self.calls.append(("create", topic, queues, perm, broker_groups, attributes))

    async def delete_topic(self, topic):
        self.calls.append(("delete", topic))

    async def pins(self):
        return {"broker-a": [PinRow("nightly", 4096, 3_600_000, 1_700_000_000_000)], "broker-b": []}

    async def unpin(self, name, *, broker_groups):
        self.calls.append(("unpin", name, broker_groups))

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

    async def delete_group(self, name):
        self.calls.append(("delete group", name))

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

    async def reset_offsets(self, name, topic, to):
        self.calls.append(("reset", name, topic, to))
        return {QUEUE: 3}

    async def broker_groups(self):
        return {"broker-a": BrokerData("c", "broker-a", {0: "127.0.0.1:10911", 2: "127.0.0.1:10921"})}

    async def cluster_info(self):
        return ClusterInfo(await self.broker_groups(), {"c": ["broker-a"]})

    async def forget_group(self, name):
        self.calls.append(("forget", name))

    async def message_by_id(self, offset_message_id):
        if offset_message_id != "OFFSET":
            raise NotFoundError(QueryNotFound(f"no message has the offset message id {offset_message_id}"))
        return message()

    async def messages_by_key(self, topic, key, *, unique, max_messages):
        self.calls.append(("by key", topic, key, unique, max_messages))
        return [message(b"\xff")] if key != "unused" else []


@pytest.fixture(autouse=True)
def cluster(monkeypatch):
    FakeAdmin.calls = []
    for module in (client_calls, consume):
        monkeypatch.setattr(module, "Admin", FakeAdmin)
    for module in (client_calls, spark_sessions):
        monkeypatch.setattr(module, "require_name_server", lambda namesrv: None)


def dledger(*arguments: str, stdin: str = "") -> str:
    result = CliRunner().invoke(main, list(arguments), input=stdin)
    assert result.exit_code == 0, result.output
    return result.output


def as_json(*arguments: str):
    return json.loads(dledger(*arguments, "-o", "json"))


def test_every_command_of_the_tree_loads_and_explains_itself():
    runner = CliRunner()
    tree: list[tuple[tuple[str, ...], click.Command]] = [((), main)]
    while tree:
        words, command = tree.pop()
        result = runner.invoke(main, [*words, "--help"])
        assert result.exit_code == 0
        assert "Usage:" in result.output
        wrong = runner.invoke(main, [*words, "--no-such-option"])
        assert (wrong.exit_code, wrong.stdout) == (2, "")
        assert "Error: No such option" in wrong.stderr
        if isinstance(command, click.Group):
            context = click.Context(command)
            tree += [((*words, name), command.get_command(context, name)) for name in command.list_commands(context)]


def test_topics_are_created_deleted_listed_and_described():
    assert as_json("topic", "create", "new", "--queues", "4") == {"topic": "new", "state": "created"}
    assert as_json("topic", "delete", "orders")["state"] == "deleted"
    assert FakeAdmin.calls == [("create", "new", 4, 6, ["broker-a"], None), ("delete", "orders")]
    as_json("topic", "create", "orders", "--idempotent")
    as_json("topic", "create", "orders", "--no-idempotent")
    assert [call[-1] for call in FakeAdmin.calls[-2:]] == [{"idempotent": "true"}, {"idempotent": None}]
    assert {"%RETRY%readers", "TBW102", "broker-a", "orders"} < set(as_json("topic", "list", "--system"))
    assert as_json("topic", "list") == ["orders"]
    described = as_json("topic", "describe", "orders")
    assert described["queues"] == [{"broker_group": "broker-a", "queue_id": 1, "first": 3, "end": 10}]
    assert described["settings"][0]["perm"] == 6
    assert described["settings"][0]["idempotent"] is False
    assert "broker-a" in dledger("topic", "describe", "orders")


def test_settings_that_are_not_given_stay_as_they_are(monkeypatch):
    async def broker_groups(self):
        return {name: BrokerData("c", name, {0: "127.0.0.1:1"}) for name in ("broker-a", "broker-b")}

    assert as_json("topic", "create", "orders", "--idempotent")["state"] == "changed"
    dledger("topic", "create", "orders", "--permission", "read")
    dledger("topic", "create", "orders", "--queues", "3")
    monkeypatch.setattr(FakeAdmin, "broker_groups", broker_groups)
    on_both = ("--broker-group", "broker-a", "--broker-group", "broker-b")
    dledger("topic", "create", "orders", "--no-idempotent", *on_both)
    assert FakeAdmin.calls == [
        ("create", "orders", 2, 6, ["broker-a"], {"idempotent": "true"}),
        ("create", "orders", 2, 4, ["broker-a"], None),
        ("create", "orders", 3, 6, ["broker-a"], None),
        ("create", "orders", 2, 6, ["broker-a"], {"idempotent": None}),
        ("create", "orders", 8, 6, ["broker-b"], {"idempotent": None}),
    ]


def test_settings_that_other_clients_have_made_stay_as_they_are(monkeypatch):
    made = {}

    async def topic_config(self, topic):
        return {"broker-a": TopicConfig(topic, order=True, topic_filter_type="MULTI_TAG", topic_sys_flag=1)}

    async def create_topic(self, topic, **settings):
        made.update(settings)

    monkeypatch.setattr(FakeAdmin, "topic_config", topic_config)
    monkeypatch.setattr(FakeAdmin, "create_topic", create_topic)
    dledger("topic", "create", "orders", "--queues", "16")
    assert (made["order"], made["filter_type"], made["sys_flag"]) == (True, "MULTI_TAG", 1)


def test_a_mistyped_broker_group_changes_nothing_on_the_others():
    options = ["--broker-group", "broker-a", "--broker-group", "broker-z"]
    for name in ("orders", "new"):
        refused = CliRunner().invoke(main, ["topic", "create", name, "--permission", "read", *options])
        assert refused.exit_code == 1
        assert refused.output == "Error: broker group 'broker-z' is not registered, there are broker-a\n"
    assert not FakeAdmin.calls


def test_queues_that_a_change_takes_away_are_named():
    shrunk = CliRunner().invoke(main, ["topic", "create", "orders", "--queues", "1"])
    assert shrunk.stdout == "orders changed\n"
    assert "queue 1 of orders on broker-a cannot be read" in shrunk.stderr


def test_numbers_of_queues_that_one_option_cannot_keep_are_asked_for(monkeypatch):
    async def topic_config(self, topic):
        return {"broker-a": TopicConfig(topic_name=topic, read_queue_nums=8, write_queue_nums=4)}

    monkeypatch.setattr(FakeAdmin, "topic_config", topic_config)
    refused = CliRunner().invoke(main, ["topic", "create", "orders", "--idempotent"])
    assert refused.exit_code == 1
    assert "orders has 8 queues to read and 4 to write on broker-a, say with --queues" in refused.output
    assert not FakeAdmin.calls


def test_pins_are_listed_and_released():
    line = {"broker_group": "broker-a", "pin": "nightly", "position": 4096, "expires": "2023-11-14T22:13:20+00:00"}
    assert as_json("pin", "list") == [line]
    assert "nightly" in dledger("pin", "list")
    assert as_json("pin", "release", "nightly") == {"pin": "nightly", "state": "released"}
    dledger("pin", "release", "nightly", "--broker-group", "broker-a")
    assert FakeAdmin.calls[-2:] == [("unpin", "nightly", None), ("unpin", "nightly", ["broker-a"])]


def test_what_is_not_there_is_neither_deleted_nor_released():
    for words, error in (
        (("topic", "delete", "order"), "Error: topic 'order' does not exist"),
        (("group", "delete", "nobody"), "there is no consumer group 'nobody'"),
        (("pin", "release", "hourly"), "there is no pin 'hourly'; there is nightly on broker-a"),
        (
            ("pin", "release", "nightly", "--broker-group", "broker-b"),
            "there is no pin 'nightly' on broker-b; there is nightly on broker-a",
        ),
    ):
        refused = CliRunner().invoke(main, list(words))
        assert refused.exit_code == 1
        assert error in refused.output
    assert not FakeAdmin.calls


def test_groups_are_created_changed_and_deleted():
    assert as_json("group", "create", "audit", "--retries", "3") == {"group": "audit", "state": "created"}
    assert as_json("group", "create", "billing")["state"] == "changed"
    assert as_json("group", "delete", "billing") == {"group": "billing", "state": "deleted"}
    assert FakeAdmin.calls == [
        ("create group", "audit", True, 3),
        ("create group", "billing", False, 5),
        ("delete group", "billing"),
    ]


def test_groups_are_listed_described_and_reset():
    line = {"group": "billing", "state": "empty", "members": 0, "lag": 4, "may_consume": False, "max_retries": 5}
    assert as_json("group", "list") == [line]
    described = as_json("group", "describe", "billing", "--topic", "orders")
    assert described["lag"] == 2
    assert described["queues"][0]["committed"] == 8
    assert "2 messages behind" in dledger("group", "describe", "billing", "--topic", "orders")
    assert [one["topic"] for one in as_json("group", "describe", "billing")["queues"]] == ["%RETRY%billing", "orders"]
    reset = as_json("group", "reset", "billing", "--topic", "orders", "--to", "1700000000000")
    assert reset == [{"broker_group": "broker-a", "queue_id": 1, "offset": 3}]
    assert FakeAdmin.calls[-1] == ("reset", "billing", "orders", 1700000000000)


def test_a_described_group_shows_its_members_and_who_reads_what(monkeypatch):
    tags = {"orders": "a || b"}
    members = [GroupMember(name, f"10.0.0.1:{port}", "GO", tags, False) for name, port in (("a", 4), ("b", 5))]
    monkeypatch.setattr(FakeAdmin, "members_of_billing", members)
    described = as_json("group", "describe", "billing", "--topic", "orders")
    assert described["state"] == "stable"
    assert described["members"][1] == {
        "client_id": "b",
        "address": "10.0.0.1:5",
        "language": "GO",
        "subscriptions": {"orders": "a || b"},
    }
    assert described["queues"][0]["readers"] == ["b"]
    shown = dledger("group", "describe", "billing")
    assert "b (4 s ago)" in shown
    assert "orders: a || b" in shown
    assert as_json("group", "list")[0]["members"] == 2


def test_members_that_subscribe_to_different_things_are_told_of(monkeypatch):
    members = [GroupMember(name, "h:1", "JAVA", {"orders": name}, False) for name in "ab"]
    monkeypatch.setattr(FakeAdmin, "members_of_billing", members)
    assert as_json("group", "list")[0]["state"] == "inconsistent"
    assert "members subscribe to different things" in dledger("group", "describe", "billing")


def test_a_reader_that_is_no_member_is_known_by_its_address():
    assert "10.0.0.1:5, no member (4 s ago)" in dledger("group", "describe", "billing")


def test_a_group_that_is_not_there_is_not_described():
    refused = CliRunner().invoke(main, ["group", "describe", "nobody", "--topic", "orders"])
    assert refused.exit_code == 1
    assert "there is no consumer group 'nobody'" in refused.output


def test_a_group_with_members_is_neither_reset_nor_deleted(monkeypatch):
    async def in_use(self, *arguments):
        raise GroupInUseError("billing", ["a (10.0.0.1:4)", "b (10.0.0.1:5)"])

    monkeypatch.setattr(FakeAdmin, "delete_group", in_use)
    monkeypatch.setattr(FakeAdmin, "reset_offsets", in_use)
    for words in (("delete", "billing"), ("reset", "billing", "--topic", "orders", "--to", "first")):
        refused = CliRunner().invoke(main, ["group", *words])
        assert (refused.exit_code, refused.output) == (
            1,
            "Error: consumer group 'billing' has 2 members, stop them first: a (10.0.0.1:4), b (10.0.0.1:5)\n",
        )


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("first", "first"),
        ("last", "last"),
        ("1700000000000", 1_700_000_000_000),
        ("1970-01-01T00:00:01+00:00", 1000),
    ],
)
def test_a_start_point_is_a_word_a_number_or_a_time(text, target):
    assert group.start_point(text) == target


@pytest.mark.parametrize("text", ["soon", "12", "-15", "-15y", "202601", "1700000000", "20261331", "20260131112"])
def test_a_start_point_that_is_none_names_what_is(text):
    with pytest.raises(AdminError, match=f"--to '{text}' is no time: first, last, milliseconds.* or -7d is expected"):
        group.start_point(text)


@pytest.mark.parametrize(
    ("text", "ms"), [("-90s", 90_000), ("-15m", 900_000), ("-2h", 7_200_000), ("-7d", 604_800_000)]
)
def test_an_age_is_a_time_before_now(monkeypatch, text, ms):
    monkeypatch.setattr(options.time, "time", lambda: 1_700_000_000.0)
    assert group.start_point(text) == 1_700_000_000_000 - ms


def test_a_date_without_hyphens_is_no_number_of_milliseconds():
    assert group.start_point("20260131") == group.start_point("2026-01-31")


def test_a_group_that_does_not_exist_is_not_described():
    done = CliRunner().invoke(main, ["group", "describe", "nobody", "--topic", "orders"])
    assert done.exit_code == 1
    assert (
        done.output == "Error: there is no consumer group 'nobody': `dledger group list` shows those that there are\n"
    )


def test_the_nodes_of_the_cluster_are_listed_with_their_ids():
    assert [(node["broker_id"], node["address"]) for node in as_json("cluster", "info")] == [
        (0, "127.0.0.1:10911"),
        (2, "127.0.0.1:10921"),
    ]


def test_a_group_of_which_no_node_is_registered_is_shown_and_can_be_forgotten(monkeypatch):
    async def groups(_):
        return {"broker-a": BrokerData("broker-a", "c")}

    monkeypatch.setattr(FakeAdmin, "broker_groups", groups)
    assert as_json("cluster", "info") == [
        {"cluster": "c", "broker_group": "broker-a", "broker_id": None, "address": None}
    ]
    assert "broker-a      -   -" in dledger("cluster", "info")
    assert as_json("cluster", "forget", "broker-a") == {"broker_group": "broker-a", "state": "forgotten"}
    assert FakeAdmin.calls == [("forget", "broker-a")]


def test_a_message_is_found_by_id_or_key():
    assert as_json("message", "get", "OFFSET")[0]["body"] == "hello"
    by_key = as_json("message", "get", "--topic", "orders", "--key", "k1")
    assert by_key[0]["body"] is None
    assert by_key[0]["body_base64"] == "/w=="
    assert FakeAdmin.calls[-1] == ("by key", "orders", "k1", False, 32)
    wrong = CliRunner().invoke(main, ["message", "get"])
    assert wrong.exit_code == 2
    assert "exactly one of" in wrong.output


def test_more_messages_with_a_key_than_brokers_give_are_not_asked_for():
    by_key = ["message", "get", "--topic", "orders", "--key", "k1", "--max"]
    assert CliRunner().invoke(main, [*by_key, "64"]).exit_code == 0
    assert FakeAdmin.calls[-1][-1] == 64
    refused = CliRunner().invoke(main, [*by_key, "65"])
    assert refused.exit_code == 2
    assert "65 is not in the range 1<=x<=64" in refused.output


def fails_in_one_line(*arguments: str) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_message_with_a_key_is_an_error(form):
    by_key = fails_in_one_line("message", "get", "--topic", "orders", "--key", "unused", "-o", form)
    assert "topic 'orders' has no message with the key 'unused'" in by_key
    by_unique_key = fails_in_one_line("message", "get", "--topic", "orders", "--unique-key", "unused", "-o", form)
    assert "no message with the unique key 'unused'" in by_unique_key
    by_id = fails_in_one_line("message", "get", "UNIQUE", "-o", form)
    assert "no message has the offset message id UNIQUE; a unique key" in by_id


@pytest.mark.parametrize("command", [("cluster", "info"), ("topic", "list"), ("topic", "list", "--system")])
def test_a_name_server_without_brokers_is_no_cluster(monkeypatch, command):
    async def none(_self):
        return {}

    monkeypatch.setattr(FakeAdmin, "broker_groups", none)
    assert "no broker group is registered" in fails_in_one_line(*command)


def test_a_broker_taken_for_a_name_server_is_asked_about(monkeypatch):
    async def refused(_self, topic):
        raise RefusedError(RequestCodeNotSupported(" request type 105 not supported"))

    monkeypatch.setattr(FakeAdmin, "topic_config", refused)
    text = fails_in_one_line("topic", "describe", "orders", "--namesrv", "127.0.0.1:10911")
    assert text.endswith(": is 127.0.0.1:10911 a name server?\n")


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (NoRouteError("orders", "no registered broker has it"), "dledger topic list"),
        (NotFoundError(GroupNotExist("consumer group g does not exist")), "dledger group list"),
    ],
)
def test_an_error_says_where_to_look(monkeypatch, error, advice):
    async def refused(_self, topic):
        raise error

    monkeypatch.setattr(FakeAdmin, "topic_config", refused)
    assert f"; `{advice}` shows " in fails_in_one_line("topic", "describe", "orders")


@pytest.mark.parametrize(
    "names", [("--group", "nobody"), ("--topics", "a,b"), ("--group", "nobody", "--group", "none", "--topics", "a")]
)
def test_named_groups_that_never_committed_have_no_lag(monkeypatch, names):
    monkeypatch.setattr("dledger_spark.jobs.lag", lambda **_options: LagResult([]))
    assert f"nothing to sample for {' '.join(names)}: " in fails_in_one_line("spark", "lag", *names)
    assert as_json("spark", "lag")["samples"] == [], "a cluster without groups is none that lacks one"


def test_a_client_error_is_one_line():
    result = CliRunner().invoke(main, ["topic", "list", "--namesrv", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert result.output.count("\n") == 1


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

    def __init__(self, namesrv, *, timeout):
        self.sent.clear()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        return None

    async def send_batch(self, topic, messages, *, ordering_key=None, queue=None):
        self.sent.extend((one.body, one.key, one.tags, one.properties, ordering_key) for one in messages)


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
            await super().send_batch(topic, messages)
            if len(self.sent) == 2:
                threading.Timer(0.1, write_the_rest).start()

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
        (b"3", "a", "a"),
        (b"2", "b", "b"),
    ]


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

    def __init__(self, namesrv, group, *, tags):
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
            await super().send_batch(topic, messages)

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


def test_consume_commits_what_it_printed_for_a_group(monkeypatch):
    monkeypatch.setattr(consume, "PullConsumer", FakePullConsumer)
    lines = dledger("consume", "--topic", "orders", "--group", "billing", "--exit-eof", "-o", "json").splitlines()
    assert [msgspec.json.decode(line)["queue_offset"] for line in lines] == list(range(3, 10))
    assert FakePullConsumer.committed == [6, 9, 10]


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
        super().__init__(namesrv, group, tags="*")

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
