"""Refusals of access control have RocketMQ's words, in the cases that a real 5.3.3 was asked about."""

import json
import logging
from functools import partial
from unittest.mock import Mock

import pytest
from guarded_broker import PRODUCING, ROOT_CREDENTIALS, account, allow, as_root, call, credentials, make_account
from served_broker import FakeClient, ServedBroker, pull_ext, send_ext

from dledger_base.telling import INTERVAL_S, MAX_LINES_OF_HOST
from dledger_broker.features.accounts.sealing import KeyFile, SealError
from dledger_remoting import signatures
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.signatures import Credentials, signed

NO_PERMISSION = 16
IP = "10.0.0.9"


def refused(client: FakeClient, who: Credentials | None, code: int, ext: dict[str, str], words: str) -> None:
    answer = call(client, who, code, ext)
    assert (answer.code, (answer.remark or "").startswith(words)) == (NO_PERMISSION, True), answer.remark


def test_a_request_that_names_no_account_is_refused(client: FakeClient) -> None:
    for ext in ({}, {"AccessKey": "", "Signature": "AAAA", "OnsChannel": "ALIYUN"}):
        for code in (10, 11, 34, 105, 310, 3001, 20_000):
            refused(client, None, code, ext, "username cannot be null.")


def test_a_wrong_signature_is_refused(broker: ServedBroker, client: FakeClient) -> None:
    who = account(broker, "app", "Topic:T1 Pub")
    words = "check signature failed."
    refused(client, Credentials("app", "another secret"), 310, send_ext("T1"), words)
    ext = signed(send_ext("T1"), b"body", who)
    assert client.call(310, ext, b"body").code == 0
    unsigned = {name: value for name, value in ext.items() if name != "Signature"}
    for changed in ({**ext, "Signature": ""}, {**ext, "b": "T2"}, {**ext, "zone": "1"}, unsigned):
        assert (client.call(310, changed, b"body").remark or "").startswith(words)
    assert (client.call(310, ext, b"other").remark or "").startswith(words)


def test_a_disabled_or_deleted_account_is_refused_at_once(broker: ServedBroker, client: FakeClient) -> None:
    who = account(broker, "app", "Topic:T1 Pub")
    assert call(client, who, 310, send_ext("T1")).code == 0
    as_root(broker, RequestCode.AUTH_UPDATE_USER, {"username": "app"}, {"userStatus": "disable"})
    refused(client, who, 310, send_ext("T1"), "User:app is disabled.")
    as_root(broker, RequestCode.AUTH_DELETE_USER, {"username": "app"})
    refused(client, who, 310, send_ext("T1"), "User:app is not found.")


def test_a_refusal_names_the_account_the_resource_and_the_address(broker: ServedBroker, client: FakeClient) -> None:
    who = make_account(broker, "app")
    words = f"User:app has no permission to access Topic:T1 from {IP}, no matched policies."
    refused(client, who, 310, send_ext("T1"), words)
    for topic, action, sources in (("T1", "Sub", ()), ("T2", "Pub", ()), ("T1", "Pub", ("10.0.0.8", "10.1.0.0/16"))):
        allow(broker, "app", f"Topic:{topic}", action, sources=sources)
        refused(client, who, 310, send_ext("T1"), words)
    allow(broker, "app", "Topic:T1", "Pub", sources=("10.0.0.0/24",))
    assert call(client, who, 310, send_ext("T1")).code == 0


def test_a_rule_for_one_name_takes_precedence_over_a_rule_for_all_names(client: FakeClient) -> None:
    who = account(client.broker, "app", "Topic:* Pub")
    assert call(client, who, 310, send_ext("T1")).code == 0
    allow(client.broker, "app", "Topic:T1", "Pub", decision="Deny")
    words = f"User:app has no permission to access Topic:T1 from {IP}, the decision is deny."
    refused(client, who, 310, send_ext("T1"), words)
    assert call(client, who, 310, send_ext("T2")).code == 0


def test_the_retry_topic_of_another_group_takes_a_right_on_that_group(broker: ServedBroker, client: FakeClient) -> None:
    """With RocketMQ, it is open to every account that may consume as any group and names its own group."""
    who = account(broker, "app", "Group:CG Sub", "Topic:* Sub Pub")
    broker.memory.create_topic("%RETRY%other", 1)
    broker.memory.create_topic("%RETRY%CG", 1)
    assert call(client, who, 11, pull_ext("%RETRY%CG")).code != NO_PERMISSION
    for code, ext in ((11, pull_ext("%RETRY%other")), (310, send_ext("%RETRY%other", a="CG"))):
        refused(client, who, code, ext, "User:app has no permission to access Group:other from")


