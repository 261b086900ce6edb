"""Requests for the audit log: the newest lines of this node, for accounts with the right to read everything."""

from __future__ import annotations

import json
from pathlib import Path

from served_broker import ServedBroker, make_served_broker

from dledger_broker.config import BrokerConfig
from dledger_broker.kernel.rights import Action
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.node import NODE_ID
from dledger_remoting.signatures import signed
from tests.broker.features.accounts.guarded_broker import allow, guarded_broker, make_account

READ_AUDIT = 20032
SYSTEM_ERROR, NO_PERMISSION, INVALID_PARAMETER = 1, 16, 29


def broker_in(folder: Path) -> ServedBroker:
    (folder / "log").mkdir()
    config = BrokerConfig(broker_group="broker-a", node_id=NODE_ID, data_dir=folder)
    return make_served_broker(config, BrokerInMemory())


def told(broker: ServedBroker, **ext: str) -> list[dict[str, object]]:
    answer = broker.client().call_from_disk(READ_AUDIT, ext)
    assert answer.code == 0, answer.remark
    body = json.loads(answer.body)
    assert body["nodeId"] == NODE_ID
    return body["lines"]


def test_a_node_tells_its_newest_lines_across_files_and_those_with_a_word(tmp_path: Path) -> None:
    broker = broker_in(tmp_path)
    assert told(broker) == []
    line = {"time": "2026-01-02T03:04:05.000Z", "who": "app", "from": "10.0.0.1:5", "what": "PUT_QUOTA"}
    older = json.dumps({**line, "what": "DELETE_TOPIC", "outcome": "done", "before": {"queues": 4}, "after": None})
    newer = json.dumps({**line, "outcome": "16 no", "before": None, "after": None, "untold": 3})
    (tmp_path / "log/audit.log.2026-01-01").write_text(f"{older}\n")
    (tmp_path / "log/audit.log").write_text(f"half a line\n{newer}\n")
    assert told(broker) == [
        {
            "time": line["time"],
            "who": "app",
            "address": "10.0.0.1:5",
            "what": "PUT_QUOTA",
            "outcome": "16 no",
            "untold": 3,
        },
        {
            "time": line["time"],
            "who": "app",
            "address": "10.0.0.1:5",
            "what": "DELETE_TOPIC",
            "outcome": "done",
            "before": '{"queues": 4}',
        },
    ]
    assert [one["what"] for one in told(broker, word="delete")] == ["DELETE_TOPIC"]
    assert [one["what"] for one in told(broker, maxLines="1")] == ["PUT_QUOTA"]


def test_the_audit_log_needs_a_right_of_its_own() -> None:
    broker = guarded_broker()
    looker, auditor = make_account(broker, "looker"), make_account(broker, "auditor")
    allow(broker, "looker", "Cluster:*", Action.GET)
    allow(broker, "auditor", "Cluster:*", Action.LOG)
    client = broker.client()
    assert client.call_from_disk(READ_AUDIT, signed({}, b"", looker)).code == NO_PERMISSION
    assert client.call_from_disk(READ_AUDIT, signed({}, b"", auditor)).code == 0
    wrong = client.call_from_disk(READ_AUDIT, signed({"maxLines": "501"}, b"", auditor))
    assert (wrong.code, "outside 1..500" in (wrong.remark or "")) == (INVALID_PARAMETER, True)


def test_an_audit_log_that_cannot_be_read_is_no_empty_one(tmp_path: Path) -> None:
    broker = broker_in(tmp_path)
    (tmp_path / "log/audit.log").mkdir()  # nobody can read that as a file
    answer = broker.client().call_from_disk(READ_AUDIT, {})
    assert answer.code == SYSTEM_ERROR
    assert "audit.log" in (answer.remark or "")
