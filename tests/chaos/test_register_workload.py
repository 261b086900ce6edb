"""Registers and logs: histories of clients on real nodes are linearizable, and broken ones are convicted."""

from __future__ import annotations

import asyncio
import random

import pytest
from histories import History, verdict

from dledger_chaos.history import Recorder, read_operations
from dledger_chaos.workloads import registers
from dledger_chaos.workloads.base import NodeAddresses, WorkloadContext


def register_history():
    return History("registers")


def test_a_history_of_one_copy_is_valid():
    history = register_history()
    history.add("write", "register-0", 1).add("cas", "register-0", [1, 2], swapped=True).add("read", "register-0", 2)
    history.add("append", "log-2", 5, place=0).add("read", "log-2", [5]).add("cas", "register-0", [9, 3], swapped=False)
    found = verdict("linearizable", history.run())
    assert (found.result, found.figures["checked"], found.figures["keys"]) == ("valid", 6, 2)


BROKEN = {
    "a stale read": register_history().add("write", "register-0", 1).add("read", "register-0", None),
    "two places in one log": register_history().add("append", "log-2", 5, place=0).add("append", "log-2", 6, place=0),
    "a lost append": register_history().add("append", "log-2", 5, place=0).add("read", "log-2", None),
    "a swap of what was not there": register_history().add("cas", "register-0", [1, 2], swapped=True),
}


@pytest.mark.parametrize("story", BROKEN)
def test_a_history_of_several_copies_is_convicted_with_its_shortest_part(story):
    history = BROKEN[story].add("read", "register-9", None)
    found = verdict("linearizable", history.run())
    assert found.result == "invalid"
    assert "no order of" in found.examples[0]


def test_failed_writes_and_unfinished_reads_are_left_out():
    history = register_history().add("write", "register-0", 1, "fail").add("read", "register-0", None, "info")
    found = verdict("linearizable", history.add("read", "register-0", None).run())
    assert (found.result, found.figures["checked"]) == ("valid", 1)


@pytest.mark.parametrize("outcomes", [("fail", "info"), ()])
@pytest.mark.parametrize(("name", "key"), [("linearizable", "register-0"), ("catalogue", "topic:T")])
def test_a_key_without_a_final_read_is_unknown(name, key, outcomes):
    history = History("registers" if name == "linearizable" else name)
    history.add("read", key, None if name == "linearizable" else False).add("write", key, True)
    history.add("write", "another", True).add("read", "another", True, process="final")
    for outcome in outcomes:
        history.add("read", key, None, outcome, process="final")
    assert verdict(name, history.run()).result == "unknown"
    assert verdict(name, history.add("read", key, True, process="final").run()).result == "valid"


async def test_every_key_is_read_at_the_end_although_earlier_reads_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(registers, "_FINAL_READ_SECONDS", 0.02)
    with Recorder(tmp_path) as recorder:
        nobody = [NodeAddresses("n0", "g", "127.0.0.1:9"), NodeAddresses("n1", "g", "127.0.0.1:9")]
        ctx = WorkloadContext("", nobody, random.Random(5), recorder, asyncio.Event(), frozenset(), tmp_path)
        workload = registers.RegisterWorkload()
        await workload.setup(ctx)
        used = {workload._keys.pick() for _ in range(20)}
        await workload.finish(ctx)
    assert {operation.key for operation in read_operations(tmp_path)} >= used
