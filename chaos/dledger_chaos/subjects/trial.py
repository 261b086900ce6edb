"""`python -m dledger_chaos.subjects.trial KIND`: one schedule for both subjects, aimed at followers' acknowledgements.

1. Three nodes run. One follower, `late`, is paused (SIGSTOP) while clients write large values to registers, each
   register once.
2. `late` is resumed (SIGCONT), and the other follower, `early`, is paused. From now on every acknowledged write has
   been acknowledged by `late`.
3. While `late` catches up and clients still write, the leader is killed (SIGKILL). This happens as soon as `late` logs
   that it drops applied entries, or after some seconds.
4. `early` is resumed. Once there is a leader, every register is read from both survivors, and the histories are judged
   for linearizability. Refused reads do not count.

The trial needs no loss of power and no lost message. To lose entries, it is enough that a follower drops acknowledged
entries until the leader sends them again. Rounds run in fresh directories until one convicts the subject. The exit code
is 1 then, else 0.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

import click
import msgspec

from dledger_chaos.history import Operation, Recorder, read_operations
from dledger_chaos.linear import REGISTER, check_linearizable, shortest
from dledger_chaos.linear_calls import call_of
from dledger_chaos.subjects.client import SubjectClient
from dledger_chaos.subjects.group import Kind, SubjectGroup

WORKLOAD: Final = "registers"
IN_FLIGHT: Final = 48
VALUE_BYTES: Final = 30_000
"""Size of a value. Two values fill one message of PySyncObj."""
BACKLOG_S: Final = 2.0
CATCH_UP_S: Final = 6.0
TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.002
DROPPED: Final = b"truncating already-applied log entries"
"""Text in PySyncObj's log when a follower drops applied entries."""
SHORTEST_FILE: Final = "shortest.json"


class Verdict(NamedTuple):
    """Result of a round. `lost` has the registers whose histories are not linearizable."""

    outcomes: Counter[str]
    lost: dict[str, list[Operation]]


async def trial(kind: Kind, directory: Path, seed: int) -> Verdict:
    """Run one round in `directory`, which must be empty or missing."""
    directory.mkdir(parents=True, exist_ok=True)
    group = SubjectGroup(kind, directory)
    with Recorder(directory) as recorder:
        try:
            group.start()
            leader = await group.leader(voters=3)
            survivors = [name for name in group.node_ids if name != leader]
            random.Random(seed).shuffle(survivors)
            keys = await _write_registers(group, leader, survivors, recorder)
            await group.leader(voters=3)
            for survivor in survivors:
                await _read_registers(group, survivor, recorder, keys)
        finally:
            group.stop()
    return judge(directory)


async def _write_registers(group: SubjectGroup, leader: str, survivors: list[str], recorder: Recorder) -> list[str]:
    """Write registers until the leader has been killed. Return their keys."""
    written: list[str] = []
    killed = asyncio.Event()

    async def writer(number: int, client: SubjectClient) -> None:
        while not killed.is_set():
            key = f"r{len(written)}"
            written.append(key)
            operation = recorder.invoke(WORKLOAD, f"writer-{number}", "write", key, key)
            answer = await client.call("write", key, key.ljust(VALUE_BYTES, "."), timeout_s=TIMEOUT_S)
            if answer.ok:
                operation.ok()
            elif answer.outcome == "fail":
                operation.fail(answer.error or "")
            else:
                operation.info(answer.error or "")

    late, early = survivors
    async with SubjectClient(group.client_addresses[leader]) as client, asyncio.TaskGroup() as writers:
        group[late].signal(signal.SIGSTOP)
        for number in range(IN_FLIGHT):
            writers.create_task(writer(number, client))
        await asyncio.sleep(BACKLOG_S)
        group[late].signal(signal.SIGCONT)
        group[early].signal(signal.SIGSTOP)
        await _wait_for_dropped_entries(group[late].log)
        group[leader].kill()
        killed.set()
        group[early].signal(signal.SIGCONT)
    return written


async def _wait_for_dropped_entries(log: Path) -> None:
    try:
        async with asyncio.timeout(CATCH_UP_S):
            while DROPPED not in log.read_bytes():  # noqa: ASYNC110 - another process is what changes it
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        pass


async def _read_registers(group: SubjectGroup, node_id: str, recorder: Recorder, keys: list[str]) -> None:
    """Read every register through one node."""
    waiting = iter(keys)

    async def reader(client: SubjectClient) -> None:
        for key in waiting:
            operation = recorder.invoke(WORKLOAD, f"reader-{node_id}", "read", key)
            answer = await client.call("read", key, timeout_s=TIMEOUT_S)
            if answer.ok:
                operation.ok(answer.value.rstrip(".") if isinstance(answer.value, str) else answer.value)
            elif answer.outcome == "fail":
                operation.fail(answer.error or "")
            else:
                operation.info(answer.error or "")

    async with SubjectClient(group.client_addresses[node_id]) as client:
        await asyncio.gather(*(reader(client) for _ in range(IN_FLIGHT)))


def judge(directory: Path) -> Verdict:
    """Judge the history in `directory`. Write the shortest history that convicts the subject into `SHORTEST_FILE`."""
    outcomes: Counter[str] = Counter()
    histories: dict[str, list[Operation]] = {}
    for operation in read_operations(directory):
        outcomes[f"{operation.f} {operation.outcome}"] += 1
        histories.setdefault(operation.key, []).append(operation)
    lost: dict[str, list[Operation]] = {}
    for key, operations in histories.items():
        calls = [call for operation in operations if (call := call_of(operation)) is not None]
        if check_linearizable(calls, REGISTER).result == "invalid":
            kept = {call.id for call in shortest(calls, REGISTER)}
            lost[key] = [operation for operation in operations if operation.id in kept]
    if lost:
        story = min(lost.values(), key=len)
        (directory / SHORTEST_FILE).write_text(json.dumps(msgspec.to_builtins(story), indent=1) + "\n")
    return Verdict(outcomes, lost)


@click.command()
@click.argument("kind", type=click.Choice(["register_node", "pysyncobj_node"]))
@click.option("--rounds", default=10, show_default=True, help="Maximum number of rounds.")
@click.option(
    "--seed", default=1, show_default=True, help="Seed of the first round; each further round has the next seed."
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("trial-runs"), show_default=True)
def main(kind: Kind, rounds: int, seed: int, out: Path) -> None:
    """Kill the leader of a subject under large writes, and judge what is left."""
    for number in range(seed, seed + rounds):
        directory = out / f"{kind}-{number}"
        verdict = asyncio.run(trial(kind, directory, number))
        counts = ", ".join(f"{count} {what}" for what, count in sorted(verdict.outcomes.items()))
        click.echo(f"seed {number}: {counts}; {len(verdict.lost)} acknowledged writes lost")
        if verdict.lost:
            click.echo(f"convicted: {(directory / SHORTEST_FILE)}\n{(directory / SHORTEST_FILE).read_text()}")
            sys.exit(1)


if __name__ == "__main__":
    main()
