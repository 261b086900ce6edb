"""Answers and refusals tell an account that lacks a right nothing of what others have."""

import logging
from dataclasses import replace

import pytest
from guarded_broker import CONFIG, account, allow, call, make_account
from served_broker import ServedBroker, make_served_broker, send_ext
from test_no_way_around import ask_as, guarded

from dledger_broker.features.accounts.table import DeleteAccount, PutAccount
from dledger_broker.testing import BrokerInMemory
from dledger_remoting.codes import RequestCode
from dledger_remoting.properties import format_properties
from dledger_remoting.signatures import Credentials, signed
from tests.broker.features.pop.pop_calls import pop_ext
from tests.broker.requests.test_refusals import REQUESTS

REFUSED = 16


@pytest.mark.parametrize("code", [33, 36, 37])
def test_a_refusal_about_a_found_message_does_not_name_its_topic(code: int, caplog: pytest.LogCaptureFixture) -> None:
    broker = guarded()
    who = account(broker, "app", "Group:* Sub")
    _, fields = REQUESTS[str(36 if code == 33 else code)]
    fields = {name: text for name, text in fields.items() if name not in ("topic", "originTopic")}
    with caplog.at_level(logging.WARNING):
        answer = ask_as(broker, who, code, fields)
    assert (answer.code, "T1" in (answer.remark or "")) == (REFUSED, False)
    assert "Topic:T1" in caplog.text, "operators are told"


@pytest.mark.parametrize("wish", ["0", "8", "12"])
@pytest.mark.parametrize("group", ["PG", "another"])
def test_an_account_that_may_not_end_a_transaction_learns_nothing_about_its_outcome(wish: str, group: str) -> None:
    broker = guarded()
    who, owner = account(broker, "app"), account(broker, "owner", "Topic:T1 Pub")
    _, fields = REQUESTS[str(int(RequestCode.END_TRANSACTION))]
    ext = {**fields, "producerGroup": group, "commitOrRollback": wish}

    def told(one: Credentials, **changed: str) -> tuple[int, str | None]:
        answer = ask_as(broker, one, 37, {**ext, **changed})
        return answer.code, answer.remark

    open_half = told(who)
    assert open_half[0] == REFUSED
    assert told(owner, producerGroup="PG", commitOrRollback="12")[0] == 0
    assert told(who) == open_half, "nor what has become of it"
    assert told(owner, producerGroup="PG", commitOrRollback="8")[0] == 1
    nowhere = told(who, commitLogOffset="77")
    assert nowhere == (1, "no transaction is open at 77: it has ended before, or never began")


def test_querying_units_with_a_group_needs_a_right_on_the_group(broker: ServedBroker) -> None:
    who = account(broker, "app", "Topic:T1 Get Pub")
    assert call(broker.client(), who, 310, send_ext("T1")).code == 0
    ext = {"topic": "T1", "queueId": "0", "index": "0", "count": "1"}
    assert ask_as(broker, who, 321, ext).code == 0
    assert ask_as(broker, who, 321, {**ext, "consumerGroup": "CG"}).code == REFUSED


def test_pushing_a_reply_needs_a_right_to_publish_to_the_reply_topic(broker: ServedBroker) -> None:
    broker.memory.create_topic("DefaultCluster_REPLY_TOPIC")
    who, client = account(broker, "app", "Topic:T1 Pub"), broker.client()
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


@pytest.mark.parametrize("code", [200050, 200052, 200054])
def test_retries_are_popped_by_no_other_group_with_the_same_retry_topic(broker: ServedBroker, code: int) -> None:
    """Messages of group a_b in topic c lie in the retry topic of group a in b_c, and of group a_b_c."""
    for topic in ("c", "b_c", "%RETRY%a_b_c"):
        broker.memory.create_topic(topic)
    broker.put_group("a").put_group("a_b")
    owner = account(broker, "owner", "Group:a_b_c Sub")
    assert call(broker.client(), owner, 310, send_ext("%RETRY%a_b_c"), b"of a_b").code == 0
    who = account(broker, "app", "Group:a Sub", "Topic:b_c Sub")
    ext = pop_ext("b_c", consumerGroup="a")
    for group in ("a", "a_b", "a_b_c"):
        allow(broker, "app", f"Group:{group}", "Sub")
        answer = call(broker.client(), who, code, ext)
        assert b"of a_b" not in answer.body
        assert answer.ext.get("hasMsg", "false") == "false"


def test_a_node_without_a_key_file_refuses_everything_once_there_are_accounts(caplog: pytest.LogCaptureFixture) -> None:
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
