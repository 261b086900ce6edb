"""Worker threads of simulated nodes: jobs are interrupted at their disk calls, and end with their process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from random import Random

import pytest

from dledger.environment import BACKGROUND
from dledger.store import mark
from dledger.testing.disk import SimDisk
from dledger_sim.log.campaign import judge
from dledger_sim.log.cases import Case
from dledger_sim.log.environment import SimEnvironment
from dledger_sim.log.known_seeds import KNOWN_SEEDS
from dledger_sim.log.mutants import MUTANTS
from dledger_sim.log.mutants.threads import CATALOGUE
from dledger_sim.log.scheduler import Scheduler
from dledger_sim.log.threads import Threads
from dledger_sim.log.violation import Violation


class Host:
    """Process without a replica: an event loop, threads and a disk."""

    def __init__(self, threads: Threads) -> None:
        self.scheduler = Scheduler()
        self.threads = threads
        self.disk = SimDisk()
        self.disk.at_call = partial(threads.at_disk, "n0")
        self.environment = SimEnvironment(self.scheduler, Random(1), lambda: None, _raise, threads=threads, owner="n0")
        self.environment.sync_delay_s = lambda _lane: 0.1
        self.happened: list[object] = []

    def submit(self, work: Callable[[], object]) -> None:
        self.environment.run_blocking(BACKGROUND, work, self.happened.append)

    def run_until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self.scheduler.run_until(self.scheduler.now + 0.0005)

    def write(self, path: str, count: int) -> Callable[[], str]:
        """Return work of several disk calls, each of which is recorded."""

        def work() -> str:
            file = self.disk.open(path, create=True)
            for number in range(count):
                file.pwrite(b"x", number)
                self.happened.append((path, number))
            return path

        return work


def _raise(error: BaseException) -> None:
    raise error


@pytest.fixture
def host() -> Iterator[Host]:
    threads = Threads(Random(5), 1.0)
    with threads.installed():
        yield Host(threads)


def test_two_jobs_take_turns_at_their_disk_calls(host: Host) -> None:
    host.submit(host.write("a", 40))
    host.submit(host.write("b", 40))
    host.scheduler.run_until(30.0)
    steps = [step[0] for step in host.happened if isinstance(step, tuple)]
    assert sorted(steps) == sorted("ab" * 40)
    turns = sum(step != following for step, following in pairwise(steps))
    assert turns > 3
    assert {"a", "b"} <= {one for one in host.happened if isinstance(one, str)}


def test_an_event_loop_turn_may_run_between_disk_calls_of_a_job(host: Host) -> None:
    host.submit(host.write("a", 5))
    for tenth in range(1, 300):
        host.environment.call_at(tenth / 1000, lambda: host.happened.append("loop"))
    host.scheduler.run_until(30.0)
    first, last = host.happened.index(("a", 0)), host.happened.index(("a", 4))
    assert "loop" in host.happened[first:last]


def test_nothing_of_a_job_takes_effect_once_its_process_is_gone(host: Host) -> None:
    host.submit(host.write("a", 50))
    host.run_until(lambda: ("a", 2) in host.happened)
    host.environment.kill()
    reached, size = list(host.happened), host.disk.size("a")
    host.scheduler.run_until(30.0)
    assert host.happened == reached
    assert host.disk.size("a") == size
    assert not host.threads.under_way["n0"]


def test_an_event_loop_that_waits_for_a_lock_lets_its_holder_go_on(host: Host) -> None:
    lock = mark.Lock()  # type: ignore[attr-defined]
    write = host.write("a", 5)

    def work() -> object:
        with lock:
            return write()

    def on_loop() -> None:
        with lock:
            host.happened.append("loop")

    host.submit(work)
    host.run_until(lambda: ("a", 0) in host.happened)
    host.environment.call_soon(on_loop)
    host.scheduler.run_until(30.0)
    assert host.happened.index("loop") > host.happened.index(("a", 4))


def test_a_stopping_process_waits_for_threads_that_wait_for_a_lock(host: Host) -> None:
    lock = mark.Lock()  # type: ignore[attr-defined]

    def locked(path: str) -> Callable[[], object]:
        write = host.write(path, 20)

        def work() -> object:
            with lock:
                return write()

        return work

    for path in "abc":
        host.submit(locked(path))
    host.run_until(lambda: len(host.happened) >= 3 and len(host.threads.under_way["n0"]) >= 3)
    host.environment.close()
    assert {step for step in host.happened if isinstance(step, tuple) and step[1] == 19} == {
        (path, 19) for path in "abc"
    }


def test_a_lock_that_its_own_holder_waits_for_is_a_violation(host: Host) -> None:
    lock = host.threads.make_lock()
    lock.acquire()
    with pytest.raises(Violation, match="no thread waits for a lock that it holds"):
        lock.acquire()


def test_a_broken_promise_in_a_thread_ends_the_run(host: Host) -> None:
    def broken() -> None:
        raise Violation("a promise", "of a thread")

    host.submit(broken)
    with pytest.raises(Violation, match="a promise"):
        host.scheduler.run_until(1.0)


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_mutants_of_the_threads_scenario_are_caught_only_with_threads(name: str) -> None:
    """The same group with the same faults does disk work in one step, and in several steps."""
    seed = KNOWN_SEEDS.get(name, 1)
    assert judge(Case("modes", seed, 20.0, usual=True), "dledger_sim.log.lab", name).violation is None
    assert judge(Case("threads", seed, 20.0, usual=True), "dledger_sim.log.lab", name).violation is not None
    assert MUTANTS[name].scenario == "threads"


def test_a_hanging_call_stops_only_its_own_job() -> None:
    hung = {"b"}
    threads = Threads(Random(5), 0.0, lambda _, operation, path: operation == "pwrite" and path in hung)
    with threads.installed():
        host = Host(threads)
        host.submit(host.write("a", 3))
        host.submit(host.write("b", 3))
        host.scheduler.run_until(10.0)
        assert [one for one in host.happened if isinstance(one, str)] == ["a"]
        assert not [one for one in host.happened if one == ("b", 0)]
        hung.clear()
        host.scheduler.run_until(11.0)
        assert "b" in host.happened
