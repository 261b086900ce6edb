"""Run tasks of Celery: now, a second later, and with a look at the worker from another process.

python examples/celery_tasks.py 127.0.0.1:9876
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from celery import Celery

import dledger_celery  # noqa: F401 -- registers the URL

NAME_SERVER = os.environ.get("EXAMPLE_NAME_SERVER", "127.0.0.1:9876")
RESULTS = os.environ.get("EXAMPLE_RESULTS", tempfile.gettempdir())
QUEUE = "example-celery"

app = Celery("celery_tasks", broker=f"dledger://{NAME_SERVER}/", backend=f"file://{RESULTS}")
app.conf.update(task_acks_late=True, task_default_queue=QUEUE, task_reject_on_worker_lost=True)


@app.task
def add(one: int, other: int) -> int:
    """Return the sum, which the result backend keeps."""
    return one + other


def main() -> None:
    """Give a worker some work, and end it."""
    command = [sys.executable, "-m", "celery", "-q", "-A", "celery_tasks", "worker", "-c", "1", "-n", "example@here"]
    worker = subprocess.Popen(command, cwd=Path(__file__).parent, stdout=subprocess.DEVNULL)
    try:
        later = add.apply_async((3, 4), countdown=1)
        print(f"now: {add.delay(2, 3).get(timeout=60)}")
        print(f"a second later: {later.get(timeout=60)}")
        print(f"the worker says: {app.control.ping(destination=['example@here'], timeout=10)}")
    finally:
        worker.terminate()
        worker.wait(60)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        os.environ["EXAMPLE_NAME_SERVER"] = sys.argv[1]
        app.conf.broker_url = f"dledger://{sys.argv[1]}/"
    with tempfile.TemporaryDirectory() as directory:
        os.environ["EXAMPLE_RESULTS"] = directory
        app.conf.result_backend = f"file://{directory}"
        main()
