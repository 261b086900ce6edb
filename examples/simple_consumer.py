"""Share jobs among workers: each takes a job for a while and acknowledges it; otherwise another worker gets it.

python examples/simple_consumer.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from dledger_client import Admin, Producer, SimpleConsumer

TOPIC = "example-jobs"
GROUP = "example-workers"


async def main(name_server: str) -> None:
    """Let the first worker give up its job; the second one gets it a second later."""
    async with Admin(name_server) as admin:
        await admin.create_topic(TOPIC, queues=1)
    async with Producer(name_server) as producer:
        await producer.send(TOPIC, b"a job")
    async with (
        SimpleConsumer(name_server, GROUP, TOPIC) as first,
        SimpleConsumer(name_server, GROUP, TOPIC) as second,
    ):
        (job,) = await first.receive(1)
        print(f"first: took {job.body.decode()}")
        await first.change_invisible(job, 1.0)
        (job,) = await second.receive(1)
        print(f"second: took {job.body.decode()}, at try {job.reconsume_times + 1}")
        if await second.ack(job):
            print("second: done")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
