"""Observation of nodes while a run goes on: who ends by itself, and that somebody watches."""

from __future__ import annotations

import asyncio
import math

from fake_target import MEMBERS, FakeTarget
from histories import History, verdict

from dledger_chaos.history import Recorder, read_events
from dledger_chaos.observation import Observer
from dledger_chaos.run import watching


class Watched(FakeTarget):
    """Nodes with process ids; `broken` is what asking a node raises."""

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


async def test_a_node_that_ends_by_itself_is_told_from_one_that_was_stopped(tmp_path):
    target = Watched(tmp_path / "target")
    with Recorder(tmp_path / "run") as recorder:
        observer = Observer(target, recorder, lambda *_: False)
        await observer.sample(usage=False)
        target.pids |= {MEMBERS[0]: 2, MEMBERS[1]: None}
        target.stopped = {2}
        await observer.sample(usage=False)
        target.pids[MEMBERS[0]] = 3
        await observer.sample(usage=False)
    history = History()
    history.events = read_events(tmp_path / "run")
    found = verdict("ended", history.run())
    ended = [(one.node, one.fields["pid"], one.fields["expected"]) for one in history.events if one.name == "ended"]
    assert ended == [(MEMBERS[0], 1, False), (MEMBERS[1], 1, False), (MEMBERS[0], 2, True)]
    assert (found.result, found.figures["checked"]) == ("invalid", 5)


async def test_a_node_serves_from_its_first_answer_on(tmp_path):
    target = Watched(tmp_path / "target")
    told = []

    def may_end(node, served_s):
        told.append((node, served_s))
        return True

    with Recorder(tmp_path / "run") as recorder:
        observer = Observer(target, recorder, may_end)
        target.silent = True
        await observer.sample(usage=False)
        target.silent = False
        target.pids[MEMBERS[0]] = 2
        await observer.sample(usage=False)
        target.pids[MEMBERS[0]] = None
        await observer.sample(usage=False)
    assert [node for node, _ in told] == [MEMBERS[0]] * 2
    (_, never), (_, served_s) = told
    assert never == math.inf > served_s


async def test_no_fault_lets_a_name_server_end(tmp_path):
    target = Watched(tmp_path / "target")
    target.others = ("namesrv",)
    target.pids["namesrv"] = 7
    with Recorder(tmp_path / "run") as recorder:
        observer = Observer(target, recorder, lambda *_: True)
        await observer.sample(usage=True)
        target.pids = {**dict.fromkeys(MEMBERS), "namesrv": None}
        await observer.sample(usage=False)
    history = History()
    history.events = read_events(tmp_path / "run")
    found = verdict("ended", history.run())
    assert (found.result, found.figures["checked"]) == ("invalid", len(MEMBERS) + 1)
    (violation,) = found.examples
    assert violation.startswith("namesrv (process 7) ended by itself")


async def test_a_run_that_nobody_watched_is_unknown(tmp_path):
    with Recorder(tmp_path / "run") as recorder:
        observer = Observer(Watched(tmp_path / "target", KeyError("role")), recorder, lambda *_: False)
        async with watching(observer, recorder):
            await asyncio.sleep(0.01)
    history = History().send("a", 0).event("phase", 1, "heal").event("phase", 2, "converged")
    history.events += read_events(tmp_path / "run")
    found = verdict("recovered", history.run())
    assert (found.result, found.summary) == ("unknown", "the observer failed: KeyError('role')")


async def test_nobody_asks_nodes_whose_run_is_told_to_stop(tmp_path):
    """A client session that was opened anew while the cluster stopped was left open."""
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
