"""Workers of Celery run tasks of a real cluster, obey other processes, and lose nothing.

Leaders, workers and processes of pools are killed in the middle. Only what was cut off runs twice.
"""

import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import celery_app
import pytest
from celery_app import add, again, app, killed_once, passed_on, run
from celery_clusters import url_of
from celery_workers import Worker

from dledger_client import SyncAdmin
from dledger_client.testing import local_cluster_fixture
from tests.waiting import wait_until

WITHIN_S = 30.0

cluster = local_cluster_fixture()


MAY_RUN_TWICE = re.compile(r"(\S+) of queue \S+ may run twice")
SENDERS = 4
INSPECT = ("inspect", "conf", "-d")


@pytest.fixture(scope="module")
def directory(cluster, tmp_path_factory):
    """Point this process's application at the cluster, and return the directory of its results."""
    path = tmp_path_factory.mktemp("celery")
    app.conf.update(broker_url=url_of(cluster), result_backend=f"file://{path}/results")
    app.set_current()
    celery_app.DIRECTORY = path
    yield path
    celery_app.disconnect()


@pytest.fixture(scope="module")
def worker(cluster, directory):
    worker = Worker(directory, url_of(cluster), "one", "-P", "prefork", "-c", "2", "-E")
    yield worker
    worker.stop()


def test_tasks_run_now_later_and_again(worker):
    began = datetime.now(UTC)
    later = add.apply_async((1, 2), countdown=1.0)
    assert add.delay(3, 4).get(timeout=WITHIN_S) == 7
    assert again.delay().get(timeout=WITHIN_S) == 2
    assert later.get(timeout=WITHIN_S) == 3
    received = [line for line in worker.text.splitlines() if line.endswith(f"{later.id}] received")]
    at = datetime.strptime(received[0][1:24], "%Y-%m-%d %H:%M:%S,%f").astimezone(UTC)
    assert (at - began).total_seconds() >= 0.99, "no worker has held it"
    assert len(received) == 1


def test_a_task_sends_tasks_from_its_own_process(worker):
    sent = passed_on.delay(4).get(timeout=WITHIN_S)
    assert app.AsyncResult(sent).get(timeout=WITHIN_S) == 5


def test_processes_of_the_pool_have_no_socket_of_their_worker(worker):
    app.control.pool_grow(1, destination=[worker.name])  # forked while connected
    wait_until(lambda: len(worker.children()) == 3)
    mains = sockets_of(worker.process.pid)
    assert len(mains) >= 3
    wait_until(lambda: not any(mains & sockets_of(child) for child in worker.children()))
    app.control.pool_shrink(1, destination=[worker.name])


def sockets_of(pid):
    """Return the TCP sockets of a process, by inode."""
    inodes = {line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]}
    links = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.add(str(link.readlink()))
        except OSError:
            continue
    return {inode for inode in inodes if f"socket:[{inode}]" in links}


def test_other_processes_inspect_and_control_a_worker_and_leave_nothing(cluster, worker):
    inspect = app.control.inspect([worker.name], timeout=WITHIN_S)
    assert inspect.ping() == {worker.name: {"ok": "pong"}}
    assert "celery_app.add" in inspect.registered()[worker.name]
    with SyncAdmin(cluster.namesrv) as admin:
        before = admin.topics(), sorted(admin.groups())
        assert inspect.stats()[worker.name]["pid"] == worker.process.pid
        assert (admin.topics(), sorted(admin.groups())) == before
    app.control.add_consumer("extra.queue", destination=[worker.name], reply=True, timeout=WITHIN_S)
    assert add.apply_async((5, 6), queue="extra.queue").get(timeout=WITHIN_S) == 11
    app.control.cancel_consumer("extra.queue", destination=[worker.name], reply=True, timeout=WITHIN_S)
    names = [queue["name"] for queue in inspect.active_queues()[worker.name]]
    assert names == ["celery"]