@pytest.mark.parametrize("retry", ["%RETRY%secret", "%RETRY%secret+orders", "%DLQ%secret"])
@pytest.mark.parametrize("first", ["Allow", "Deny"])
def test_a_rule_on_a_group_applies_to_its_retry_and_dead_letter_topics(
    broker: ServedBroker, client: FakeClient, first: str, retry: str
) -> None:
    who = make_account(broker, "app")
    rules = {"Allow": ("Group:*", "Allow"), "Deny": ("Group:secret", "Deny")}
    for name in (first, *(rules.keys() - {first})):
        resource, decision = rules[name]
        allow(broker, "app", resource, "Sub", "Get", decision=decision)
    allow(broker, "app", "Topic:*", "Sub", "Get")
    broker.memory.create_topic(retry)
    pulled = pull_ext(retry, consumerGroup="mine")
    for code in (11, 361):
        refused(client, who, code, pulled, "User:app has no permission to access Group:secret from")
    for code in (12, 29, 30, 31):
        asked = {"topic": retry, "queueId": "0", "key": "k", "timestamp": "0", "offset": "0"}
        refused(client, who, code, asked, "User:app has no permission to access Group:secret from")


def test_refusals_are_logged_at_a_limited_rate_and_counted_without_secrets(
    broker: ServedBroker, client: FakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    who = make_account(broker, "app")

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if "access_refused" in record.getMessage()]

    with caplog.at_level(logging.DEBUG):
        for _ in range(3):
            refused(client, who, 310, send_ext("T1"), "User:app has no permission")
            refused(client, Credentials("app", "planted-secret"), 11, pull_ext("T1"), "check signature failed.")
        for number in range(100):  # a stranger can use any number of names
            refused(client, credentials(f"name-{number}"), 310, send_ext("T1"), f"User:name-{number} is not found.")
        assert len(lines()) == MAX_LINES_OF_HOST
        assert [part in lines()[0] for part in (f"client={IP}:40000", "app", "Topic:T1", "Pub")] == [True] * 4
        broker.advance(INTERVAL_S)
        refused(client, who, 310, send_ext("T1"), "User:app has no permission")
    assert sum(int(line.rpartition("=")[2]) for line in lines()) == 3 * 2 + 100 - MAX_LINES_OF_HOST
    assert "secret" not in caplog.text


def test_only_administrators_make_administrators(broker: ServedBroker, client: FakeClient) -> None:
    who = account(broker, "app", "* All")
    body = json.dumps({"password": "secret", "userType": "Super"}).encode()
    answer = client.call(3001, signed({"username": "evil"}, body, who), body)
    assert (answer.code, "administrators only" in (answer.remark or "")) == (NO_PERMISSION, True)
    admin = make_account(broker, "admin", "Super")
    assert client.call(3001, signed({"username": "good"}, body, admin), body).code == 0
    assert call(client, ROOT_CREDENTIALS, 3004, {"username": "good"}).code == 0


def test_reading_the_log_needs_a_right_of_its_own(broker: ServedBroker, client: FakeClient) -> None:
    who = account(broker, "app", "* All")
    refused(client, who, 20_015, {}, "User:app has no permission to access Cluster:DefaultCluster")
    allow(broker, "app", "Cluster:*", "Log")
    assert call(client, who, 20_015, {}).code != NO_PERMISSION


@pytest.fixture
def waiting(broker: ServedBroker, client: FakeClient) -> int:
    """Return the opaque of a pull of T1 that waits for a message."""
    who = account(broker, "app", "Topic:T1 Sub Pub", "Group:CG Sub")
    opaque = client.send(11, signed(pull_ext("T1", sysFlag="6", suspendTimeoutMillis="15000"), b"", who))
    broker.settle()
    assert not client.has_answer(opaque)
    return opaque


def test_a_held_pull_is_authorized_again_when_its_message_comes(client: FakeClient, waiting: int) -> None:
    allow(client.broker, "app", "Topic:T1", "Pub")
    assert call(client.broker.client("client/2"), credentials("app"), 310, send_ext("T1")).code == 0
    client.broker.settle()
    assert client.answered(waiting).code == NO_PERMISSION


