"""Topics, groups and messages from the command line: JSON for programs, tables for people, one line for errors."""

import json

import pytest
from command_fakes import QUEUE, FakeAdmin, answering, as_json, dledger, fails_in_one_line, refused, run, use_fakes
from command_tree import commands

from dledger_admin.commands import client_calls, group, options
from dledger_admin.errors import AdminError
from dledger_client import DeadlineError, GroupInUseError, GroupMember, NoRouteError, NotFoundError, Quota, RefusedError
from dledger_remoting.errors import GroupNotExist, RequestCodeNotSupported, TopicNotExist
from dledger_remoting.route import BrokerData
from dledger_remoting.topics import TopicConfig
from dledger_spark.jobs import LagResult


@pytest.fixture(autouse=True)
def cluster(monkeypatch):
    use_fakes(monkeypatch)


def test_every_command_of_the_tree_loads_and_explains_itself():
    for words, _ in commands():
        result = run(*words, "--help")
        assert (result.exit_code, "Usage:" in result.output) == (0, True), words
        assert "Error: No such option" in refused(*words, "--no-such-option", code=2), words


def test_topics_are_created_deleted_listed_and_described():
    assert as_json("topic", "create", "new", "--queues", "4") == {"topic": "new", "state": "created"}
    assert as_json("topic", "delete", "--yes", "orders")["state"] == "deleted"
    assert FakeAdmin.calls == [("create", "new", 4, 6, ["broker-a"], None), ("delete", "orders")]
    as_json("topic", "create", "orders", "--idempotent")
    as_json("topic", "create", "orders", "--no-idempotent")
    assert [call[-1] for call in FakeAdmin.calls[-2:]] == [{"idempotent": "true"}, {"idempotent": None}]
    assert {"%RETRY%readers", "TBW102", "broker-a", "orders"} < set(as_json("topic", "list", "--system"))
    assert as_json("topic", "list") == ["orders"]
    described = as_json("topic", "describe", "orders")
    assert described["queues"] == [{"broker_group": "broker-a", "queue_id": 1, "first": 3, "end": 10}]
    assert (described["settings"][0]["perm"], described["settings"][0]["idempotent"]) == (6, False)
    assert "broker-a" in dledger("topic", "describe", "orders")


def test_topic_create_keeps_settings_that_are_not_given(monkeypatch):
    both = {name: BrokerData("c", name, {0: "127.0.0.1:1"}) for name in ("broker-a", "broker-b")}
    assert as_json("topic", "create", "orders", "--idempotent")["state"] == "changed"
    dledger("topic", "create", "orders", "--permission", "read")
    dledger("topic", "create", "orders", "--queues", "3")
    monkeypatch.setattr(FakeAdmin, "broker_groups", answering(both))
    on_both = ("--broker-group", "broker-a", "--broker-group", "broker-b")
    dledger("topic", "create", "orders", "--no-idempotent", *on_both)
    assert FakeAdmin.calls == [
        ("create", "orders", 2, 6, ["broker-a"], {"idempotent": "true"}),
        ("create", "orders", 2, 4, ["broker-a"], None),
        ("create", "orders", 3, 6, ["broker-a"], None),
        ("create", "orders", 2, 6, ["broker-a"], {"idempotent": None}),
        ("create", "orders", 8, 6, ["broker-b"], {"idempotent": None}),
    ]


def test_topic_create_keeps_settings_of_other_clients(monkeypatch):
    made = {}
    made = {}

    async def create_topic(self, topic, **settings):
        made.update(settings)

    config = TopicConfig("orders", order=True, topic_filter_type="MULTI_TAG", topic_sys_flag=1)
    monkeypatch.setattr(FakeAdmin, "topic_config", answering({"broker-a": config}))
    monkeypatch.setattr(FakeAdmin, "create_topic", create_topic)
    dledger("topic", "create", "orders", "--queues", "16")
    assert (made["order"], made["filter_type"], made["sys_flag"]) == (True, "MULTI_TAG", 1)


def test_a_mistyped_broker_group_changes_nothing_on_the_others():
    options = ["--broker-group", "broker-a", "--broker-group", "broker-z"]
    for name in ("orders", "new"):
        error = refused("topic", "create", name, "--permission", "read", *options)
        assert error == (
            "Error: broker group 'broker-z' is not registered, there are broker-a. Did you mean 'broker-a'?\n"
        )
    assert not FakeAdmin.calls


