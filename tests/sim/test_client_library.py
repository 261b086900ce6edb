"""Simulated client processes: their connections and their event loop. Their seeds are in `test_seeds`."""

import asyncio
from collections.abc import Callable
from random import Random

from dledger_sim.brokers.library.loop import ClientLoop
from dledger_sim.brokers.library.wires import Pipe
from dledger_sim.log.scheduler import Scheduler


def test_a_pipe_delivers_bytes_in_order_and_then_the_end() -> None:
    scheduler, received, cut = Scheduler(), list[bytes | None](), [True]
    pipe = Pipe(scheduler, Random(1), scheduler.at, received.append, lambda: cut[0])
    sent = [bytes([number]) * (1 + 7 * number) for number in range(40)]
    for data in sent[:20]:
        pipe.send(data)
    scheduler.run_until(1.0)
    assert received == []
    cut.clear()
    cut.append(False)
    for data in sent[20:]:
        pipe.send(data)
    pipe.hang_up()
    pipe.send(b"too late")
    scheduler.run_until(2.0)
    assert received.pop() is None
    assert b"".join(filter(None, received)) == b"".join(sent)
    assert len(received) > len(sent)


def loop_of(scheduler: Scheduler, unhandled: Callable[[BaseException], None]) -> ClientLoop:
    return ClientLoop(scheduler, unhandled, lambda: None)


def test_a_stopped_process_resumes_and_a_killed_process_never_does() -> None:
    scheduler, beats = Scheduler(), list[tuple[str, float]]()

    async def beat(name: str) -> None:
        while True:
            await asyncio.sleep(1.0)
            beats.append((name, asyncio.get_running_loop().time()))

    stopped, killed = (loop_of(scheduler, beats.append) for _ in range(2))  # type: ignore[arg-type]
    stopped.from_outside(lambda: stopped.create_task(beat("stopped")))
    killed.from_outside(lambda: killed.create_task(beat("killed")))
    scheduler.run_until(1.5)
    stopped.stop(3.25)
    killed.kill()
    scheduler.run_until(5.0)
    assert beats == [("stopped", 1.0), ("killed", 1.0), ("stopped", 3.25), ("stopped", 4.25)]
    for loop in (stopped, killed):
        loop.bury()
