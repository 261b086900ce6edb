"""A worker for a container: it drains on SIGTERM, and so it loses no job and repeats no finished one.

python examples/container_worker.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from dledger_client import PushConsumer, ReceivedMessage

TOPIC = "example-worker-jobs"
JOB_SECONDS = float(os.environ.get("JOB_SECONDS", "1"))
DRAIN_SECONDS = 25
"""Time limit in seconds for the jobs in work. It is shorter than the time until SIGKILL, which Kubernetes sends after
30 s, and Docker after 10 s unless `stop_grace_period` says more.
"""


async def work(message: ReceivedMessage) -> None:
    """Do one job. An exception gives it back, and it comes again later."""
    job = message.body.decode()
    print(f"began {job}", flush=True)
    await asyncio.sleep(JOB_SECONDS)  # stands for the work
    print(f"did {job}", flush=True)


async def main(name_server: str) -> None:
    """Work until the process is told to stop, then finish the jobs in work, commit, and leave the group."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with PushConsumer(
        name_server,
        "example-container-workers",
        TOPIC,
        work,
        concurrency=4,
        close_timeout=DRAIN_SECONDS,
        start_timeout=None,
    ):
        await stop.wait()
        print("draining", flush=True)
    print("drained", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("DLEDGER_NAMESRV", "127.0.0.1:9876")))