def test_a_held_pull_is_answered_busy_when_the_node_can_no_longer_open_the_secret(
    broker: ServedBroker, client: FakeClient, waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The secret was sealed again, with a key that this node's key file does not have yet."""
    sent = partial(call, broker.client("client/2"), ROOT_CREDENTIALS, 310, send_ext("T1"))
    as_root(broker, RequestCode.AUTH_UPDATE_USER, {"username": "app"}, {"username": "app", "password": "another"})
    monkeypatch.setattr(KeyFile, "open", Mock(side_effect=SealError("another key")))
    assert sent().code == 0
    broker.settle()
    assert client.answered(waiting).code == ResponseCode.SYSTEM_BUSY


def test_a_long_unknown_account_name_is_cut_in_answer_and_log(
    broker: ServedBroker, client: FakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    answer = call(client, Credentials("x" * 100_000, "secret"), 310, send_ext("T1"))
    assert answer.code == NO_PERMISSION
    assert len(answer.remark or "") < 200
    assert len(caplog.text) < 2_000


def test_a_signing_administrator_keeps_its_rights_within_its_own_white_list(client: FakeClient) -> None:
    who = make_account(client.broker, "boss", "Super")
    as_root(
        client.broker, 50, {"accessKey": "boss", "secretKey": who.secret, "admin": "true", "whiteRemoteAddress": "*"}
    )
    assert call(client, who, RequestCode.AUTH_LIST_USER, {"filter": ""}).code == 0
    assert call(client, Credentials("boss", "wrong"), RequestCode.AUTH_LIST_USER, {"filter": ""}).code == NO_PERMISSION


def test_a_rule_is_deleted_regardless_of_the_case_of_its_resource_type(client: FakeClient) -> None:
    who = account(client.broker, "app", "topic:T1 Pub")
    assert call(client, who, 310, send_ext("T1")).code == 0
    as_root(client.broker, RequestCode.AUTH_DELETE_ACL, {"subject": "User:app", "resource": "TOPIC:T1"})
    assert call(client, who, 310, send_ext("T1")).code == NO_PERMISSION


@pytest.mark.parametrize("right", [True, False])
def test_a_signature_is_computed_once_for_each_request(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch, right: bool
) -> None:
    who = account(broker, "app", "Topic:T1 Pub")
    computed = Mock(side_effect=signatures.signature_of)
    ext = signed(send_ext("T1"), b"body", who if right else Credentials("app", "another secret"))
    monkeypatch.setattr(signatures, "signature_of", computed)
    assert client.call(310, ext, b"body").code == (0 if right else NO_PERMISSION)
    assert computed.call_count == 1


@pytest.mark.parametrize("code", [3006, 3007])
def test_a_denial_and_a_permission_on_one_resource_are_both_kept_and_applied(client: FakeClient, code: int) -> None:
    who = account(client.broker, "app", "Topic:* Pub Sub", "Group:* Sub")
    entries = [
        {"resource": "Topic:T1", "actions": [action], "sourceIps": [], "decision": decision}
        for action, decision in (("Sub", "Deny"), ("Pub", "Allow"))
    ]
    policies = {"subject": "User:app", "policies": [{"policyType": "Custom", "entries": entries}]}
    as_root(client.broker, code, {"subject": "User:app"}, policies)
    assert call(client, who, 310, send_ext("T1"), b"x").code == 0
    refused(client, who, 11, pull_ext("T1"), "User:app has no permission to access Topic:T1 from")
    assert call(client, who, 11, pull_ext("T2")).code != NO_PERMISSION
    told = json.loads(call(client, ROOT_CREDENTIALS, 3009, {"subject": "User:app"}).body)
    kept = [entry["decision"] for entry in told["policies"][0]["entries"] if entry["resource"] == "Topic:T1"]
    assert kept == ["Deny", "Allow"]


def test_sending_to_a_dead_letter_topic_needs_a_right_on_the_topic(broker: ServedBroker, client: FakeClient) -> None:
    who = account(broker, "app", "Group:CG Sub")
    broker.memory.create_topic("%DLQ%CG", 1)
    refused(client, who, 310, send_ext("%DLQ%CG", a="CG"), "User:app has no permission to access Topic:%DLQ%CG from")
    assert call(client, who, 11, pull_ext("%DLQ%CG")).code != NO_PERMISSION
    allow(broker, "app", "Topic:%DLQ%CG", "Pub")
    assert call(client, who, 310, send_ext("%DLQ%CG", a="CG"), b"x").code == 0


@pytest.mark.parametrize("ext", [{"AccessKey": "boss"}, {}], ids=["an administrator's", "the global one"])
def test_a_client_admitted_by_a_white_list_gets_only_checks_of_permitted_messages(
    broker: ServedBroker, client: FakeClient, ext: dict[str, str]
) -> None:
    """An address makes no administrator, and gives no right after it is taken from the list."""
    make_account(broker, "boss", "Super")
    listed = {"accessKey": "boss", "secretKey": "secret-of-boss", "admin": "true", "whiteRemoteAddress": "*"}
    lists = {True: (50, listed, listed | {"whiteRemoteAddress": ""}), False: (53, {"globalWhiteAddrs": "*"}, {})}
    code, on, off = lists[bool(ext)]
    as_root(broker, code, on)
    assert client.call(34, ext, PRODUCING).code == 0

    def is_asked() -> bool:
        client.pushed.clear()
        broker.service.relay.call_producer("PG", 39, {"topic": "T1"}, b"the message", 0.0, lambda _: None)
        broker.settle()
        return [one for one, _ in client.pushed] == [39]

    assert is_asked() == (not ext), "the global list gives what clients need"
    as_root(broker, code, off or {"globalWhiteAddrs": ""})
    assert not is_asked()
