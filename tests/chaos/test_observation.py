"""Observation of nodes during a run notices nodes that end by themselves, and its own failures."""

from __future__ import annotations

import asyncio
import math
import os

from fake_target import MEMBERS, FakeTarget
from histories import History, verdict

from dledger_chaos.history import Recorder, read_events
from dledger_chaos.observation import Observer
from dledger_chaos.run import watching


class Watched(FakeTarget):
    """Nodes with process ids. `broken` is the error of asking a node."""

    def __init__(self, directory, broken=None):
        super().__init__(directory)
        self.pids = dict.fromkeys(MEMBERS, 1)
        self.stopped = set()
        self.broken = broken
        self.silent = False

    def pid(self, node_id):
        return self.pids[node_id]

    def was_stopped(self, pid):
        return pid in self.stopped

    async def status(self, node_id):
        if self.broken is not None:
            raise self.broken
        return None if self.silent else await super().status(node_id)


async def observed(tmp_path, target, *changes, may_end=lambda *_: False, usage=False):
    """Look at the nodes, and once more after each of these changes. Return the recorded events."""
    with Recorder(tmp_path / "run") as recorder:
        observer = Observer(target, recorder, may_end)
        await observer.sample(usage=usage)
        for change in changes:
            vars(target).update(change)
            await observer.sample(usage=False)
    return read_events(tmp_path / "run")


def ended(events):
    history = History()
    history.events = events
    return verdict("ended", history.run())


async def test_an_unexpected_end_of_a_node_is_distinguished_from_a_stop(tmp_path):
    pids = dict.fromkeys(MEMBERS, 1) | {MEMBERS[0]: 2, MEMBERS[1]: None}
    restarted = {"pids": pids, "stopped": {2}}, {"pids": pids | {MEMBERS[0]: 3}}
    events = await observed(tmp_path, Watched(tmp_path / "target"), *restarted)
    found = ended(events)
    ends = [(one.node, one.fields["pid"], one.fields["expected"]) for one in events if one.name == "ended"]
    assert ends == [(MEMBERS[0], 1, False), (MEMBERS[1], 1, False), (MEMBERS[0], 2, True)]
    assert (found.result, found.figures["checked"]) == ("invalid", 5)


async def test_files_that_the_disk_shim_has_open_in_a_node_are_not_counted(tmp_path):
    target = Watched(tmp_path / "target")
    target.pids = dict.fromkeys(MEMBERS, os.getpid())
    kept = target.disk(MEMBERS[0]).directory / "undo"
    kept.mkdir(parents=True)
    with (kept / "1").open("wb"), (kept / "2").open("wb"):
        events = await observed(tmp_path, target, usage=True)
    counted = {one.node: one.fields["open_files"] for one in events if one.kind == "usage"}
    assert counted[MEMBERS[0]] == counted[MEMBERS[1]] - 2


async def test_a_node_serves_from_its_first_answer_on(tmp_path):
    target, told = Watched(tmp_path / "target"), []
    target.silent = True

    def may_end(node, served_s):
        told.append((node, served_s))
        return True

    pids = dict.fromkeys(MEMBERS, 1)
    restarted = {"silent": False, "pids": pids | {MEMBERS[0]: 2}}, {"pids": pids | {MEMBERS[0]: None}}
    await observed(tmp_path, target, *restarted, may_end=may_end)
    assert [node for node, _ in told] == [MEMBERS[0]] * 2
    (_, never), (_, served_s) = told
    assert never == math.inf > served_s


async def test_no_fault_lets_a_name_server_end(tmp_path):
    target = Watched(tmp_path / "target")
    target.others = ("namesrv",)
    target.pids["namesrv"] = 7
    gone = {"pids": {**dict.fromkeys(MEMBERS), "namesrv": None}}
    found = ended(await observed(tmp_path, target, gone, may_end=lambda *_: True, usage=True))
    assert (found.result, found.figures["checked"]) == ("invalid", len(MEMBERS) + 1)
    (violation,) = found.examples
    assert violation.startswith("namesrv (process 7) ended by itself")


async def test_a_run_whose_observer_failed_is_unknown(tmp_path):
    with Recorder(tmp_path / "run") as recorder:
        observer = Observer(Watched(tmp_path / "target", KeyError("role")), recorder, lambda *_: False)
        async with watching(observer, recorder):
            await asyncio.wait([task for task in asyncio.all_tasks() if task.get_name() == "observer"])
    history = History().send("a", 0).event("phase", 1, "heal").event("phase", 2, "converged")
    history.events += read_events(tmp_path / "run")
    found = verdict("recovered", history.run())
    assert (found.result, found.summary) == ("unknown", "the observer failed: KeyError('role')")


async def test_cancelling_a_run_ends_its_observer(tmp_path):
    """Otherwise a client session that was opened again while the cluster stopped stayed open."""
    target = Watched(tmp_path / "target")
    with Recorder(tmp_path / "run") as recorder:

        async def run():
            async with watching(Observer(target, recorder, lambda *_: False), recorder):
                await asyncio.Event().wait()

        running = asyncio.create_task(run())
        await asyncio.sleep(0.01)
        before = asyncio.all_tasks()
        running.cancel()
        await asyncio.wait([running])
        assert [task.get_name() for task in before - {running} if task.done()] == ["observer"]
