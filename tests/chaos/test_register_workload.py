"""Registers and logs: what clients record of real nodes is linearizable; what breaks that is convicted."""

from __future__ import annotations

import asyncio
import random

import pytest
from histories import History, verdict

from dledger_chaos.checkers.linearizability import model_of
from dledger_chaos.history import Recorder, read_operations
from dledger_chaos.linear import check_linearizable
from dledger_chaos.linear_calls import call_of
from dledger_chaos.subjects.group import SubjectGroup, running
from dledger_chaos.workloads import registers
from dledger_chaos.workloads.base import NodeAddresses, WorkloadContext
from dledger_chaos.workloads.registry import WORKLOADS

ENOUGH = 150
PROGRESS_SECONDS = 30.0


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


def test_what_failed_for_certain_and_reads_nobody_saw_the_end_of_are_left_out():
    history = register_history()
    history.add("write", "register-0", 1, "fail").add("read", "register-0", None, "info").add(
        "read", "register-0", None
    )
    found = verdict("linearizable", history.run())
    assert (found.result, found.figures["checked"]) == ("valid", 1)


@pytest.mark.parametrize("outcomes", [("fail", "info"), ()])
@pytest.mark.parametrize(("name", "key"), [("linearizable", "register-0"), ("catalogue", "topic:T")])
def test_what_was_not_read_at_the_end_may_be_lost(name, key, outcomes):
    history = History("registers" if name == "linearizable" else name)
    history.add("read", key, None if name == "linearizable" else False).add("write", key, True)
    history.add("write", "another", True).add("read", "another", True, process="final")
    for outcome in outcomes:
        history.add("read", key, None, outcome, process="final")
    assert verdict(name, history.run()).result == "unknown"
    assert verdict(name, history.add("read", key, True, process="final").run()).result == "valid"


async def test_every_key_is_read_at_the_end_whatever_became_of_the_one_before(tmp_path, monkeypatch):
    monkeypatch.setattr(registers, "_FINAL_READ_SECONDS", 0.02)
    with Recorder(tmp_path) as recorder:
        nobody = [NodeAddresses("n0", "g", "127.0.0.1:9"), NodeAddresses("n1", "g", "127.0.0.1:9")]
        ctx = WorkloadContext("", nobody, random.Random(5), recorder, asyncio.Event(), frozenset(), tmp_path)
        workload = registers.RegisterWorkload()
        await workload.setup(ctx)
        used = {workload._keys.pick() for _ in range(20)}
        await workload.finish(ctx)
    assert {operation.key for operation in read_operations(tmp_path)} >= used


async def test_clients_of_a_group_that_loses_its_leader_see_one_copy(tmp_path):
    group = SubjectGroup("register_node", tmp_path)
    with running(group), Recorder(tmp_path) as recorder:
        leader = await group.leader(voters=3)
        nodes = [NodeAddresses(name, "g", "{}:{}".format(*group.client_addresses[name])) for name in group.node_ids]
        stopping = asyncio.Event()
        ctx = WorkloadContext("", nodes, random.Random(5), recorder, stopping, frozenset(), tmp_path)
        workload = WORKLOADS["registers"].make()
        await workload.setup(ctx)
        running_workload = asyncio.create_task(workload.run(ctx))
        await progress(recorder, running_workload)
        group[leader].kill()
        await progress(recorder, running_workload)
        group[leader].start()
        stopping.set()
        await running_workload
        await workload.finish(ctx)
    histories = {}
    for operation in read_operations(tmp_path):
        call = call_of(operation)
        if call is not None:
            histories.setdefault(operation.key, []).append(call)
    assert {model_of(key).name for key in histories} == {"register", "log"}
    for key, calls in histories.items():
        assert check_linearizable(calls, model_of(key)).result == "valid", key


async def progress(recorder, workload):
    """Wait until some more operations have been answered."""
    target = recorder.counts["ok"] + ENOUGH
    async with asyncio.timeout(PROGRESS_SECONDS):
        while True:
            if recorder.counts["ok"] >= target or workload.done():
                return
            await asyncio.sleep(0.01)