def test_queues_that_a_change_takes_away_are_named():
    shrunk = run("topic", "create", "orders", "--queues", "1")
    assert shrunk.stdout == "orders changed\n"
    assert "queue 1 of orders on broker-a cannot be read" in shrunk.stderr


def test_differing_read_and_write_queues_require_the_queues_option(monkeypatch):
    config = TopicConfig("orders", read_queue_nums=8, write_queue_nums=4)
    monkeypatch.setattr(FakeAdmin, "topic_config", answering({"broker-a": config}))
    error = refused("topic", "create", "orders", "--idempotent")
    assert "orders has 8 queues to read and 4 to write on broker-a, say with --queues" in error
    assert not FakeAdmin.calls


def test_pins_are_listed_and_released():
    line = {"broker_group": "broker-a", "pin": "nightly", "position": 4096, "expires": "2023-11-14T22:13:20+00:00"}
    assert as_json("pin", "list") == [line]
    assert "nightly" in dledger("pin", "list")
    assert as_json("pin", "release", "nightly") == {"pin": "nightly", "state": "released"}
    dledger("pin", "release", "nightly", "--broker-group", "broker-a")
    assert FakeAdmin.calls[-2:] == [("unpin", "nightly", None), ("unpin", "nightly", ["broker-a"])]


def test_missing_topics_groups_and_pins_are_named_and_nothing_is_called():
    unpin = ("pin", "release", "nightly", "--broker-group", "broker-b")
    for words, error in (
        (("topic", "delete", "--yes", "order"), "Error: topic 'order' does not exist"),
        (("topic", "delete", "--yes", "%RETRY%g+orders"), "Error: topic '%RETRY%g+orders' does not exist"),
        (("topic", "describe", "%RETRY%g+orders"), "Error: topic '%RETRY%g+orders' does not exist"),
        (("group", "delete", "--yes", "nobody"), "there is no consumer group 'nobody'"),
        (("pin", "release", "hourly"), "there is no pin 'hourly'; there is nightly on broker-a"),
        (unpin, "there is no pin 'nightly' on broker-b; there is nightly on broker-a"),
        (
            ("group", "describe", "nobody", "--topic", "orders"),
            "Error: there is no consumer group 'nobody': `dledger group list` shows those that there are\n",
        ),
    ):
        assert error in refused(*words)
    assert not FakeAdmin.calls


def test_groups_are_created_changed_deleted_paused_and_resumed():
    assert as_json("group", "create", "audit", "--retries", "3") == {"group": "audit", "state": "created"}
    assert as_json("group", "create", "billing")["state"] == "changed"
    assert as_json("group", "delete", "--yes", "billing") == {"group": "billing", "state": "deleted"}
    assert FakeAdmin.calls == [
        ("create group", "audit", True, 3),
        ("create group", "billing", False, 5),
        ("delete group", "billing"),
    ]
    assert dledger("group", "pause", "billing") == "billing paused\n"
    assert FakeAdmin.calls[-1] == ("create group", "billing", False, 5)
    assert dledger("group", "resume", "billing") == "billing resumed\n"
    assert FakeAdmin.calls[-1] == ("create group", "billing", True, 5)


def test_groups_are_listed_described_and_reset():
    line = {"group": "billing", "state": "empty", "members": 0, "lag": 4, "may_consume": False, "max_retries": 5}
    assert as_json("group", "list") == [line]
    described = as_json("group", "describe", "billing", "--topic", "orders")
    assert described["lag"] == 2
    assert described["queues"][0]["committed"] == 8
    assert "2 messages behind" in dledger("group", "describe", "billing", "--topic", "orders")
    assert [one["topic"] for one in as_json("group", "describe", "billing")["queues"]] == ["%RETRY%billing", "orders"]
    reset = as_json("group", "reset", "--yes", "billing", "--topic", "orders", "--to", "1700000000000")
    assert reset == [{"topic": "orders", "broker_group": "broker-a", "queue_id": 1, "offset": 3}]
    assert FakeAdmin.calls[-1] == ("reset", "billing", "orders", 1700000000000, None)


