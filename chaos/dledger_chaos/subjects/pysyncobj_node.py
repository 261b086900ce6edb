"""`python -m dledger_chaos.subjects.pysyncobj_node --config FILE`: the same map on stock PySyncObj.

The library runs with its defaults, except that its journal is on. Reads go through its log like writes, because it
documents that local reads may be stale, and only its promises are judged. Every failure counts as `info`, because the
library does not say whether the command takes effect later.

Of two nodes, the one with the greater address dials. `peers` names the addresses that this node dials, which may be
proxies. The nodes know each other by id.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import click
from pysyncobj import SyncObj, SyncObjConf, replicated
from pysyncobj.config import FAIL_REASON
from pysyncobj.node import TCPNode

from dledger_chaos.subjects.config import SubjectConfig, read_config
from dledger_chaos.subjects.line_server import FAIL, INFO, Answer, LineServer
from dledger_chaos.subjects.registers import Json, RegisterMap, Result, encode_command


class NamedNode(TCPNode):  # type: ignore[misc]  # the library is not typed
    """A node that has the same id everywhere, but an address of its own in each process."""

    def __init__(self, node_id: str, dial: tuple[str, int]) -> None:
        super().__init__(f"{node_id}:{dial[1]}")
        self._dial = dial
        self._id = node_id

    @property
    def address(self) -> str:
        return str(self._id)

    @property
    def ip(self) -> str:
        return self._dial[0]

    @property
    def port(self) -> int:
        return self._dial[1]


class ReplicatedMap(SyncObj):  # type: ignore[misc]  # the library is not typed
    """`RegisterMap` behind the library's log."""

    def __init__(self, config: SubjectConfig) -> None:
        self.map = RegisterMap()
        directory = Path(config.data_dir)
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(
            NamedNode(config.node_id, config.bind),
            [NamedNode(node_id, dial) for node_id, dial in config.peers.items()],
            SyncObjConf(journalFile=str(directory / "journal"), bindAddress=f"{config.bind[0]}:{config.bind[1]}"),
        )

    @replicated  # type: ignore[untyped-decorator]  # the library is not typed
    def command(self, line: bytes) -> Result:
        """Apply a command everywhere."""
        return self.map.apply(line)

    @replicated  # type: ignore[untyped-decorator]  # the library is not typed
    def query(self, key: str) -> Result:
        """Read in the order of the log."""
        return Result(ok=True, value=self.map.read(key))


class PySyncObjSubject:
    """Answers the port's requests from the library, which calls back on a thread of its own."""

    def __init__(self, replica: ReplicatedMap, node_id: str) -> None:
        self._replica = replica
        self._node_id = node_id

    async def read(self, key: str) -> Answer:
        return await self._submit(lambda callback: self._replica.query(key, callback=callback))

    async def write(self, operation: str, key: str, value: Json) -> Answer:
        line = encode_command(operation, key, value)
        return await self._submit(lambda callback: self._replica.command(line, callback=callback))

    async def _submit(self, call: Callable[[Callable[[Result | None, int], None]], None]) -> Answer:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[Result | None, int]] = loop.create_future()

        def resolve(outcome: tuple[Result | None, int]) -> None:
            if not future.done():
                future.set_result(outcome)

        def called_back(result: Result | None, error: int) -> None:
            loop.call_soon_threadsafe(resolve, (result, error))

        call(called_back)
        result, error = await future
        if error != FAIL_REASON.SUCCESS or result is None:
            return Answer(ok=False, outcome=INFO, leader=self._leader, error=f"the library's fail reason {error}")
        if not result.ok:
            return Answer(ok=False, outcome=FAIL, error=str(result.value))
        return Answer(ok=True, value=result.value)

    @property
    def _leader(self) -> str | None:
        leader = self._replica._getLeader()  # noqa: SLF001 - the library's own examples call it
        return None if leader is None else str(leader.id)

    def status(self) -> dict[str, Json]:
        replica = self._replica
        state = replica.getStatus()
        return {
            "node_id": self._node_id,
            "role": ("follower", "candidate", "leader")[state["state"]],
            "term": state["raft_term"],
            "leader_id": self._leader,
            "ready": bool(replica.isReady()) and self._leader is not None,
            "voters": sorted([self._node_id, *(node.id for node in replica.otherNodes)]),
            "commit_index": state["commit_idx"],
            "applied_index": state["last_applied"],
        }

    def dump(self) -> dict[str, Json]:
        return self._replica.map.dump()


async def serve(config: SubjectConfig) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    replica = ReplicatedMap(config)
    server = LineServer(PySyncObjSubject(replica, config.node_id), config.client)
    await server.start()
    click.echo(f"ready {server.address[0]}:{server.address[1]}")
    await stop.wait()
    await server.stop()
    replica.destroy()


@click.command()
@click.option("--config", "path", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=True)
def main(path: Path) -> None:
    """One node of a replicated map of registers and logs, on stock PySyncObj."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        asyncio.run(serve(read_config(path)))
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
