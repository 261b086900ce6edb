"""Ask a question in a message, and wait for the answer of its consumer.

python examples/request_reply.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from dledger_client import Admin, DeadlineError, Producer, PushConsumer, ReceivedMessage

TOPIC = "example-questions"


async def main(name_server: str) -> None:
    """Create the topic, then use it."""
    async with Admin(name_server) as admin:
        await admin.create_topic(TOPIC, queues=4)

    async with (
        Producer(name_server, group="example-askers") as asker,
        Producer(name_server, group="example-answerers") as answerer,
    ):

        async def answer(message: ReceivedMessage) -> None:
            await answerer.reply(message, b"%d letters" % len(message.body))

        async with PushConsumer(name_server, "example-counters", {TOPIC: "*"}, answer):
            words = (b"one", b"three", b"eleven")
            replies = await asyncio.gather(*(asker.request(TOPIC, word, timeout=30.0) for word in words))
            for word, reply in zip(words, replies, strict=True):
                print(f"{word.decode()}: {reply.body.decode()}")

        try:
            await asker.request(TOPIC, b"nobody listens", timeout=1.0)
        except DeadlineError as error:
            # The message is stored anyway, and may be worked on later.
            print(f"no reply, outcome {error.outcome}: {error}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