def test_a_group_reset_covers_all_topics_of_the_group_or_one_queue():
    moved = as_json("group", "reset", "--yes", "billing", "--to", "beginning", "--queue", "1")
    assert [one["topic"] for one in moved] == ["%RETRY%billing", "orders"]
    assert FakeAdmin.calls[-1] == ("reset", "billing", "orders", "first", 1)
    as_json("group", "skip", "--yes", "billing", "--topic", "orders")
    assert FakeAdmin.calls[-1] == ("reset", "billing", "orders", "last", None)


@pytest.mark.parametrize(("offset", "expected"), [(0, 3), (7, 7), (99, 10)])
def test_a_group_is_moved_to_an_offset_as_far_as_a_queue_reaches(offset, expected):
    moved = as_json("group", "reset", "--yes", "billing", "--topic", "orders", "--to", f"offset:{offset}")
    assert [one["offset"] for one in moved] == [expected]
    assert FakeAdmin.calls[-1] == ("set", "billing", QUEUE, expected)


def test_a_group_reset_that_moves_nothing_fails_and_says_so():
    for words in (
        ("reset", "nobody", "--to", "end"),
        ("reset", "billing", "--topic", "orders", "--queue", "9", "--to", "offset:1"),
    ):
        assert "nothing was moved" in refused("group", *words, "--yes")
    assert "an offset is a number" in refused("group", "reset", "billing", "--to", "offset:-1", code=2)


def test_the_offsets_of_a_group_can_be_copied_to_another_group():
    assert "copy created, goes on where billing is" in dledger("group", "clone", "billing", "copy")
    assert FakeAdmin.calls[-1] == ("clone", "billing", "copy", None)


def test_group_describe_shows_members_subscriptions_and_queue_readers(monkeypatch):
    tags = {"orders": "a || b"}
    members = [GroupMember(name, f"10.0.0.1:{port}", "GO", tags, False) for name, port in (("a", 4), ("b", 5))]
    monkeypatch.setattr(FakeAdmin, "members_of_billing", members)
    described = as_json("group", "describe", "billing", "--topic", "orders")
    assert described["state"] == "stable"
    assert described["members"][1] == {
        "client_id": "b",
        "address": "10.0.0.1:5",
        "language": "GO",
        "subscriptions": tags,
    }
    assert described["queues"][0]["readers"] == ["b"]
    shown = dledger("group", "describe", "billing")
    assert "b (4 s ago)" in shown
    assert "orders: a || b" in shown
    assert as_json("group", "list")[0]["members"] == 2


def test_members_with_different_subscriptions_and_readers_outside_the_group_are_reported(monkeypatch):
    assert "10.0.0.1:5, no member (4 s ago)" in dledger("group", "describe", "billing")
    members = [GroupMember(name, "h:1", "JAVA", {"orders": name}, False) for name in "ab"]
    monkeypatch.setattr(FakeAdmin, "members_of_billing", members)
    assert as_json("group", "list")[0]["state"] == "inconsistent"
    assert "members subscribe to different things" in dledger("group", "describe", "billing")


def test_a_group_with_members_is_neither_reset_nor_deleted(monkeypatch):
    in_use = answering(GroupInUseError("billing", ["a (10.0.0.1:4)", "b (10.0.0.1:5)"]))
    monkeypatch.setattr(FakeAdmin, "delete_group", in_use)
    monkeypatch.setattr(FakeAdmin, "reset_offsets", in_use)
    for words in (("delete", "billing"), ("reset", "billing", "--topic", "orders", "--to", "first")):
        assert refused("group", *words, "--yes") == (
            "Error: consumer group 'billing' has 2 members, stop them first: a (10.0.0.1:4), b (10.0.0.1:5)\n"
        )


@pytest.mark.parametrize("text", ["soon", "12", "-15", "-15y", "202601", "1700000000", "20261331", "20260131112"])
def test_an_invalid_start_point_is_refused_with_the_valid_forms(text):
    forms = "beginning, end, offset:N, milliseconds.* or -7d is expected"
    with pytest.raises(AdminError, match=f"--to '{text}' is no time: {forms}"):
        group.start_point(text)


