"""Accounts in the form of RocketMQ 4: what their permissions allow, white lists, and what is told of them."""

from __future__ import annotations

import json

import pytest
from guarded_broker import ROOT_CREDENTIALS, as_root, call, credentials, guarded_broker
from served_broker import FakeClient, ServedBroker, pull_ext, send_ext

from dledger_broker.features.accounts.addresses import compile_address
from dledger_remoting.errors import InvalidParameter

PUT, DELETE, VERSION, WHITE_LIST, ALL = range(50, 55)
REFUSED = 16
APP = credentials("app")


@pytest.fixture
def broker() -> ServedBroker:
    return guarded_broker()


@pytest.fixture
def client(broker: ServedBroker) -> FakeClient:
    return broker.client()


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
def test_a_permission_of_one_topic_says_everything_about_it(
    broker: ServedBroker, client: FakeClient, default: str, perms: str, sends: bool, pulls: bool
) -> None:
    put(broker, defaultTopicPerm=default, topicPerms=perms, groupPerms="CG=SUB")
    assert (may_send(client, "T1"), may_pull(client, "T1")) == (sends, pulls)


@pytest.mark.parametrize(
    ("default", "perms", "pulls"),
    [("", "", False), ("SUB", "", True), ("SUB", "CG=DENY", False), ("DENY", "CG=SUB", True)],
)
def test_permissions_of_groups(broker: ServedBroker, client: FakeClient, default: str, perms: str, pulls: bool) -> None:
    put(broker, defaultTopicPerm="SUB", defaultGroupPerm=default, groupPerms=perms)
    assert may_pull(client, "T1") == pulls


def test_what_a_request_does_not_say_stays(broker: ServedBroker, client: FakeClient) -> None:
    put(broker, topicPerms="T1=PUB", whiteRemoteAddress="10.9.9.9")
    as_root(broker, PUT, {"accessKey": "app", "admin": "false", "groupPerms": "CG=SUB"})
    assert may_send(client, "T1")
    told = json.loads(as_root(broker, ALL, {}).body)["plainAccessConfigs"]
    assert told == [
        {
            "accessKey": "app",
            "whiteRemoteAddress": "10.9.9.9",
            "admin": False,
            "defaultTopicPerm": "DENY",
            "defaultGroupPerm": "DENY",
            "topicPerms": ["T1=PUB"],
            "groupPerms": ["CG=SUB"],
        }
    ]


def test_a_white_listed_address_needs_the_name_of_the_account_and_no_signature(
    broker: ServedBroker, client: FakeClient
) -> None:
    put(broker, admin="true", topicPerms="T1=PUB", whiteRemoteAddress="10.0.0.{7,9},192.168.0.*")
    unsigned = {**send_ext("T1"), "AccessKey": "app"}
    assert client.call(310, unsigned).code == 0
    assert client.call(310, {**send_ext("T2"), "AccessKey": "app"}).code == REFUSED
    assert client.call(ALL, {"AccessKey": "app"}).code == REFUSED, "an address makes no administrator"
    assert call(client, APP, 310, send_ext("T1")).code == 0
    put(broker, whiteRemoteAddress="192.168.0.*")
    assert client.call(310, unsigned).code == REFUSED


@pytest.mark.parametrize("by_name", [True, False])
def test_what_waits_for_an_address_ends_with_the_white_list_that_let_it_in(
    broker: ServedBroker, client: FakeClient, by_name: bool
) -> None:
    put(broker, topicPerms="T1=PUB|SUB", groupPerms="CG=SUB")
    ext = {**pull_ext("T1", sysFlag="6", suspendTimeoutMillis="15000"), "AccessKey": "app"}
    if by_name:
        put(broker, whiteRemoteAddress="10.0.0.9")
    else:
        as_root(broker, WHITE_LIST, {"globalWhiteAddrs": "10.0.0.9"})
        del ext["AccessKey"]
    waiting = client.send(11, ext)
    broker.settle()
    assert not client.has_answer(waiting)
    if by_name:
        put(broker, whiteRemoteAddress="10.0.0.8")
    else:
        as_root(broker, WHITE_LIST, {"globalWhiteAddrs": ""})
    assert call(broker.client("client/2"), APP, 310, send_ext("T1"), b"secret").code == 0
    broker.settle()
    assert (client.answered(waiting).code, client.answered(waiting).body) == (REFUSED, b"")


def test_the_global_white_list_lets_clients_send_and_consume_and_no_more(
    broker: ServedBroker, client: FakeClient
) -> None:
    as_root(broker, WHITE_LIST, {"globalWhiteAddrs": "10.0.0.1-50"})
    assert client.call(310, send_ext("T1")).code == 0
    assert client.call(11, pull_ext("T1")).code != REFUSED
    for code, ext in ((215, {"topic": "T1"}), (200, {}), (20_015, {}), (ALL, {}), (PUT, {"accessKey": "evil"})):
        assert client.call(code, ext, b'{"groupName":"G"}').code == REFUSED
    as_root(broker, WHITE_LIST, {"globalWhiteAddrs": ""})
    assert client.call(310, send_ext("T1")).code == REFUSED


def test_versions_grow_and_deleted_accounts_are_gone(broker: ServedBroker, client: FakeClient) -> None:
    put(broker, topicPerms="T1=PUB")
    before = as_root(broker, VERSION, {}).ext["version"]
    as_root(broker, DELETE, {"accessKey": "app"})
    after = as_root(broker, VERSION, {}).ext
    assert after["version"] != before
    files = json.loads(after["allAclFileVersion"])
    assert list(files.values()) == [json.loads(after["version"])], "by file: mqadmin 4.9.8 reads each as a version"
    assert not may_send(client, "T1")
    assert b"secret-of-app" not in as_root(broker, ALL, {}).body


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
def test_what_cannot_be_read_is_refused(broker: ServedBroker, client: FakeClient, fields: dict[str, str]) -> None:
    answer = call(client, ROOT_CREDENTIALS, PUT, {"accessKey": "app", "secretKey": "secret", **fields})
    assert answer.code == InvalidParameter.response_code
    assert json.loads(as_root(broker, ALL, {}).body)["plainAccessConfigs"] == []


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
def test_patterns_of_addresses(pattern: str, address: str, matches: bool) -> None:
    assert compile_address(pattern)(address) is matches


@pytest.mark.parametrize("pattern", ["", "10.0.0", "10.0.0.300", "10.0.0.{}", "10.0.0.5-1", "a.b.c.d", "10.0.0.0/40"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidParameter, match="address"):
        compile_address(pattern)
