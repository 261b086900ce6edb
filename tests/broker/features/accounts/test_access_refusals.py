"""Refusals of access control: RocketMQ's words, in the cases that a real 5.3.3 was asked about."""

from __future__ import annotations

import json
import logging
from functools import partial
from unittest.mock import Mock

import pytest
from guarded_broker import (
    DELETE_ACL,
    DELETE_USER,
    LIST_USERS,
    ROOT_CREDENTIALS,
    UPDATE_USER,
    allow,
    as_root,
    call,
    credentials,
    guarded_broker,
    make_account,
)
from served_broker import FakeClient, ServedBroker, pull_ext, send_ext

from dledger_broker.features.accounts.sealing import KeyFile, SealError
from dledger_remoting.codes import ResponseCode
from dledger_remoting.signatures import Credentials, signed

NO_PERMISSION = 16
IP = "10.0.0.9"


@pytest.fixture
def broker() -> ServedBroker:
    return guarded_broker()


@pytest.fixture
def client(broker: ServedBroker) -> FakeClient:
    return broker.client()


def refused(client: FakeClient, who: Credentials | None, code: int, ext: dict[str, str], words: str) -> None:
    answer = call(client, who, code, ext)
    assert (answer.code, (answer.remark or "").startswith(words)) == (NO_PERMISSION, True), answer.remark


@pytest.mark.parametrize("code", [10, 11, 34, 105, 310, 3001, 20_000])
def test_who_names_no_account_is_refused_whatever_the_code(client: FakeClient, code: int) -> None:
    refused(client, None, code, {}, "username cannot be null.")
    refused(
        client, None, code, {"AccessKey": "", "Signature": "AAAA", "OnsChannel": "ALIYUN"}, "username cannot be null."
    )


def test_an_unknown_account_is_not_found(client: FakeClient) -> None:
    refused(client, credentials("app"), 310, send_ext("T1"), "User:app is not found.")


def test_a_wrong_signature_is_refused(broker: ServedBroker, client: FakeClient) -> None:
    who = make_account(broker, "app")
    allow(broker, "app", "Topic:T1", "Pub")
    words = "check signature failed."
    refused(client, Credentials("app", "another secret"), 310, send_ext("T1"), words)
    ext = signed(send_ext("T1"), b"body", who)
    assert client.call(310, ext, b"body").code == 0
    for changed in ({**ext, "Signature": ""}, {**ext, "b": "T2"}, {**ext, "zone": "1"}):
        assert (client.call(310, changed, b"body").remark or "").startswith(words)
    assert (client.call(310, ext, b"other").remark or "").startswith(words)
    del ext["Signature"]
    assert (client.call(310, ext, b"body").remark or "").startswith(words)


def test_a_disabled_account_is_refused_at_once(broker: ServedBroker, client: FakeClient) -> None:
    who = make_account(broker, "app")
    allow(broker, "app", "Topic:T1", "Pub")
    assert call(client, who, 310, send_ext("T1")).code == 0
    as_root(broker, UPDATE_USER, {"username": "app"}, {"userStatus": "disable"})
    refused(client, who, 310, send_ext("T1"), "User:app is disabled.")
    as_root(broker, DELETE_USER, {"username": "app"})
    refused(client, who, 310, send_ext("T1"), "User:app is not found.")


def test_another_secret_counts_at_once(broker: ServedBroker, client: FakeClient) -> None:
    who = make_account(broker, "app")
    allow(broker, "app", "Topic:T1", "Pub")
    as_root(broker, UPDATE_USER, {"username": "app"}, {"password": "another secret"})
    refused(client, who, 310, send_ext("T1"), "check signature failed.")
    assert call(client, Credentials("app", "another secret"), 310, send_ext("T1")).code == 0


def test_a_missing_right_is_told_with_account_resource_and_address(broker: ServedBroker, client: FakeClient) -> None:
    who = make_account(broker, "app")
    words = f"User:app has no permission to access Topic:T1 from {IP}, no matched policies."
    refused(client, who, 310, send_ext("T1"), words)
    allow(broker, "app", "Topic:T1", "Sub")
    allow(broker, "app", "Topic:T2", "Pub")
    refused(client, who, 310, send_ext("T1"), words)
    allow(broker, "app", "Topic:T1", "Pub", sources=("10.0.0.8", "10.1.0.0/16"))
    refused(client, who, 310, send_ext("T1"), words)
    allow(broker, "app", "Topic:T1", "Pub", sources=("10.0.0.0/24",))
    assert call(client, who, 310, send_ext("T1")).code == 0


def test_the_rule_for_one_name_decides_before_the_one_for_all(broker: ServedBroker, client: FakeClient) -> None:
    who = make_account(broker, "app")
    allow(broker, "app", "Topic:*", "Pub")
    assert call(client, who, 310, send_ext("T1")).code == 0
    allow(broker, "app", "Topic:T1", "Pub", decision="Deny")
    refused(
        client,
        who,
        310,
        send_ext("T1"),
        f"User:app has no permission to access Topic:T1 from {IP}, the decision is deny.",
    )
    assert call(client, who, 310, send_ext("T2")).code == 0


def test_the_retry_topic_of_another_group_takes_a_right_on_that_group(broker: ServedBroker, client: FakeClient) -> None:
    """With RocketMQ it is open to whoever may consume as any group, and names his own."""
    who = make_account(broker, "app")
    allow(broker, "app", "Group:CG", "Sub")
    allow(broker, "app", "Topic:*", "Sub", "Pub")
    broker.memory.create_topic("%RETRY%other", 1)
    broker.memory.create_topic("%RETRY%CG", 1)
    assert call(client, who, 11, pull_ext("%RETRY%CG")).code != NO_PERMISSION
    refused(client, who, 11, pull_ext("%RETRY%other"), "User:app has no permission to access Group:other from")
    refused(client, who, 310, send_ext("%RETRY%other", a="CG"), "User:app has no permission to access Group:other from")


