"""Workers of Celery run tasks of a real cluster, obey other processes, and end without losing any."""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import celery_app
import pytest
from celery_app import add, again, app, passed_on, run
from celery_clusters import url_of
from celery_workers import Worker

from dledger_client import SyncAdmin
from dledger_client.testing import local_cluster_fixture
from tests.waiting import wait_until

WITHIN_S = 30.0

cluster = local_cluster_fixture(nodes=1)


@pytest.fixture(scope="module")
def directory(cluster, tmp_path_factory):
    """Point this process's application at the cluster, and return the directory of its results."""
    path = tmp_path_factory.mktemp("celery")
    app.conf.update(broker_url=url_of(cluster), result_backend=f"file://{path}/results")
    app.set_current()
    celery_app.DIRECTORY = path
    yield path
    app.pool.force_close_all()


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
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "celery",
                "-A",
                "celery_app",
                "-b",
                url_of(cluster),
                *["inspect", "conf", "-t", "20", "-d"],
                worker.name,
            ],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=True,
        )
        assert "1 node online" in done.stdout
        assert (admin.topics(), sorted(admin.groups())) == before
    app.control.add_consumer("extra.queue", destination=[worker.name], reply=True, timeout=WITHIN_S)
    assert add.apply_async((5, 6), queue="extra.queue").get(timeout=WITHIN_S) == 11
    app.control.cancel_consumer("extra.queue", destination=[worker.name], reply=True, timeout=WITHIN_S)
    names = [queue["name"] for queue in inspect.active_queues()[worker.name]]
    assert names == ["celery"]


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


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.long)])
def test_a_worker_that_is_terminated_ends_its_work_and_leaves_the_rest(cluster, directory, pool):
    queue = f"drained-{pool}"
    worker = Worker(directory, url_of(cluster), f"ended-{pool}", "-P", pool, "-c", "2", "-Q", queue)
    try:
        for number in range(8):
            run.apply_async((f"{pool}-{number}", 0.5), queue=queue)
        wait_until(lambda: len([line for line in celery_app.noted() if line.startswith(f"begin {pool}")]) >= 2)
        assert worker.terminate() == 0
    finally:
        worker.stop()
    runs = [line for line in celery_app.noted() if f" {pool}-" in line]
    begun, ended = ([line.split()[1] for line in runs if line.startswith(word)] for word in ("begin", "end"))
    assert sorted(begun) == sorted(ended), "nothing was cut off"
    assert len(set(begun)) == len(begun) < 8
    with app.connection_for_read() as connection, connection.channel() as channel:
        assert channel.queue_declare(queue, passive=True).message_count == 8 - len(ended)
        for _ in range(8 - len(ended)):
            wait_until(lambda: (message := channel.basic_get(queue)) is not None and message.ack() is None, 3)
    assert "may run twice" not in worker.text
