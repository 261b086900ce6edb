"""Worker of the fault tests: notes in a file which messages it begins and ends, so that a kill loses no note.

python faulty_worker.py NAME_SERVER TOPIC GROUP MODE FILE
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path

from faststream import FastStream

from dledger_faststream import DledgerBroker, Mode


def make_broker(
    name_server: str, topic: str, group: str, mode: Mode, file: Path, *, hangs: bool = False
) -> DledgerBroker:
    """Return a broker whose only handler notes what it does in `file`. With `hangs` it never ends its first message."""
    broker = DledgerBroker(name_server, logger=None)
    notes = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @broker.subscriber(topic, group=group, mode=mode, max_workers=8, invisible=2.0)
    async def handle(number: int) -> None:
        nonlocal hangs
        os.write(notes, f"begin {number}\n".encode())
        if hangs:
            hangs = False
            await asyncio.Event().wait()
        await asyncio.sleep(0.005)
        os.write(notes, f"end {number}\n".encode())

    return broker


def noted(file: Path, word: str) -> Counter[int]:
    """Return how often each message was begun or ended by the worker of `file`."""
    lines = file.read_text().splitlines() if file.exists() else []
    return Counter(int(line.split()[1]) for line in lines if line.startswith(word))


if __name__ == "__main__":
    name_server, topic, group, mode, file = sys.argv[1:]
    broker = make_broker(name_server, topic, group, mode, Path(file), hangs=True)
    asyncio.run(FastStream(broker, logger=None).run())
