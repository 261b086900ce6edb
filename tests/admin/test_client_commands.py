"""Topics, groups and messages from the command line: JSON for programs, tables for people, one line for errors."""

import click
import pytest
from click.testing import CliRunner
from command_fakes import QUEUE, FakeAdmin, as_json, dledger, fails_in_one_line, use_fakes

from dledger_admin.cli import main
from dledger_admin.commands import group, options
from dledger_admin.errors import AdminError
from dledger_client import (
    GroupInUseError,
    GroupMember,
    NoRouteError,
    NotFoundError,
    Quota,
    RefusedError,
)
from dledger_remoting.errors import (
    GroupNotExist,
    RequestCodeNotSupported,
)
from dledger_remoting.route import BrokerData
from dledger_remoting.topics import TopicConfig
from dledger_spark.jobs import LagResult


@pytest.fixture(autouse=True)
def cluster(monkeypatch):
    use_fakes(monkeypatch)


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
        (("topic", "delete", "%RETRY%g+orders"), "Error: topic '%RETRY%g+orders' does not exist"),
        (("topic", "describe", "%RETRY%g+orders"), "Error: topic '%RETRY%g+orders' does not exist"),
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
    assert reset == [{"topic": "orders", "broker_group": "broker-a", "queue_id": 1, "offset": 3}]
    assert FakeAdmin.calls[-1] == ("reset", "billing", "orders", 1700000000000, None)


def test_a_group_is_moved_in_all_that_it_reads_or_in_one_queue():
    moved = as_json("group", "reset", "billing", "--to", "beginning", "--queue", "1")
    assert [one["topic"] for one in moved] == ["%RETRY%billing", "orders"]
    assert FakeAdmin.calls[-1] == ("reset", "billing", "orders", "first", 1)
    as_json("group", "skip", "billing", "--topic", "orders")
    assert FakeAdmin.calls[-1] == ("reset", "billing", "orders", "last", None)


@pytest.mark.parametrize(("offset", "expected"), [(0, 3), (7, 7), (99, 10)])
def test_a_group_is_moved_to_an_offset_as_far_as_a_queue_reaches(offset, expected):
    moved = as_json("group", "reset", "billing", "--topic", "orders", "--to", f"offset:{offset}")
    assert [one["offset"] for one in moved] == [expected]
    assert FakeAdmin.calls[-1] == ("set", "billing", QUEUE, expected)


def test_what_moves_nothing_says_so():
    for words in (
        ("reset", "nobody", "--to", "end"),
        ("reset", "billing", "--topic", "orders", "--queue", "9", "--to", "offset:1"),
    ):
        refused = CliRunner().invoke(main, ["group", *words])
        assert (refused.exit_code, "nothing was moved" in refused.output) == (1, True)
    refused = CliRunner().invoke(main, ["group", "reset", "billing", "--to", "offset:-1"])
    assert refused.exit_code == 2
    assert "an offset is a number" in refused.output


def test_a_group_goes_on_where_another_one_is():
    assert "copy goes on where billing is" in dledger("group", "clone", "billing", "copy")
    assert FakeAdmin.calls[-1] == ("clone", "billing", "copy", None)


def test_a_group_is_paused_and_resumed():
    assert dledger("group", "pause", "billing") == "billing paused\n"
    assert FakeAdmin.calls[-1] == ("create group", "billing", False, 5)
    assert dledger("group", "resume", "billing") == "billing resumed\n"
    assert FakeAdmin.calls[-1] == ("create group", "billing", True, 5)


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
    async def in_use(self, *arguments, **options):
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
    with pytest.raises(
        AdminError, match=f"--to '{text}' is no time: beginning, end, offset:N, milliseconds.* or -7d is expected"
    ):
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


@pytest.mark.parametrize("setting", ["retention_hours", "retention_hours=", "=48"])
def test_a_setting_without_key_or_value_is_wrong_usage(setting):
    refused = CliRunner().invoke(main, ["config", "set", setting])
    assert (refused.exit_code, FakeAdmin.calls) == (2, [])


def test_quotas_are_set_listed_and_deleted():
    lines = [
        {
            "broker_group": "broker-a",
            "kind": kind,
            "name": name,
            "messages_per_second": messages,
            "bytes_per_second": size,
            "held": held,
            "refused": refused,
        }
        for kind, name, messages, size, held, refused in (("account", "app", 5, 0, 0, 0), ("topic", "t", 0, 9, 3, 1))
    ]
    assert as_json("quota", "list") == lines
    assert as_json("quota", "set", "topic", "t", "--bytes", "9") == lines
    assert as_json("quota", "delete", "account", "app", "--broker-group", "broker-a") == lines
    assert FakeAdmin.calls == [
        ("put quota", Quota("topic", "t", 0, 9), None),
        ("put quota", Quota("account", "app"), ["broker-a"]),
    ]
    assert "broker-a      topic    t     -           9        3     1" in dledger("quota", "list")


@pytest.mark.parametrize("limits", [(), ("--messages", "0"), ("--bytes", "-1")])
def test_a_quota_without_a_limit_is_wrong_usage(limits):
    refused = CliRunner().invoke(main, ["quota", "set", "topic", "t", *limits])
    assert (refused.exit_code, FakeAdmin.calls) == (2, [])
