"""The recipes do what their pages promise, on a real cluster, also if a process or the cluster dies in between."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from dledger_client import ReceivedMessage, SyncAdmin, SyncProducer, SyncPullConsumer
from dledger_client.testing import LocalCluster

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TIMEOUT_S = 60


def run(cluster: LocalCluster, program: Sequence[str | Path], *, status: int = 0, **environment: str) -> str:
    """Run a Python program to its end, and return its output."""
    done = subprocess.run(
        [sys.executable, *program],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "DLEDGER_NAMESRV": cluster.namesrv, "PYTHONPATH": str(EXAMPLES), **environment},
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@contextmanager
def running(cluster: LocalCluster, *command: str | Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program beside the test, with its output and errors in one pipe."""
    with subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "DLEDGER_NAMESRV": cluster.namesrv, **environment},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_until(process: subprocess.Popen[str], wanted: str) -> list[str]:
    """Return the lines that a program prints, up to one that contains a text."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if wanted in line:
            return lines
    raise AssertionError(f"the program ended without {wanted!r}: {lines}")


def stored(cluster: LocalCluster, topic: str) -> list[ReceivedMessage]:
    """Return all messages of a topic."""
    messages: list[ReceivedMessage] = []
    with SyncAdmin(cluster.namesrv) as admin, SyncPullConsumer(cluster.namesrv) as consumer:
        queues = consumer.queues(topic)
        ends = {queue: admin.end_offset(queue) for queue in queues}
        consumer.assign(queues)
        consumer.seek_to_begin()
        while any(position < ends[queue] for queue, position in consumer.positions.items()):
            messages += consumer.poll()
    return messages


def numbers_of(messages: Sequence[ReceivedMessage]) -> list[int]:
    return [msgspec.json.decode(message.body)["number"] for message in messages]


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'orders.db'}"


@pytest.fixture
def fresh(dledger_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """A cluster without the topics and groups of earlier examples."""
    yield dledger_cluster
    dledger_cluster.mend()
    with SyncAdmin(dledger_cluster.namesrv) as admin:
        for group in admin.groups():
            if group.startswith(("example-", "billing")):
                admin.delete_group(group)
        for topic in admin.topics():
            if topic.startswith(("example-", "orders")):
                admin.delete_topic(topic)


@pytest.mark.long
def test_the_outbox_sends_the_orders_that_are_in_the_database(fresh: LocalCluster, database: str):
    assert run(fresh, [EXAMPLES / "outbox.py", fresh.namesrv, database]).splitlines() == [
        "the relay sent 2 messages, then 0",
        "anna placed order 1",
        "anna placed order 3",
    ]


RELAY_THAT_DIES = """
import os, signal, sys
import outbox
from dledger_client import SyncAdmin, SyncProducer
from sqlalchemy import create_engine, event
from sqlalchemy.orm import Session

name_server, database, dies = sys.argv[1:]
engine = create_engine(database)
with SyncAdmin(name_server) as admin:
    admin.create_topic(outbox.TOPIC, queues=1)
if dies == "dies":
    outbox.Base.metadata.create_all(engine)
    with Session(engine) as session:
        for number in range(1, 4):
            outbox.place_order(session, number, "anna")
        session.commit()
    event.listen(engine, "commit", lambda connection: os.kill(os.getpid(), signal.SIGKILL))
with SyncProducer(name_server) as producer:
    outbox.relay(engine, producer)
"""


@pytest.mark.long
def test_a_relay_that_dies_between_the_send_and_the_commit_stores_no_message_twice(fresh: LocalCluster, database: str):
    run(fresh, ["-c", RELAY_THAT_DIES, fresh.namesrv, database, "dies"], status=-signal.SIGKILL)
    assert numbers_of(stored(fresh, "example-outbox-orders")) == [1]
    run(fresh, ["-c", RELAY_THAT_DIES, fresh.namesrv, database, "lives"])
    assert numbers_of(stored(fresh, "example-outbox-orders")) == [1, 2, 3]


@pytest.mark.long
def test_transactional_messages_tell_of_the_orders_that_are_in_the_database(fresh: LocalCluster, database: str):
    assert run(fresh, [EXAMPLES / "outbox_by_transactions.py", fresh.namesrv, database]).splitlines() == [
        "no order 1 for bert: IntegrityError",
        "anna placed order 1",
        "anna placed order 2",
    ]


SHOP_THAT_DIES = """
import os, signal, sys
import outbox_by_transactions as example
from dledger_client import SyncAdmin, SyncConsumer
from sqlalchemy import create_engine, event

name_server, database, dies = sys.argv[1:]
engine = create_engine(database)
example.Base.metadata.create_all(engine)
example.CHECK_AFTER_S = 0
with SyncAdmin(name_server) as admin:
    admin.create_topic(example.TOPIC, queues=1)
shop = example.Shop(name_server, engine)
with shop.producer:
    if dies == "before":
        event.listen(engine, "commit", lambda connection: os.kill(os.getpid(), signal.SIGKILL))
        shop.place_order(1, "lost")
    if dies == "after":
        shop.producer.commit = lambda transaction: os.kill(os.getpid(), signal.SIGKILL)
        shop.place_order(2, "anna")
    for message in SyncConsumer(name_server, "example-transaction-readers", example.TOPIC, codec=example.CODEC):
        print(message.value.customer, flush=True)
        message.ack()
        break
