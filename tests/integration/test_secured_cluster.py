"""A cluster of `up --secure` accepts only clients that have its files."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from commands import run

from dledger_client import (
    AccessRule,
    AccountAdmin,
    ClientError,
    Credentials,
    RefusedError,
    SyncAdmin,
    SyncProducer,
    Tls,
)
from dledger_client.testing.ports import find_free_block
from dledger_spark.errors import DeniedError
from dledger_spark.filters import PushedFilters
from dledger_spark.needed_rights import WAYS, Right
from dledger_spark.options import read_options
from dledger_spark.planning import BatchPlanner
from dledger_spark.plans import groups_by_ordinal
from dledger_spark.reading import read_partition
from dledger_spark.signing import client_credentials, client_tls
from dledger_spark.streaming import StreamReader

DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    data = tmp_path_factory.mktemp("secured") / "data"
    base = find_free_block([*range(4), 90])
    ports = ("--namesrv-port", str(base + 90), "--base-port", str(base))
    up = run("up", "--data", str(data), "--nodes", "1", *ports, "--secure", "--detach", timeout=DEADLINE_S)
    try:
        assert up.returncode == 0, up.stderr
        yield data / "secure", up.stdout
    finally:
        run("down", "--data", str(data), timeout=DEADLINE_S)


@pytest.fixture(scope="module")
def variables(started: tuple[Path, str]) -> dict[str, str]:
    """Return the variables of `client.env`, as a shell reads them."""
    words = shlex.split((started[0] / "client.env").read_text())
    return dict(word.split("=", 1) for word in words if word != "export")


def test_commands_work_with_the_variables_that_up_prints(started: tuple[Path, str], variables: dict[str, str]) -> None:
    assert f". {started[0]}/client.env" in started[1]
    assert run("topic", "create", "numbers", **variables).returncode == 0
    assert run("produce", "--topic", "numbers", stdin="1\n2\n", **variables).returncode == 0
    read = run("consume", "--topic", "numbers", "--from-beginning", "--exit-eof", **variables)
    assert read.stdout.split() == ["1", "2"], read.stderr


def test_our_client_needs_both_certificate_and_account(started: tuple[Path, str], variables: dict[str, str]) -> None:
    address, tls = variables["DLEDGER_NAMESRV"], Tls(variables["DLEDGER_TLS_CA"])
    account = Credentials(*(started[0] / "credentials").read_text().split())
    with SyncProducer(address, tls=tls, credentials=account) as producer:
        assert producer.send("ours", b"x").queue_offset == 0
    with SyncAdmin(address, tls=tls) as unsigned, pytest.raises(RefusedError):
        unsigned.create_topic("never")
    with SyncAdmin(address, credentials=account) as plain, pytest.raises(ClientError, match="has to speak TLS"):
        plain.topics()


class Ways:
    """Ways in which Spark reads and writes, without Spark. Each returns the number of messages."""

    def __init__(self, namesrv: str) -> None:
        self._options = {"namesrv": namesrv, "subscribe": "ways", "readFrom": "any", "readTimeout": "1h"}

    def go(self, number: int) -> int:
        """Run the way at this place in the table."""
        streaming = {"startingOffsets": "earliest"}
        ways = (
            self._batch,
            lambda: self._batch(startingTimestamp="1"),
            lambda: self._batch(mode="queues") + self._stream(**streaming) - 2,
            lambda: self._stream(**streaming, groupId="ways-of-spark"),
            self._write,
            lambda: self._write() + len(groups_by_ordinal((self._options["namesrv"],), 10)) - 1,
        )
        return ways[number]()

    def _batch(self, **more: str) -> int:
        parts = BatchPlanner(read_options(self._options | more, "batch"), PushedFilters()).partitions()
        return sum(batch.num_rows for part in parts for batch in read_partition(part))

    def _stream(self, **more: str) -> int:
        reader = StreamReader(read_options(self._options | more, "stream"))
        try:
            start = reader.initialOffset()
            parts = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
            assert not reader.not_published, "progress"
            return sum(batch.num_rows for part in parts for batch in read_partition(part))
        finally:
            reader.stop()

    def _write(self) -> int:
        with SyncProducer(self._options["namesrv"], credentials=client_credentials(), tls=client_tls()) as producer:
            return len(producer.send_batch("copies", [b"1", b"2"]))


@pytest.fixture(scope="module")
def grant(started: tuple[Path, str], variables: dict[str, str]) -> Callable[[str, Sequence[Right]], None]:
    """Return a function that gives an account rights, and creates the account on its first call."""
    tls, root = Tls(variables["DLEDGER_TLS_CA"]), Credentials(*(started[0] / "credentials").read_text().split())
    with SyncAdmin(variables["DLEDGER_NAMESRV"], tls=tls, credentials=root) as admin:
        for topic in ("ways", "copies"):
            admin.create_topic(topic, queues=1)
    with SyncProducer(variables["DLEDGER_NAMESRV"], tls=tls, credentials=root) as producer:
        producer.send_batch("ways", [b"1", b"2"])
    named = {"the cluster": "Cluster:*", "its topics": "Topic:*", "its group": "Group:ways-of-spark"}

    async def give(name: str, rights: Sequence[Right]) -> None:
        async with AccountAdmin(variables["DLEDGER_NAMESRV"], root, tls=tls) as admin:
            if not rights:
                await admin.create(name, "a-secret-of-spark")
            for resource in {right.resource for right in rights}:
                actions = tuple(right.action for right in rights if right.resource == resource)
                await admin.grant(name, AccessRule(named.get(resource, f"Group:{resource}"), actions))

    return lambda name, rights: asyncio.run(give(name, rights))


@pytest.mark.parametrize("number", range(len(WAYS)), ids=[way.name for way in WAYS])
def test_each_spark_way_works_exactly_with_the_rights_of_the_guide(
    variables: dict[str, str],
    grant: Callable[[str, Sequence[Right]], None],
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, ways = f"way-{number}", Ways(variables["DLEDGER_NAMESRV"])
    (tmp_path / "credentials").write_text(f"{name}\na-secret-of-spark\n")
    monkeypatch.setenv("DLEDGER_CREDENTIALS", str(tmp_path / "credentials"))
    monkeypatch.setenv("DLEDGER_TLS_CA", variables["DLEDGER_TLS_CA"])
    grant(name, ())
    with pytest.raises((DeniedError, ClientError), match=r"Log|Pub"):
        ways.go(number)
    grant(name, WAYS[number].rights)
    assert ways.go(number) == 2
