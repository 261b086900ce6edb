"""Celery loses no task when a leader, a worker, or a process of a pool is killed, and repeats only what it must."""

import re
import signal
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import celery_app
import pytest
from celery_app import app, killed_once, run
from celery_clusters import url_of
from celery_workers import Worker

from dledger_client.testing import LocalCluster, local_cluster_fixture

cluster = local_cluster_fixture()

MAY_RUN_TWICE = re.compile(r"(\S+) of queue \S+ may run twice")
SENDERS = 4


@pytest.fixture
def directory(cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Point this process's application at the cluster, and return the directory of its notes."""
    app.conf.update(broker_url=url_of(cluster), result_backend=f"file://{tmp_path}/results")
    monkeypatch.setattr(celery_app, "DIRECTORY", tmp_path)
    yield tmp_path
    app.pool.force_close_all()


def send_all(count: int, seconds: float) -> list[str]:
    """Send tasks from several threads, every hundredth of which kills its process. Returns their ids."""

    def send(number: int) -> str:
        if number % 100 == 50:
            return str(killed_once.delay(f"task-{number}").id)
        return str(run.delay(f"task-{number}", seconds).id)

    with ThreadPoolExecutor(SENDERS) as executor:
        return list(executor.map(send, range(count)))


class Ended(set[str]):
    """The ids of the tasks that have ended."""

    def __init__(self) -> None:
        super().__init__()
        self._read_bytes = 0

    def wait_for(self, ids: Collection[str] | int, limit_s: float) -> None:
        """Wait until these tasks, or so many, have ended. Notes are read only once, ten times a second."""
        deadline = time.monotonic() + limit_s
        while len(self) < ids if isinstance(ids, int) else not self.issuperset(ids):
            assert time.monotonic() < deadline, f"{len(self)} tasks have ended"
            time.sleep(0.1)
            lines = celery_app.noted(self._read_bytes)
            self._read_bytes += sum(len(line) + 1 for line in lines)
            self.update(line.split()[2] for line in lines if line.startswith("end "))


def check(ids: Sequence[str], workers: Sequence[Worker], killed: Worker) -> str:
    """Check that every task has run, and that a reason is known for each that ran twice. Returns a report."""
    begun = [line.split()[2:] for line in celery_app.noted() if line.startswith("begin ")]
    runs = Counter(task_id for task_id, _ in begun)
    assert set(ids) - set(runs) == set(), "lost"
    cut_off = Counter(task_id for task_id, worker in begun if worker in {killed.name, "killed"})
    overdue = {task_id for worker in workers for task_id in MAY_RUN_TWICE.findall(worker.text)}
    repeated = {task_id for task_id, times in runs.items() if times > 1}
    unexplained = {task_id for task_id in repeated - overdue if runs[task_id] - cut_off[task_id] > 1}
    assert unexplained == set()
    died = len(repeated - overdue)
    return (
        f"{len(ids)} tasks, none lost; {len(repeated)} ran twice: {died} whose worker died, {len(repeated) - died} late"
    )


@pytest.mark.parametrize(
    ("count", "seconds"), [(200, 0.01), pytest.param(10_000, 0.005, marks=pytest.mark.long)], ids=["short", "long"]
)
def test_no_task_is_lost_and_only_what_was_cut_off_runs_twice(
    cluster: LocalCluster, directory: Path, count: int, seconds: float
) -> None:
    limit_s, ended = 60 + count / 20, Ended()
    with ThreadPoolExecutor(3) as executor:
        starts = [
            executor.submit(Worker, directory, url_of(cluster), name, "-P", "prefork", "-c", "2")
            for name in ("stays", "dies")
        ]
        workers = [start.result() for start in starts]
        try:
            sending = executor.submit(send_all, count, seconds)
            ended.wait_for(count // 4, limit_s)
            leader = cluster.kill_leader()
            ended.wait_for(count // 2, limit_s)
            workers[1].kill()
            cluster.restart(leader)
            ids = sending.result(limit_s)
            ended.wait_for(ids, limit_s)
            workers[0].process.send_signal(signal.SIGTERM)
            assert workers[0].process.wait(60) == 0
        finally:
            for worker in workers:
                worker.stop()
    print(check(ids, workers, workers[1]))