"""


@pytest.mark.long
def test_a_transaction_whose_process_died_ends_as_the_database_says(fresh: LocalCluster, database: str):
    for dies in ("before", "after"):
        run(fresh, ["-c", SHOP_THAT_DIES, fresh.namesrv, database, dies], status=-signal.SIGKILL)
    printed = run(fresh, ["-c", SHOP_THAT_DIES, fresh.namesrv, database, "never"])
    assert printed.splitlines()[-1] == "anna"
    assert "asked about Placed(number=2, customer='anna'): commit" in printed  # threads print, so lines may be joined
    assert numbers_of(stored(fresh, "example-transaction-orders")) == [2]


@contextmanager
def web_service(cluster: LocalCluster, socket: Path) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """Run the web service on a socket of the file system, and open a client of it."""
    with SyncAdmin(cluster.namesrv) as admin:
        admin.create_topic("example-web-orders", queues=1)
    command = ["-m", "uvicorn", "--app-dir", EXAMPLES, "--uds", socket, "fastapi_service:app"]
    transport = httpx.HTTPTransport(uds=str(socket))
    with running(cluster, *command) as service:
        lines_until(service, "Uvicorn running")
        with httpx.Client(transport=transport, base_url="http://web", timeout=30) as client:
            yield service, client


@pytest.mark.long
def test_a_web_service_sends_each_order_once_and_closes_in_order(fresh: LocalCluster, tmp_path: Path):
    with web_service(fresh, tmp_path / "web") as (service, client):
        answers = [client.post("/orders", json={"number": number, "euros": 9.5}) for number in (1, 1, 2)]
        assert [answer.status_code for answer in answers] == [202, 202, 202]
        assert answers[0].json() == answers[1].json()
        assert client.post("/orders", json={"number": "one"}).status_code == 422
        service.send_signal(signal.SIGTERM)
        lines_until(service, "Application shutdown complete")
        service.wait(TIMEOUT_S)
    messages = stored(fresh, "example-web-orders")
    assert numbers_of(messages) == [1, 2]
    assert {message.content_type for message in messages} == {"application/json"}


@pytest.mark.long
def test_a_web_service_is_not_ready_while_no_leader_answers(fresh: LocalCluster, tmp_path: Path):
    with web_service(fresh, tmp_path / "web") as (_, client):
        assert client.get("/ready").status_code == 200
        leader = fresh.kill_leader()
        assert [client.get(path).status_code for path in ("/ready", "/live")] == [503, 200]
        refused = client.post("/orders", json={"number": 3, "euros": 9.5})
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        fresh.restart(leader)
        fresh.wait_ready()
        assert client.post("/orders", json={"number": 3, "euros": 9.5}).status_code == 202
        assert client.get("/ready").status_code == 200


def test_a_worker_that_is_told_to_stop_finishes_its_jobs_and_leaves_the_others_to_the_next(fresh: LocalCluster):
    jobs = [f"job {number}" for number in range(12)]
    with SyncAdmin(fresh.namesrv) as admin, SyncProducer(fresh.namesrv) as producer:
        admin.create_topic("example-worker-jobs", queues=1)
        producer.send_batch("example-worker-jobs", [job.encode() for job in jobs])
    example = EXAMPLES / "container_worker.py"
    with running(fresh, example, JOB_SECONDS="0.3") as first:
        printed = lines_until(first, "began job 5")
        first.send_signal(signal.SIGTERM)
        printed += lines_until(first, "drained")
        assert first.wait(TIMEOUT_S) == 0
    begun = [line.removeprefix("began ") for line in printed if line.startswith("began ")]
    done = [line.removeprefix("did ") for line in printed if line.startswith("did ")]
    assert sorted(begun) == sorted(done)
    assert 0 < len(done) < len(jobs)
    with running(fresh, example, JOB_SECONDS="0") as second:
        while len(done) < len(jobs):
            done += [lines_until(second, "did ")[-1].removeprefix("did ")]
        second.send_signal(signal.SIGTERM)
        assert not [line for line in lines_until(second, "drained") if line.startswith("began ")]
    assert sorted(done) == sorted(jobs)


@pytest.mark.long
def test_the_notebook_runs_twice_in_a_real_kernel(fresh: LocalCluster, monkeypatch: pytest.MonkeyPatch):
    import nbclient
    import nbformat

    monkeypatch.setenv("DLEDGER_NAMESRV", fresh.namesrv)
    for run_number in (1, 2):
        notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
        nbclient.NotebookClient(notebook, timeout=TIMEOUT_S).execute()
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
        assert outputs[-1].text.endswith(f"{run_number * 3000} measurements\n")
        bars = [output.data["text/plain"].rsplit("] ")[-1] for output in outputs if "data" in output]
        assert bars == ["30/30", f"{run_number * 3000}/{run_number * 3000}"]


def first_example(page: str, cluster: LocalCluster) -> str:
    """Return the first example of a guide, for the name server of a cluster."""
    text = (ROOT / "docs" / "guides" / page).read_text("utf-8")
    example = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    assert len([line for line in example.splitlines() if line]) <= 15
    return example.replace("127.0.0.1:9876", cluster.namesrv)


def test_the_first_example_of_the_guide_to_typed_values_runs(fresh: LocalCluster, capsys: pytest.CaptureFixture[str]):
    exec(compile(first_example("typed-values.md", fresh), "typed-values.md", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == "9.5\n"


@pytest.mark.filterwarnings("ignore:Using `httpx`")
def test_the_first_example_of_the_recipes_runs(fresh: LocalCluster):
    from fastapi.testclient import TestClient

    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(first_example("recipes.md", fresh), "recipes.md", "exec"), names)
    with TestClient(names["app"]) as client:
        assert client.post("/orders", content=b"order 17").status_code == 200
    assert [message.body for message in stored(fresh, "orders")] == [b"order 17"]
