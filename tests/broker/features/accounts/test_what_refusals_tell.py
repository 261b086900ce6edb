"""What who lacks a right is told of what others have: nothing, neither in answers nor in refusals."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from guarded_broker import CONFIG, allow, call, guarded_broker, make_account
from served_broker import ServedBroker, make_served_broker, send_ext
from test_no_way_around import ask, guarded

from dledger_broker.features.accounts.table import DeleteAccount, PutAccount
from dledger_broker.testing import BrokerInMemory
from dledger_remoting.codes import RequestCode
from dledger_remoting.properties import format_properties
from dledger_remoting.signatures import Credentials, signed
from dledger_remoting.topics import SubscriptionGroupConfig
from tests.broker.features.pop.pop_calls import pop_ext
from tests.broker.requests.test_refusals import REQUESTS

REFUSED = 16


@pytest.mark.parametrize("code", [33, 36, 37])
def test_a_refusal_about_a_message_that_was_found_does_not_name_its_topic(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    broker = guarded()
    who = make_account(broker, "app")
    allow(broker, "app", "Group:*", "Sub")
    _, fields = REQUESTS[str(36 if code == 33 else code)]
    fields = {name: text for name, text in fields.items() if name not in ("topic", "originTopic")}
    with caplog.at_level(logging.WARNING):
        answer = ask(broker.client(), code, signed(fields, b"", who), b"", 0)
    assert (answer.code, "T1" in (answer.remark or "")) == (REFUSED, False)
    assert "Topic:T1" in caplog.text, "operators are told"


@pytest.mark.parametrize("wish", ["0", "8", "12"])
@pytest.mark.parametrize("group", ["PG", "another"])
def test_nothing_is_told_of_a_transaction_to_who_may_not_end_it(wish: str, group: str) -> None:
    broker = guarded()
    who, owner = make_account(broker, "app"), make_account(broker, "owner")
    allow(broker, "owner", "Topic:T1", "Pub")
    _, fields = REQUESTS[str(int(RequestCode.END_TRANSACTION))]
    ext = {**fields, "producerGroup": group, "commitOrRollback": wish}

    def told(one: Credentials, **changed: str) -> tuple[int, str | None]:
        answer = ask(broker.client(), 37, signed({**ext, **changed}, b"", one), b"", 0)
        return answer.code, answer.remark

    open_half = told(who)
    assert open_half[0] == REFUSED
    assert told(owner, producerGroup="PG", commitOrRollback="12")[0] == 0
    assert told(who) == open_half, "nor what has become of it"
    assert told(owner, producerGroup="PG", commitOrRollback="8")[0] == 1
    nowhere = told(who, commitLogOffset="77")
    assert nowhere == (1, "no transaction is open at 77: it has ended before, or never began")


def test_units_of_a_queue_come_with_a_groups_subscription_to_who_may_look_at_the_group() -> None:
    broker = guarded_broker()
    who = make_account(broker, "app")
    allow(broker, "app", "Topic:T1", "Get", "Pub")
    assert call(broker.client(), who, 310, send_ext("T1")).code == 0
    ext = {"topic": "T1", "queueId": "0", "index": "0", "count": "1"}
    assert ask(broker.client(), 321, signed(ext, b"", who), b"", 0).code == 0
    named = {**ext, "consumerGroup": "CG"}
    assert ask(broker.client(), 321, signed(named, b"", who), b"", 0).code == REFUSED


def test_replies_are_pushed_for_who_may_publish_to_their_topic_and_through_no_other() -> None:
    broker = guarded_broker()
    broker.memory.create_topic("DefaultCluster_REPLY_TOPIC")
    who, client = make_account(broker, "app"), broker.client()
    allow(broker, "app", "Topic:T1", "Pub")
    body = b'{"clientID":"requester","producerDataSet":[{"groupName":"PG"}]}'
    requester = broker.client("requester/1")
    assert call(requester, make_account(broker, "other"), 34, {}, body).code == 0
    reply = {"i": format_properties({"REPLY_TO_CLIENT": "requester", "CORRELATION_ID": "1"})}
    for topic in ("T1", "DefaultCluster_REPLY_TOPIC"):
        assert call(client, who, 325, send_ext(topic, **reply), b"x").code == REFUSED
    assert requester.pushed == []
    allow(broker, "app", "Topic:DefaultCluster_REPLY_TOPIC", "Pub")
    client.send(325, signed(send_ext("DefaultCluster_REPLY_TOPIC", **reply), b"x", who), b"x")
    broker.settle()
    assert [code for code, _ in requester.pushed] == [326]


def with_a_shared_name() -> tuple[ServedBroker, Credentials]:
    """Messages of group a_b in topic c lie in the retry topic of group a in b_c, and of group a_b_c."""
    broker = guarded_broker()
    for topic in ("c", "b_c", "%RETRY%a_b_c"):
        broker.memory.create_topic(topic)
    for group in ("a", "a_b"):
        broker.groups.put_group(SubscriptionGroupConfig(group), lambda _: None)
    owner, who = make_account(broker, "owner"), make_account(broker, "app")
    allow(broker, "owner", "Group:a_b_c", "Sub")
    assert call(broker.client(), owner, 310, send_ext("%RETRY%a_b_c"), b"of a_b").code == 0
    allow(broker, "app", "Group:a", "Sub")
    allow(broker, "app", "Topic:b_c", "Sub")
    return broker, who


@pytest.mark.parametrize("code", [200050, 200052, 200054])
def test_what_comes_again_for_one_group_is_not_popped_by_another_that_has_the_same_retry_topic(code: int) -> None:
    broker, who = with_a_shared_name()
    ext = pop_ext("b_c", consumerGroup="a", pollTime="0", initMode="0")
    for group in ("a", "a_b", "a_b_c"):
        allow(broker, "app", f"Group:{group}", "Sub")
        answer = call(broker.client(), who, code, ext)
        assert b"of a_b" not in answer.body
        assert answer.ext.get("hasMsg", "false") == "false"


def test_a_node_without_the_key_file_serves_nobody_once_there_are_accounts(caplog: pytest.LogCaptureFixture) -> None:
    memory = BrokerInMemory()
    broker = make_served_broker(replace(CONFIG, access_key_file=None), memory)
    memory.create_topic("T1")
    client, access = broker.client(), broker.service.access
    assert client.send_message("T1").code == 0
    assert access.obstacle is None
    memory.machine.stage_command(PutAccount("app", "key:c2VjcmV0"), lambda _: None)
    broker.settle()
    for code, ext in ((310, send_ext("T1")), (11, {}), (34, {}), (105, {}), (20018, {})):
        answer = client.call(code, ext)
        assert (answer.code, "has no access_key_file" in (answer.remark or "")) == (REFUSED, True)
    assert "has no access_key_file" in (access.obstacle or "")
    assert caplog.text.count("event=access_key_file_missing") == 1
    memory.machine.stage_command(DeleteAccount("app"), lambda _: None)
    broker.settle()
    assert client.send_message("T1").code == 0
    assert access.obstacle is None
