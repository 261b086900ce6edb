"""Requests about leadership: what a node has seen, and a handover with a right of its own, on the audit log."""

from __future__ import annotations

import json

from served_broker import ServedBroker

from dledger_broker.kernel.rights import Action
from dledger_broker.testing.node import NODE_ID
from tests.broker.features.accounts.guarded_broker import allow, call, guarded_broker, make_account

LIST, HAND_OVER = 20030, 20031
NO_PERMISSION, INVALID_PARAMETER = 16, 29


def test_a_node_tells_the_leaders_that_it_has_seen_with_reasons(broker: ServedBroker) -> None:
    answer = broker.client().call(LIST)
    told = json.loads(answer.body)
    assert (answer.code, told["nodeId"]) == (0, NODE_ID)
    (change,) = told["changes"]
    assert (change["leader"], change["term"]) == (NODE_ID, broker.memory.node.term)
    assert change["reason"]


def test_a_leader_refuses_to_hand_over_to_a_node_that_cannot_lead(broker: ServedBroker) -> None:
    client = broker.client()
    assert client.call(HAND_OVER, {"nodeId": NODE_ID}).code == 0  # it leads already
    refused = client.call(HAND_OVER, {"nodeId": "n9"})
    assert (refused.code, "cannot take over now" in (refused.remark or "")) == (INVALID_PARAMETER, True)


def test_a_handover_needs_the_right_to_update_the_cluster_and_its_story_the_right_to_get_it() -> None:
    broker = guarded_broker()
    reader, operator = make_account(broker, "reader"), make_account(broker, "operator")
    allow(broker, "reader", "Cluster:*", Action.GET)
    allow(broker, "operator", "Cluster:*", Action.UPDATE)
    client = broker.client()
    codes = {
        (who.access_key, code): call(client, who, code, {"nodeId": NODE_ID}).code
        for who in (reader, operator)
        for code in (LIST, HAND_OVER)
    }
    assert codes == {
        ("reader", LIST): 0,
        ("reader", HAND_OVER): NO_PERMISSION,
        ("operator", LIST): NO_PERMISSION,
        ("operator", HAND_OVER): 0,
    }


def test_the_audit_log_knows_the_leader_and_who_was_asked_for(broker: ServedBroker) -> None:
    (read_state,) = (part.audited[HAND_OVER] for part in broker.service.parts if HAND_OVER in part.audited)

    class Asked:
        ext = {"nodeId": "n1"}  # noqa: RUF012 -- a stand-in for a request

    assert read_state(Asked()) == {"leader": NODE_ID, "asked for": "n1"}
