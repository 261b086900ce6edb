"""Accounts in the form of RocketMQ 4: what their permissions and white lists allow, and what is shown of them."""

import json

import pytest
from guarded_broker import ROOT_CREDENTIALS, as_root, call, credentials
from served_broker import FakeClient, ServedBroker, pull_ext, send_ext

from dledger_broker.features.accounts.addresses import compile_address
from dledger_remoting.errors import InvalidParameter

PUT, DELETE, VERSION, WHITE_LIST, ALL = range(50, 55)
REFUSED = 16
APP = credentials("app")


def put(broker: ServedBroker, **fields: str) -> None:
    as_root(broker, PUT, {"accessKey": "app", "secretKey": APP.secret, "admin": "false", **fields})


def may_send(client: FakeClient, topic: str) -> bool:
    return call(client, APP, 310, send_ext(topic)).code != REFUSED


def may_pull(client: FakeClient, topic: str) -> bool:
    return call(client, APP, 11, pull_ext(topic)).code != REFUSED


@pytest.mark.parametrize(
    ("default", "perms", "sends", "pulls"),
    [
        ("", "", False, False),
        ("DENY", "", False, False),
        ("PUB", "", True, False),
        ("PUB|SUB", "", True, True),
        ("", "T1=PUB", True, False),
        ("", "T1=SUB|PUB", True, True),
        ("PUB|SUB", "T1=DENY", False, False),
        ("SUB", "T1=PUB", True, False),
        ("PUB|SUB", "T2=DENY", True, True),
    ],
)
def test_a_topic_permission_overrides_the_default_permission(
    broker: ServedBroker, client: FakeClient, default: str, perms: str, sends: bool, pulls: bool
) -> None:
    put(broker, defaultTopicPerm=default, topicPerms=perms, groupPerms="CG=SUB")
    assert (may_send(client, "T1"), may_pull(client, "T1")) == (sends, pulls)


@pytest.mark.parametrize(
    ("default", "perms", "pulls"),
    [("", "", False), ("SUB", "", True), ("SUB", "CG=DENY", False), ("DENY", "CG=SUB", True)],
)
def test_a_group_permission_overrides_the_default_group_permission(
    broker: ServedBroker, client: FakeClient, default: str, perms: str, pulls: bool
) -> None:
    put(broker, defaultTopicPerm="SUB", defaultGroupPerm=default, groupPerms=perms)
    assert may_pull(client, "T1") == pulls


def test_an_update_of_an_account_keeps_the_omitted_fields(broker: ServedBroker, client: FakeClient) -> None:
    put(broker, topicPerms="T1=PUB", whiteRemoteAddress="10.9.9.9")
    as_root(broker, PUT, {"accessKey": "app", "admin": "false", "groupPerms": "CG=SUB"})
    assert may_send(client, "T1")
    who = {"accessKey": "app", "whiteRemoteAddress": "10.9.9.9", "admin": False}
    defaults = {"defaultTopicPerm": "DENY", "defaultGroupPerm": "DENY"}
    perms = {"topicPerms": ["T1=PUB"], "groupPerms": ["CG=SUB"]}
    assert json.loads(as_root(broker, ALL, {}).body)["plainAccessConfigs"] == [{**who, **defaults, **perms}]


def test_a_white_listed_address_sends_without_a_signature_under_its_account_name(client: FakeClient) -> None:
    put(client.broker, admin="true", topicPerms="T1=PUB", whiteRemoteAddress="10.0.0.{7,9},192.168.0.*")
    unsigned = {**send_ext("T1"), "AccessKey": "app"}
    assert client.call(310, unsigned).code == 0
    assert client.call(310, {**send_ext("T2"), "AccessKey": "app"}).code == REFUSED
    assert client.call(ALL, {"AccessKey": "app"}).code == REFUSED, "an address makes no administrator"
    assert call(client, APP, 310, send_ext("T1")).code == 0
    put(client.broker, whiteRemoteAddress="192.168.0.*")
    assert client.call(310, unsigned).code == REFUSED


