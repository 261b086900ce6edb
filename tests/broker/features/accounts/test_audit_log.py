"""Audit log: it shows changes with the state before and after, and is bounded, private, and safe for terminals."""

import json
import logging
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from guarded_broker import CONFIG, ROOT_CREDENTIALS, call, make_account
from served_broker import make_served_broker, send_ext

from dledger_base.audit_log import BURST_LINES, AuditFile, AuditLog
from dledger_broker.testing import BrokerInMemory
from dledger_namesrv.config import build_config
from dledger_namesrv.kv import KVStore
from dledger_namesrv.processors import Processors
from dledger_namesrv.table import RouteTable
from dledger_remoting.command import RemotingCommand
from tests.broker.requests.test_crossing_changes import topic_ext

ESCAPES = "T\x1b]0;x\x07"


def lines_in(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "audit.log").read_text("ascii").splitlines()]


def test_the_audit_log_has_changes_of_a_broker_with_values_before_and_after(tmp_path) -> None:
    broker = make_served_broker(replace(CONFIG, audit_days=1), BrokerInMemory())
    client, audit = broker.client(), broker.service.requests.audit.log
    audit.open(tmp_path, 1)
    make_account(broker, "app")

    def asked(code: int, ext: dict[str, str], body: object = None) -> int:
        return call(client, ROOT_CREDENTIALS, code, ext, b"" if body is None else json.dumps(body).encode()).code

    rules = [{"policyType": "Custom", "entries": [{"resource": "Topic:T1", "actions": ["Pub"], "decision": "Allow"}]}]
    quota = {"kind": "topic", "name": "T1", "messagesPerSecond": 5, "bytesPerSecond": 0}
    assert [asked(17, topic_ext("T1")) for _ in range(2)] == [0, 0]
    assert asked(17, topic_ext(ESCAPES)) != 0
    assert asked(200, {}, {"groupName": "g"}) == 0
    assert asked(3007, {"subject": "User:app"}, {"subject": "User:app", "policies": rules}) == 0
    assert asked(3002, {"username": "app"}, {"username": "app", "password": "planted-secret"}) == 0
    assert asked(20017, {}, quota) == 0
    assert call(client, ROOT_CREDENTIALS, 25, {}, b"retention_hours=7").code == 0
    assert asked(215, {"topic": "T1"}) == 0
    assert asked(310, send_ext("T2")) == 0, "a send is no change that is told"
    audit.close()
    found = lines_in(tmp_path)
    assert all(line["who"] == "dledger.root" and line["from"] == "10.0.0.9:40000" for line in found)
    told = [(line["what"], line["before"], line["after"], line["outcome"]) for line in found]
    assert (len(told), told[0][:2]) == (10, ("AUTH_CREATE_USER", {"app": None}))
    assert told[0][2]["app"]["enabled"] is True
    assert told[1][1] == {"T1": None}
    assert told[1][2] == told[2][1] == told[9][1]
    assert told[3][3] != "done"
    assert told[4][1] == {"g": None}
    assert told[4][2]["g"] is not None
    assert told[5][2]["app"]["custom"] == [["Topic:T1", ["Pub"], [], True]]
    assert told[7][1:] == ({"topic T1": None}, {"topic T1": [5, 0]}, "done")
    assert (told[8][2], told[9][2]) == ({"retention_hours": "7"}, {"T1": None})
    text = (tmp_path / "audit.log").read_text()
    assert "secret" not in text
    assert "\x1b" not in text
    assert os.stat(tmp_path / "audit.log").st_mode & 0o777 == 0o600


def test_the_audit_log_has_changes_of_a_name_server(tmp_path) -> None:
    config = build_config({"data": tmp_path})
    processors = Processors(config, RouteTable(first_version=1), KVStore(tmp_path, 1_000), lambda: 0)
    processors.audit_log.open(tmp_path, 1)
    processors.handle(RemotingCommand(216, ext={"topic": ESCAPES}), 1, "10.0.0.9:1")
    processors.audit_log.close()
    [line] = lines_in(tmp_path)
    assert (line["what"], line["from"], line["outcome"]) == ("DELETE_TOPIC_IN_NAMESRV", "10.0.0.9:1", "done")
    assert line["after"] == {"topic": ESCAPES}


def test_an_account_above_its_audit_rate_displaces_no_lines_of_other_accounts(tmp_path) -> None:
    now = [0.0]
    audit = AuditLog(lambda: now[0])
    audit.open(tmp_path, 1)
    for _ in range(BURST_LINES + 7):
        audit.write("loud", "10.0.0.9:1", "WHAT", "done")
    audit.write("quiet", "10.0.0.9:1", "WHAT", "done")
    now[0] = 1.0
    audit.write("loud", "10.0.0.9:1", "WHAT", "done")
    audit.close()
    found = lines_in(tmp_path)
    assert [line["who"] for line in found] == ["loud"] * BURST_LINES + ["quiet", "loud"]
    assert found[-1]["untold"] == 7


def test_old_audit_files_are_removed_and_lost_lines_are_reported(tmp_path, caplog: pytest.LogCaptureFixture) -> None:
    today = datetime.now(UTC)
    for days in (1, 2, 3, 30):
        (tmp_path / f"audit.log.{today - timedelta(days=days):%Y-%m-%d}").write_text("{}\n")
    (tmp_path / "audit.log").write_text("{}\n")
    yesterday = (today - timedelta(days=1)).timestamp()
    os.utime(tmp_path / "audit.log", (yesterday, yesterday))
    file = AuditFile(tmp_path, 2)
    record = logging.LogRecord("audit", logging.INFO, __file__, 0, "{}", None, None)
    file.emit(record)
    kept = sorted(path.name for path in tmp_path.iterdir())
    before, last = (f"audit.log.{today - timedelta(days=days):%Y-%m-%d}" for days in (2, 1))
    assert kept == ["audit.log", before, last, f"{last}.2"], "the clock was put back: one day has two files"
    file.close()
    blocked = AuditFile(tmp_path / "audit.log" / "no folder", 2)
    for _ in range(3):
        blocked.emit(record)
    assert blocked.lost == 3
    assert caplog.text.count("event=audit_lost") == 2