@pytest.mark.parametrize(
    ("text", "ms"), [("-90s", 90_000), ("-15m", 900_000), ("-2h", 7_200_000), ("-7d", 604_800_000)]
)
def test_an_age_is_a_time_before_now_and_a_date_without_hyphens_is_no_number_of_milliseconds(monkeypatch, text, ms):
    monkeypatch.setattr(options.time, "time", lambda: 1_700_000_000.0)
    assert group.start_point(text) == 1_700_000_000_000 - ms
    assert group.start_point("20260131") == group.start_point("2026-01-31")


def test_the_nodes_of_the_cluster_are_listed_with_their_ids():
    nodes = [(node["broker_id"], node["address"]) for node in as_json("cluster", "info")]
    assert nodes == [(0, "127.0.0.1:10911"), (2, "127.0.0.1:10921")]


def test_an_absent_broker_group_is_shown_and_can_be_forgotten(monkeypatch):
    absent = {"broker-a": BrokerData("broker-a", "c")}
    monkeypatch.setattr(FakeAdmin, "broker_groups", answering(absent))
    line = {"cluster": "c", "broker_group": "broker-a", "broker_id": None, "address": None}
    assert as_json("cluster", "info") == [line]
    assert "broker-a      -   -" in dledger("cluster", "info")
    assert as_json("cluster", "forget", "--yes", "broker-a") == {"broker_group": "broker-a", "state": "forgotten"}
    assert FakeAdmin.calls == [("forget", "broker-a")]


def test_a_message_is_found_by_id_or_key():
    assert as_json("message", "get", "OFFSET")[0]["body"] == "hello"
    by_key = as_json("message", "get", "--topic", "orders", "--key", "k1")
    assert (by_key[0]["body"], by_key[0]["body_base64"]) == (None, "/w==")
    assert FakeAdmin.calls[-1] == ("by key", "orders", "k1", False, 32)
    assert "exactly one of" in refused("message", "get", code=2)


def test_more_messages_with_a_key_than_brokers_give_are_not_asked_for():
    by_key = ["message", "get", "--topic", "orders", "--key", "k1", "--max"]
    assert run(*by_key, "64").exit_code == 0
    assert FakeAdmin.calls[-1][-1] == 64
    assert "65 is not in the range 1<=x<=64" in refused(*by_key, "65", code=2)


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_message_with_a_key_is_an_error(form):
    by_key = ("--topic", "orders", "--key", "unused"), "topic 'orders' has no message with the key 'unused'"
    by_unique_key = ("--topic", "orders", "--unique-key", "unused"), "no message with the unique key 'unused'"
    by_id = ("UNIQUE",), "no message has the offset message id UNIQUE; a unique key"
    for words, error in (by_key, by_unique_key, by_id):
        assert error in fails_in_one_line("message", "get", *words, "-o", form)


@pytest.mark.parametrize("command", [("cluster", "info"), ("topic", "list"), ("topic", "list", "--system")])
def test_a_name_server_without_brokers_is_no_cluster(monkeypatch, command):
    monkeypatch.setattr(FakeAdmin, "broker_groups", answering({}))
    assert "no broker group is registered" in fails_in_one_line(*command)


def test_a_broker_taken_for_a_name_server_is_asked_about(monkeypatch):
    error = RefusedError(RequestCodeNotSupported(" request type 105 not supported"))
    monkeypatch.setattr(FakeAdmin, "topic_config", answering(error))
    text = fails_in_one_line("topic", "describe", "orders", "--namesrv", "127.0.0.1:10911")
    assert text.endswith(": is 127.0.0.1:10911 a name server?\n")


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (NoRouteError("orders", "no registered broker has it"), "dledger topic list"),
        (NotFoundError(GroupNotExist("consumer group g does not exist")), "dledger group list"),
        (DeadlineError("no leader of broker-a answered before the deadline"), "dledger cluster health"),
    ],
)
def test_an_error_says_where_to_look(monkeypatch, error, advice):
    monkeypatch.setattr(FakeAdmin, "topic_config", answering(error))
    assert f"; `{advice}` s" in fails_in_one_line("topic", "describe", "orders")