@pytest.mark.parametrize("retry", ["%RETRY%secret", "%RETRY%secret+orders", "%DLQ%secret"])
@pytest.mark.parametrize("first", ["Allow", "Deny"])
def test_a_rule_on_a_group_is_one_on_its_retry_and_dead_letter_topics(
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


def test_there_is_one_line_for_each_refusal_and_no_secret_in_it(
    broker: ServedBroker, client: FakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    who = make_account(broker, "app")
    with caplog.at_level(logging.DEBUG):
        refused(client, who, 310, send_ext("T1"), "User:app has no permission")
        refused(client, Credentials("app", "planted-secret"), 11, pull_ext("T1"), "check signature failed.")
    lines = [record.getMessage() for record in caplog.records if "access_refused" in record.getMessage()]
    assert [(f"client={IP}:40000" in line, "app" in line) for line in lines] == [(True, True), (True, True)]
    assert "Topic:T1" in lines[0]
    assert "Pub" in lines[0]
    assert "secret" not in caplog.text


def test_accounts_are_told_without_their_secrets(broker: ServedBroker) -> None:
    make_account(broker, "app")
    told = as_root(broker, 3004, {"username": "app"}).body + as_root(broker, 3005, {"filter": ""}).body
    assert b"secret-of-app" not in told
    assert json.loads(as_root(broker, 3004, {"username": "app"}).body) == {
        "username": "app",
        "userType": "Normal",
        "userStatus": "enable",
    }


def test_only_administrators_make_administrators(broker: ServedBroker, client: FakeClient) -> None:
    who = make_account(broker, "app")
    allow(broker, "app", "*", "All")
    body = json.dumps({"password": "secret", "userType": "Super"}).encode()
    answer = client.call(3001, signed({"username": "evil"}, body, who), body)
    assert (answer.code, "administrators only" in (answer.remark or "")) == (NO_PERMISSION, True)
    admin = make_account(broker, "admin", "Super")
    assert client.call(3001, signed({"username": "good"}, body, admin), body).code == 0
    assert call(client, ROOT_CREDENTIALS, 3004, {"username": "good"}).code == 0


def test_reading_the_log_is_in_no_other_right(broker: ServedBroker, client: FakeClient) -> None:
    who = make_account(broker, "app")
    allow(broker, "app", "*", "All")
    refused(client, who, 20_015, {}, "User:app has no permission to access Cluster:DefaultCluster")
    allow(broker, "app", "Cluster:*", "Log")
    assert call(client, who, 20_015, {}).code != NO_PERMISSION


def test_what_a_client_waits_for_is_judged_again_when_it_comes(broker: ServedBroker, client: FakeClient) -> None:
    who = make_account(broker, "app")
    allow(broker, "app", "Topic:T1", "Sub", "Pub")
    allow(broker, "app", "Group:CG", "Sub")
    ext = signed(pull_ext("T1", sysFlag="6", suspendTimeoutMillis="15000"), b"", who)
    waiting = client.send(11, ext)
    broker.settle()
    assert not client.has_answer(waiting)
    allow(broker, "app", "Topic:T1", "Pub")
    assert call(broker.client("client/2"), who, 310, send_ext("T1")).code == 0
    broker.settle()
    assert client.answered(waiting).code == NO_PERMISSION


def test_what_waits_is_answered_where_this_node_cannot_judge_it_any_more(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The secret was sealed anew, with a key that this node's file does not have yet."""
    who = make_account(broker, "app")
    allow(broker, "app", "Topic:T1", "Sub", "Pub")
    allow(broker, "app", "Group:CG", "Sub")
    waiting = client.send(11, signed(pull_ext("T1", sysFlag="6", suspendTimeoutMillis="15000"), b"", who))
    broker.settle()
    sent = partial(call, broker.client("client/2"), ROOT_CREDENTIALS, 310, send_ext("T1"))
    as_root(broker, UPDATE_USER, {"username": "app"}, {"username": "app", "password": "another"})
    monkeypatch.setattr(KeyFile, "open", Mock(side_effect=SealError("another key")))
    assert sent().code == 0
    broker.settle()
    assert client.answered(waiting).code == ResponseCode.SYSTEM_BUSY


def test_a_name_that_no_account_has_fills_no_log(
    broker: ServedBroker, client: FakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    answer = call(client, Credentials("x" * 100_000, "secret"), 310, send_ext("T1"))
    assert answer.code == NO_PERMISSION
    assert len(answer.remark or "") < 200
    assert len(caplog.text) < 2_000


def test_an_administrator_who_signs_is_one_within_its_own_white_list(broker: ServedBroker, client: FakeClient) -> None:
    who = make_account(broker, "boss", "Super")
    ext = {"accessKey": "boss", "secretKey": who.secret, "admin": "true", "whiteRemoteAddress": "*"}
    as_root(broker, 50, ext)
    assert call(client, who, LIST_USERS, {"filter": ""}).code == 0
    refused = call(client, Credentials("boss", "wrong"), LIST_USERS, {"filter": ""})
    assert refused.code == NO_PERMISSION


def test_a_rule_ends_however_its_resource_was_written(broker: ServedBroker, client: FakeClient) -> None:
    who = make_account(broker, "app")
    allow(broker, "app", "topic:T1", "Pub")
    assert call(client, who, 310, send_ext("T1")).code == 0
    as_root(broker, DELETE_ACL, {"subject": "User:app", "resource": "TOPIC:T1"})
    assert call(client, who, 310, send_ext("T1")).code == NO_PERMISSION
