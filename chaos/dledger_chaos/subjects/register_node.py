"""`python -m dledger_chaos.subjects.register_node --config FILE`: the map on this project's replicated log.

It prints `ready HOST:PORT` once its client port listens, and stops at SIGTERM. Reads wait until a majority confirms the
leader (`Node.read_barrier`), so every operation is linearizable.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import click

from dledger import CommittedEntry, Leadership, Node, NodeConfig, SnapshotMeta
from dledger.errors import BusyError, ConfigError, LogError, LogFullError, NotLeaderError, TooLargeError
from dledger.statemachine import Restore
from dledger_base.logs import LogFormatter
from dledger_chaos.subjects.config import SubjectConfig, read_config
from dledger_chaos.subjects.line_server import FAIL, INFO, Answer, LineServer
from dledger_chaos.subjects.registers import Json, RegisterMap, Result, encode_command

SECRET = b"a subject of the chaos rig, on loopback"


class Waiting:
    """The context of a command. It receives the result of the command, or the notice that the result is unknown."""

    def __init__(self, future: asyncio.Future[Result | None]) -> None:
        self._future = future

    def resolve(self, result: Result | None) -> None:
        """Set the result; None if the fate of the command is unknown."""
        if not self._future.done():
            self._future.set_result(result)


class RegisterMachine:
    """`RegisterMap` as a state machine of the log."""

    def __init__(self) -> None:
        self.map = RegisterMap()

    def apply(self, entries: Sequence[CommittedEntry]) -> None:
        """Apply entries. Commands of one turn of the event loop share an entry, one line for each command."""
        for entry in entries:
            results = [self.map.apply(line) for line in bytes(entry.records).splitlines()]
            waiting = [context for context in entry.contexts if isinstance(context, Waiting)]
            for context, result in zip(waiting, results, strict=False):
                context.resolve(result)

    def rebuild(self, entries: Sequence[CommittedEntry]) -> None:
        """Do nothing: there are no views beside the map."""

    def dropped(self, contexts: Sequence[object], full: LogFullError | None) -> None:  # noqa: ARG002 - a change of unknown outcome may be in no log
        for context in contexts:
            if isinstance(context, Waiting):
                context.resolve(None)

    def on_leadership(self, leadership: Leadership) -> None:
        """Do nothing: the map is the same under every leader."""

    def snapshot(self) -> Iterator[bytes]:
        return iter([json.dumps(self.map.dump()).encode()])

    def decode(self, meta: SnapshotMeta | None, chunks: Iterable[bytes]) -> Restore:
        decoded = RegisterMap()
        if meta is not None:
            decoded.load(json.loads(b"".join(chunks)))
        return partial(self._restore, decoded, 0 if meta is None else meta.position)

    def _restore(self, decoded: RegisterMap, position: int) -> int:
        self.map = decoded
        return position

    def digest(self) -> int:
        return self.map.digest


class RegisterSubject:
    """Answers the port's requests from a node."""

    def __init__(self, node: Node, machine: RegisterMachine) -> None:
        self._node = node
        self._machine = machine

    async def read(self, key: str) -> Answer:
        try:
            await self._node.read_barrier()
        except NotLeaderError as error:
            return Answer(ok=False, outcome=FAIL, leader=error.leader_id, error=str(error))
        return Answer(ok=True, value=self._machine.map.read(key))

    async def write(self, operation: str, key: str, value: Json) -> Answer:
        command = encode_command(operation, key, value)
        future: asyncio.Future[Result | None] = asyncio.get_running_loop().create_future()
        try:
            self._node.stage(len(command), lambda _position: (command,), context=Waiting(future))
        except NotLeaderError as error:
            return Answer(ok=False, outcome=FAIL, leader=error.leader_id, error=str(error))
        except (BusyError, LogFullError, TooLargeError) as error:
            return Answer(ok=False, outcome=FAIL, error=str(error))
        result = await future
        if result is None:
            return Answer(ok=False, outcome=INFO, leader=self._node.leader_id, error="leadership was lost meanwhile")
        if not result.ok:
            return Answer(ok=False, outcome=FAIL, error=str(result.value))
        return Answer(ok=True, value=result.value)

    def status(self) -> dict[str, Json]:
        node = self._node
        return {
            "node_id": node.config.node_id,
            "role": node.role,
            "term": node.term,
            "leader_id": node.leader_id,
            "ready": node.is_ready,
            "voters": [member.node_id for member in node.membership.voters],
            "commit_index": node.commit_index,
            "applied_index": node.applied_index,
        }

    def dump(self) -> dict[str, Json]:
        return self._machine.map.dump()


async def serve(config: SubjectConfig) -> int:
    """Run until SIGTERM or SIGINT (0), or until the node cannot continue (1)."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    machine = RegisterMachine()
    node = Node(
        NodeConfig(
            cluster="subjects",
            group="registers",
            node_id=config.node_id,
            data_dir=Path(config.data_dir),
            secret=SECRET,
            bind=config.bind,
            peers=config.peers,
            segment_bytes=config.segment_bytes,
            bootstrap=config.bootstrap,
        ),
        machine,
    )
    async with node:
        server = LineServer(RegisterSubject(node, machine), config.client)
        await server.start()
        click.echo(f"ready {server.address[0]}:{server.address[1]}")
        stopping = asyncio.create_task(stop.wait())
        failing = asyncio.create_task(node.wait_failed())
        await asyncio.wait((stopping, failing), return_when=asyncio.FIRST_COMPLETED)
        await server.stop()
        failed = failing.done()
        for task in (stopping, failing):
            task.cancel()
    return 1 if failed else 0


@click.command()
@click.option("--config", "path", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=True)
def main(path: Path) -> None:
    """One node of a replicated map of registers and logs."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter("text", path.stem))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        sys.exit(asyncio.run(serve(read_config(path))))
    except (ConfigError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    except LogError as error:
        raise click.ClickException(f"{type(error).__name__}: {error}") from error


if __name__ == "__main__":
    main()