@pytest.mark.parametrize(
    "names", [("--group", "nobody"), ("--topics", "a,b"), ("--group", "nobody", "--group", "none", "--topics", "a")]
)
def test_named_groups_that_never_committed_have_no_lag(monkeypatch, names):
    monkeypatch.setattr("dledger_spark.jobs.lag", lambda **_options: LagResult([]))
    assert f"nothing to sample for {' '.join(names)}: " in fails_in_one_line("spark", "lag", *names)
    assert as_json("spark", "lag")["samples"] == [], "a cluster without groups is none that lacks one"


def test_live_keys_of_brokers_are_set_listed_and_taken_back():
    line = {"broker_group": "broker-a", "key": "retention_hours", "value": "48"}
    assert as_json("config", "live") == [line]
    assert as_json("config", "set", "fileReservedTime=48", "auto_create_topic=false") == [line]
    assert as_json("config", "unset", "retention_hours", "--broker-group", "broker-a") == [line]
    assert FakeAdmin.calls == [
        ("put settings", {"fileReservedTime": "48", "auto_create_topic": "false"}, None),
        ("put settings", {"retention_hours": ""}, ["broker-a"]),
    ]
    assert "retention_hours  48" in dledger("config", "live")


def test_quotas_are_set_listed_and_deleted():
    names = ("broker_group", "kind", "name", "messages_per_second", "bytes_per_second", "held", "refused")
    rows = ("broker-a", "account", "app", 5, 0, 0, 0), ("broker-a", "topic", "t", 0, 9, 3, 1)
    lines = [dict(zip(names, row, strict=True)) for row in rows]
    assert as_json("quota", "list") == lines
    assert as_json("quota", "set", "topic", "t", "--bytes", "9") == lines
    assert as_json("quota", "delete", "account", "app", "--broker-group", "broker-a") == lines
    assert "account 't' has no quota there" in fails_in_one_line("quota", "delete", "account", "t")
    assert FakeAdmin.calls == [
        ("put quota", Quota("topic", "t", 0, 9), None),
        ("put quota", Quota("account", "app"), ["broker-a"]),
    ]
    assert "broker-a      topic    t     -           9        3     1" in dledger("quota", "list")


@pytest.mark.parametrize(
    "words",
    [
        *(("config", "set", setting) for setting in ("retention_hours", "retention_hours=", "=48")),
        *(("quota", "set", "topic", "t", *limits) for limits in ((), ("--messages", "0"), ("--bytes", "-1"))),
    ],
    ids=" ".join,
)
def test_a_setting_without_key_or_value_and_a_quota_without_a_limit_are_wrong_usage(words):
    refused(*words, code=2)
    assert FakeAdmin.calls == []


@pytest.mark.parametrize("words", [["prodcue"], ["topic", "lst"]])
def test_a_mistyped_command_is_asked_about(words):
    assert "Did you mean" in refused(*words, code=2)


@pytest.mark.parametrize(
    "error", [NoRouteError("ordres", "unknown"), NotFoundError(TopicNotExist("topic 'ordres' does not exist"))]
)
def test_a_mistyped_topic_is_asked_about(monkeypatch, error):
    monkeypatch.setattr(FakeAdmin, "topic_config", answering(error))
    monkeypatch.setattr(client_calls, "ask_quietly", lambda namesrv, names: ["invoices", "orders"])
    assert "Did you mean 'orders'?" in fails_in_one_line("topic", "describe", "ordres")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["topic", "describe", "nothing", "-o", "json"], 1, "nothing"),
        (["topic", "create", "--output=json"], 2, "Missing argument"),
        (["nonsense", "-ojson"], 2, "No such command"),
    ],
)
def test_an_error_is_json_where_the_result_is(words, code, said):
    assert said in json.loads(refused(*words, code=code))["error"]


EMPTY = {
    ("topic", "list"): ("topics", []),
    ("group", "list"): ("groups", {}),
    ("pin", "list"): ("pins", {}),
    ("quota", "list"): ("quotas", {}),
    ("dlq", "list"): ("topics", []),
    ("config", "live"): ("settings", {}),
}


@pytest.mark.parametrize("words", list(EMPTY))
def test_a_list_without_anything_is_a_sentence(monkeypatch, words):
    method, nothing = EMPTY[words]
    monkeypatch.setattr(FakeAdmin, method, answering(nothing))
    assert {"no", "nothing"}.intersection(dledger(*words).split(":")[0].split()), "no heading, and no silence"