@pytest.mark.parametrize(
    ("code", "listed", "field", "named"),
    [(PUT, {"accessKey": "app"}, "whiteRemoteAddress", {"AccessKey": "app"}), (WHITE_LIST, {}, "globalWhiteAddrs", {})],
    ids=["the list of an account", "the global list"],
)
def test_a_held_pull_admitted_by_a_white_list_is_refused_once_the_list_changes(
    broker: ServedBroker, client: FakeClient, code: int, listed: dict[str, str], field: str, named: dict[str, str]
) -> None:
    put(broker, topicPerms="T1=PUB|SUB", groupPerms="CG=SUB")
    as_root(broker, code, {**listed, field: "10.0.0.9"})
    waiting = client.send(11, {**pull_ext("T1", sysFlag="6", suspendTimeoutMillis="15000"), **named})
    broker.settle()
    assert not client.has_answer(waiting)
    as_root(broker, code, {**listed, field: "10.0.0.8"})
    assert call(broker.client("client/2"), APP, 310, send_ext("T1"), b"secret").code == 0
    broker.settle()
    assert (client.answered(waiting).code, client.answered(waiting).body) == (REFUSED, b"")


def test_the_global_white_list_permits_only_sending_and_consuming(broker: ServedBroker, client: FakeClient) -> None:
    as_root(broker, WHITE_LIST, {"globalWhiteAddrs": "10.0.0.1-50"})
    assert client.call(310, send_ext("T1")).code == 0
    assert client.call(11, pull_ext("T1")).code != REFUSED
    for code, ext in ((215, {"topic": "T1"}), (200, {}), (20_015, {}), (ALL, {}), (PUT, {"accessKey": "evil"})):
        assert client.call(code, ext, b'{"groupName":"G"}').code == REFUSED
    as_root(broker, WHITE_LIST, {"globalWhiteAddrs": ""})
    assert client.call(310, send_ext("T1")).code == REFUSED


def test_deleting_an_account_changes_the_version_and_removes_its_rights(client: FakeClient) -> None:
    put(client.broker, topicPerms="T1=PUB")
    before = as_root(client.broker, VERSION, {}).ext["version"]
    as_root(client.broker, DELETE, {"accessKey": "app"})
    after = as_root(client.broker, VERSION, {}).ext
    assert after["version"] != before
    files = json.loads(after["allAclFileVersion"])
    assert list(files.values()) == [json.loads(after["version"])], "by file: mqadmin 4.9.8 reads each as a version"
    assert not may_send(client, "T1")
    assert b"secret-of-app" not in as_root(client.broker, ALL, {}).body


@pytest.mark.parametrize(
    "fields",
    [
        {"topicPerms": "T1"},
        {"topicPerms": "T1=FLY"},
        {"topicPerms": "T*=PUB"},
        {"topicPerms": "T1=pub"},
        {"topicPerms": "T1=PUB | SUB"},
        {"defaultTopicPerm": "ANY"},
        {"defaultTopicPerm": "MAYBE"},
        {"whiteRemoteAddress": "10.0.0.256"},
        {"accessKey": "a b"},
        {"secretKey": ""},
    ],
)
def test_invalid_fields_of_an_account_are_refused(client: FakeClient, fields: dict[str, str]) -> None:
    answer = call(client, ROOT_CREDENTIALS, PUT, {"accessKey": "app", "secretKey": "secret", **fields})
    assert answer.code == InvalidParameter.response_code
    assert json.loads(as_root(client.broker, ALL, {}).body)["plainAccessConfigs"] == []


@pytest.mark.parametrize(
    ("pattern", "address", "matches"),
    [
        ("*", "2001:db8::1", True),
        ("10.0.0.7", "10.0.0.7", True),
        ("10.0.0.7", "10.0.0.8", False),
        ("10.0.0.0/8", "10.200.0.1", True),
        ("10.0.*.1-5", "10.0.9.5", True),
        ("10.0.*.1-5", "10.0.9.6", False),
        ("10.0.0.{1,7}", "10.0.0.7", True),
        ("10.0.0.{1,7}", "10.0.0.2", False),
        ("2001:db8::/32", "2001:db8:1::1", True),
        ("2001:db8::/32", "10.0.0.1", False),
        ("10.0.0.*", "not an address", False),
    ],
)
def test_address_patterns_match_addresses_ranges_lists_and_networks(pattern: str, address: str, matches: bool) -> None:
    assert compile_address(pattern)(address) is matches


@pytest.mark.parametrize("pattern", ["", "10.0.0", "10.0.0.300", "10.0.0.{}", "10.0.0.5-1", "a.b.c.d", "10.0.0.0/40"])
def test_an_invalid_address_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidParameter, match="address"):
        compile_address(pattern)
