"""`python -m bench.many_clients`: thousands of queues, groups and connections on one node, and rebalance storms.

One process plays all members of all groups. They behave as stock push consumers. They send heartbeats, ask for the list
of members (38) after each notice (40), and hold a pull (11) for each queue of their share. In a storm one member of
every group joins or leaves at the same moment. A storm is over when every member has the present list, and has pulls
for its share only. Another process sends meanwhile. Memory is RssAnon.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

import click

from bench.cluster import BenchCluster, running_cluster
from bench.compiler import build_generator
from bench.generator import Load, LoadResult, run_load
from bench.stopping import stop_on_sigterm
from bench.usage import anonymous_rss_mb, cpu_seconds
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import FLAG_RESPONSE, RemotingCommand, decode_command, encode_command
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.headers import ConsumerGroupHeader, PullMessageHeader, encode_ext

QUEUES: Final = 10
"""Number of queues of each topic. Every group has a topic of its own."""
SENDS: Final = Load(connections=4, window=1, body_bytes=1024)
SENT_TOPIC: Final = "beside"
SUSPEND_MS: Final = 15_000
HEARTBEAT_S: Final = 30.0
CONNECTING: Final = 200
"""Number of connections that are opened at a time."""
LISTED: Final = 100
"""Number of topics or groups in one request."""
PATIENCE_S: Final = 300.0


@click.command()
@click.option(
    "--groups", default=1_000, show_default=True, help="Number of consumer groups, each with a topic of 10 queues."
)
@click.option(
    "--members", default=5, show_default=True, help="Number of members of each group, with a connection each."
)
@click.option("--seconds", default=10.0, show_default=True, help="Length of each run of sends, in seconds.")
def main(groups: int, members: int, seconds: float) -> None:
    """Create queues and groups, let all members join, let one of each group leave, and let one join again."""
    stop_on_sigterm()
    directory = Path(mkdtemp(prefix="dledger-bench-"))
    try:
        with running_cluster(directory / "cluster", "sync") as cluster:
            cluster.create_topic(SENT_TOPIC, 4)
            asyncio.run(Measurement(cluster, groups, members, seconds).run())
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class Member(asyncio.Protocol):
    """One member of one group, with a connection of its own."""

    def __init__(self, crowd: Crowd, group: str, topic: str, name: str) -> None:
        self.group, self.topic, self.name = group, topic, name
        self.listed: tuple[str, ...] = ()
        self.held: dict[int, int] = {}
        """Queues for which this member holds a pull, by the request's opaque."""
        self.is_gone = False
        self._crowd = crowd
        self._decoder = FrameDecoder()
        self._asked = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Join the group."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.beat()
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        """Raise if the node has closed the connection."""
        if not self.is_gone:
            raise ConnectionError(f"{self.name} was closed by the node") from exc

    def data_received(self, data: bytes) -> None:
        """Handle notices and answers."""
        self._decoder.receive_data(data)
        while (frame := self._decoder.next_frame()) is not None:
            command = decode_command(frame)
            if not command.flag & FLAG_RESPONSE:
                self._crowd.notices += command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
                self._ask()
            elif command.opaque == self._asked:
                self._asked = 0
                self._take_list(command.body)
            elif (queue := self.held.pop(command.opaque, None)) is not None and queue in self.share():
                self._pull(queue)

    def share(self) -> range:
        """Return the member's queues, by the default strategy of stock clients."""
        if self.name not in self.listed:
            return range(0)
        index, members = self.listed.index(self.name), len(self.listed)
        size, remainder = divmod(QUEUES, members)
        first = index * size + min(index, remainder)
        return range(first, first + size + (index < remainder))

    @property
    def is_connected(self) -> bool:
        """True once it has been connected. Thousands of connections take a while."""
        return self._transport is not None

    @property
    def is_settled(self) -> bool:
        """True if it has a pull for each queue of its share, and nothing under way."""
        return not self._asked and set(self.share()) <= set(self.held.values())

    def beat(self) -> None:
        """Send a heartbeat."""
        subscription = {"topic": self.topic, "subString": "*", "expressionType": "TAG", "subVersion": 1}
        consumer = {
            "groupName": self.group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [subscription],
        }  # fmt: skip
        body = {"clientID": self.name, "producerDataSet": [], "consumerDataSet": [consumer]}
        self._send(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())

    def leave(self) -> None:
        """Leave without unregistering, as a killed client does."""
        self.is_gone = True
        if self._transport is not None:
            self._transport.abort()

    def _ask(self) -> None:
        self._asked = self._send(RequestCode.GET_CONSUMER_LIST_BY_GROUP, encode_ext(ConsumerGroupHeader(self.group)))
        self._crowd.asked += 1

    def _take_list(self, body: bytes) -> None:
        self.listed = tuple(sorted(json.loads(body)["consumerIdList"])) if body else ()
        held = set(self.held.values())
        for queue in self.share():
            if queue not in held:
                self._pull(queue)

    def _pull(self, queue: int) -> None:
        header = PullMessageHeader(self.group, self.topic, queue, 0, 32, 6, 0, SUSPEND_MS, 0, "*", "TAG")
        self.held[self._send(RequestCode.PULL_MESSAGE, encode_ext(header))] = queue

    def _send(self, code: int, ext: dict[str, str], body: bytes = b"") -> int:
        assert self._transport is not None
        opaque = next(self._crowd.opaques)
        self._transport.write(encode_command(RemotingCommand(code, opaque, ext=ext, body=body)))
        return opaque