@pytest.mark.long
def test_the_command_inspects_a_worker(cluster, worker):
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "celery_app", "-b", url_of(cluster), *INSPECT, worker.name],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=True,
    )
    assert "1 node online" in done.stdout


def test_a_revoked_task_does_not_run(worker):
    later = run.apply_async(("revoked",), countdown=0.5)
    app.control.revoke(later.id, destination=[worker.name], reply=True, timeout=WITHIN_S)
    wait_until(lambda: f"Discarding revoked task: celery_app.run[{later.id}]" in worker.text)
    assert "begin revoked" not in celery_app.noted()


def test_events_of_tasks_are_seen(worker):
    seen = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"task-succeeded": seen.append}, routing_key="task.#")
        with receiver.consumer_context() as (reader, _, _):
            result = add.delay(1, 1)
            while result.id not in [event["uuid"] for event in seen]:
                reader.drain_events(timeout=WITHIN_S)


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

    def __init__(self, sending: Future[list[str]]) -> None:
        super().__init__()
        self._sending = sending
        self._read_bytes = 0

    def wait_for(self, ids: Collection[str] | int, limit_s: float) -> None:
        """Wait until these tasks, or so many, have ended. Notes are read only once, ten times a second."""
        deadline = time.monotonic() + limit_s
        while len(self) < ids if isinstance(ids, int) else not self.issuperset(ids):
            assert time.monotonic() < deadline, f"{len(self)} tasks have ended"
            if self._sending.done():
                self._sending.result()  # raises its error
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
def test_no_task_is_lost_and_only_what_was_cut_off_runs_twice(cluster, directory, worker, count, seconds):
    limit_s = 60 + count / 20
    dying = Worker(directory, url_of(cluster), f"dies-{count}", "-P", "prefork", "-c", "2")
    try:
        with ThreadPoolExecutor(1) as executor:
            sending = executor.submit(send_all, count, seconds)
            ended = Ended(sending)
            ended.wait_for(count // 4, limit_s)
            leader = cluster.kill_leader()
            ended.wait_for(count // 2, limit_s)
            dying.kill()
            cluster.restart(leader)
            ids = sending.result(limit_s)
            ended.wait_for(ids, limit_s)
    finally:
        dying.stop()
    print(check(ids, [worker, dying], dying))


def drained(worker, name, queue, seconds=0.5):
    """Send tasks to a worker, terminate it, and check that it has ended what it has begun, and left the rest."""
    for number in range(8):
        run.apply_async((f"{name}-{number}", seconds), queue=queue)
    wait_until(lambda: sum(line.startswith(f"begin {name}") for line in celery_app.noted()) >= 2)
    assert worker.terminate() == 0
    runs = [line for line in celery_app.noted() if f" {name}-" in line]
    begun, ended = ([line.split()[1] for line in runs if line.startswith(word)] for word in ("begin", "end"))
    assert sorted(begun) == sorted(ended), "nothing was cut off"
    assert len(set(begun)) == len(begun) < 8
    left = {f"{name}-{number}" for number in range(8)} - set(begun)
    with app.connection_for_read() as connection, connection.channel() as channel:
        while left:  # they have gone back at once: the visibility timeout is 5 s
            wait_until(lambda: (found := channel.basic_get(queue)) is not None and not discard(left, found), 4)


def discard(left, message):
    """Acknowledge the message of a task that is left."""
    left.remove(message.payload[0][0])
    message.ack()


@pytest.mark.long
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_worker_with_any_pool_is_drained(cluster, directory, pool):
    worker = Worker(directory, url_of(cluster), f"ended-{pool}", "-P", pool, "-c", "2", "-Q", f"drained-{pool}")
    try:
        drained(worker, pool, f"drained-{pool}")
    finally:
        worker.stop()


def test_a_worker_that_is_terminated_ends_its_work_and_leaves_the_rest(worker):
    drained(worker, "last", "celery", 2.0)  # also in processes that have replaced killed ones
