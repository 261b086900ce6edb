"""Application of Celery that workers of these tests run. It notes every run of a task in files of a directory."""

import os
import time
from pathlib import Path

from celery import Celery, Task
from kombu import pools

import dledger_celery  # noqa: F401 -- registers the URL

DIRECTORY = Path(os.environ.get("CELERY_TEST_DIRECTORY", "."))

app = Celery("celery_app", broker=os.environ.get("CELERY_TEST_BROKER", "dledger://"))
app.conf.update(
    broker_connection_retry_on_startup=False,
    broker_transport_options={"visibility_timeout": 5},
    result_backend=f"file://{DIRECTORY}/results",
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_lost_wait=1.0,
    worker_prefetch_multiplier=2,
)


def disconnect() -> None:
    """Close all connections of this process, so that the application can go to another cluster."""
    pools.reset()
    app._pool = None
    app.amqp._producer_pool = None


def note(text: str) -> None:
    """Note that a task has run. Lines of several processes do not mix."""
    number = os.open(DIRECTORY / "runs", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(number, f"{text}\n".encode())
    os.close(number)


def noted(after: int = 0) -> list[str]:
    """Return what was noted so far, behind a number of bytes."""
    path = DIRECTORY / "runs"
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(after)
        return file.read().decode().splitlines()


@app.task
def add(one: int, other: int) -> int:
    return one + other


@app.task(bind=True, ignore_result=True)
def run(self: Task, name: str, seconds: float = 0.0) -> None:
    """Note the begin and the end of work that takes some time, with its id and worker."""
    note(f"begin {name} {self.request.id} {self.request.hostname}")
    time.sleep(seconds)
    note(f"end {name} {self.request.id} {self.request.hostname}")


@app.task(bind=True)
def again(self: Task) -> int:
    if self.request.retries < 2:
        raise self.retry(countdown=0.2)
    return int(self.request.retries)


@app.task
def passed_on(one: int) -> str:
    """Send another task from within the process of a task. Returns its id."""
    return str(add.delay(one, 1).id)


@app.task(bind=True, ignore_result=True)
def killed_once(self: Task, name: str) -> None:
    """Kill the process at the first delivery."""
    note(f"begin {name} {self.request.id} killed")
    if not self.request.delivery_info["redelivered"]:
        os.kill(os.getpid(), 9)
    note(f"end {name} {self.request.id} {self.request.hostname}")