class Crowd:
    """All members. `notices` and `asked` count received notices and requested lists since the last reset."""

    def __init__(self, port: int) -> None:
        self.members: set[Member] = set()
        self.notices = self.asked = 0
        self.opaques = count(1)
        self._port = port

    async def join(self, members: Iterable[Member]) -> None:
        """Connect members, many at a time."""
        loop = asyncio.get_running_loop()
        slots = asyncio.Semaphore(CONNECTING)

        async def connect(member: Member) -> None:
            async with slots:
                await loop.create_connection(lambda: member, "127.0.0.1", self._port)

        joining = list(members)
        self.members.update(joining)
        await asyncio.gather(*map(connect, joining))

    def leave(self, members: Sequence[Member]) -> None:
        """Let members leave at once."""
        self.members.difference_update(members)
        for member in members:
            member.leave()

    async def until_settled(self, size: int) -> None:
        """Wait until each member knows `size` members of its group, and has pulls for its share."""
        async with asyncio.timeout(PATIENCE_S):
            while not all(len(member.listed) == size and member.is_settled for member in self.members):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def beat(self) -> None:
        """Send heartbeats for all members, spread over time, until cancelled."""
        while True:
            members = list(self.members)
            for number, member in enumerate(members):
                if member.is_connected and not member.is_gone:
                    member.beat()
                if number % 10 == 0:
                    await asyncio.sleep(10 * HEARTBEAT_S / len(members))


async def make_groups(port: int, names: Sequence[tuple[str, str]]) -> None:
    """Create groups and their topics at the node on a port: topics by 18, groups by 225, many in each request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    decoder, opaques = FrameDecoder(), count(1)
    for first in range(0, len(names), LISTED):
        some = names[first : first + LISTED]
        topics = [
            {"topicName": topic, "readQueueNums": QUEUES, "writeQueueNums": QUEUES, "perm": 6} for _, topic in some
        ]
        groups = [{"groupName": group} for group, _ in some]
        for code, body in (
            (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": topics}),
            (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP_LIST, {"groupConfigList": groups}),
        ):
            writer.write(encode_command(RemotingCommand(code, next(opaques), body=json.dumps(body).encode())))
            while (frame := decoder.next_frame()) is None:
                decoder.receive_data(await reader.read(1 << 16))
            answer = decode_command(frame)
            if answer.code:
                raise RuntimeError(f"{code}: {answer.code} {answer.remark}")
    writer.close()


class Measurement:
    """The steps of one run, and the cost of each step for the node."""

    def __init__(self, cluster: BenchCluster, groups: int, members: int, seconds: float) -> None:
        self._cluster = cluster
        self._names = [(f"G{number}", f"T{number}") for number in range(groups)]
        self._size = members
        self._seconds = seconds
        self._leader = cluster.leader()
        self._crowd = Crowd(self._leader.client_port)
        self._program = build_generator()

    async def run(self) -> None:
        """Run the steps and print one line for each."""
        crowd, size = self._crowd, self._size
        print(f"begin: {self._memory()}", flush=True)
        began = time.monotonic()
        await make_groups(self._leader.client_port, self._names)
        took = time.monotonic() - began
        print(f"{len(self._names)} topics, {len(self._names) * QUEUES} queues, as many groups made in {took:.1f} s")
        print(f"made: {self._memory()}", flush=True)
        print(f"sends: {_told(await asyncio.to_thread(self._sends))}", flush=True)
        first = [self._members(number) for number in range(size)]
        beats = asyncio.create_task(self._beats())
        await self._storm("all come", partial(crowd.join, [member for some in first for member in some]), size)
        print(f"sends beside them: {_told(await asyncio.to_thread(self._sends))}", flush=True)
        await self._storm("one of each group goes", partial(self._leave, first[-1]), size - 1)
        await self._storm("one of each group comes", partial(crowd.join, self._members(size)), size)
        beats.cancel()
        self._crowd.leave(list(self._crowd.members))

    def _members(self, number: int) -> list[Member]:
        return [Member(self._crowd, group, topic, f"{group}-m{number}") for group, topic in self._names]

    async def _beats(self) -> None:
        await asyncio.sleep(HEARTBEAT_S)
        await self._crowd.beat()

    async def _leave(self, members: Sequence[Member]) -> None:
        self._crowd.leave(members)

    async def _storm(self, name: str, change: Callable[[], Awaitable[None]], size: int) -> None:
        pid = self._leader.pid()
        self._crowd.notices = self._crowd.asked = 0
        with ThreadPoolExecutor(1) as pool:
            sending = asyncio.get_running_loop().run_in_executor(pool, self._sends)
            began, cpu = time.monotonic(), cpu_seconds(pid)
            await change()
            await self._crowd.until_settled(size)
            took, used = time.monotonic() - began, cpu_seconds(pid) - cpu
            print(
                f"{name}: settled after {took:.2f} s, {self._crowd.notices} notices, {self._crowd.asked} lists asked "
                f"for, {used:.2f} s of the leader's CPU; {self._memory()}"
            )
            print(f"sends meanwhile: {_told(await sending)}", flush=True)

    def _sends(self) -> LoadResult:
        return run_load(self._program, SENDS, port=self._leader.client_port, topic=SENT_TOPIC, seconds=self._seconds)

    def _memory(self) -> str:
        return ", ".join(f"{node.node_id} {anonymous_rss_mb(node.pid()):.0f} MB" for node in self._cluster.nodes)


def _told(result: LoadResult) -> str:
    return (
        f"{result.messages_per_s:,.0f}/s, p50 {result.p50_us / 1000:.1f} ms, p99 {result.p99_us / 1000:.1f} ms, "
        f"longest {result.max_us / 1000:.0f} ms, errors {result.errors}"
    )


if __name__ == "__main__":
    main()
