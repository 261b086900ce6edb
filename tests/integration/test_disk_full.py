"""A full disk stops what needs space and nothing else, and is over when there is space again.

Every node has a small file system of its own; a file that grows until nothing more fits makes it full.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from bare_client import TOPIC, BareClient, pull_fields, until
from cluster_checks import status_of, stop_and_compare_logs

from dledger_client.testing import LocalCluster
from dledger_client.testing.ports import find_base_port
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.headers import QueryConsumerOffsetHeader, UpdateConsumerOffsetHeader, encode_ext

pytestmark = pytest.mark.slow

DISK_MIB = 150
MESSAGE = bytes(1 << 20)
BALLAST = "ballast"


@contextmanager
def small_disk(directory: Path) -> Iterator[None]:
    """A file system of `DISK_MIB` in memory, mounted over a directory with what that holds."""
    aside = directory.with_name(f"{directory.name}.aside")
    directory.rename(aside)
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system takes root")
    try:
        shutil.copytree(aside, directory, dirs_exist_ok=True)
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def fill(directory: Path) -> None:
    """Leave no byte free on the file system of a directory."""
    size = 1 << 20
    with (directory / BALLAST).open("ab", buffering=0) as file:
        while size:
            try:
                size = size if file.write(bytes(size)) == size else size // 2
            except OSError:
                size //= 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(data_dir=tmp_path_factory.mktemp("full") / "cluster", config=f"segment_bytes = {16 << 20}")
    cluster.start()
    cluster.stop()
    with ExitStack() as stack:
        for node_id in cluster.node_ids:
            stack.enter_context(small_disk(cluster.data_dir / node_id))
        stack.callback(cluster.stop)
        cluster.start()
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[BareClient]:
    """A client of the leader, whose topic and consumer group exist."""
    with BareClient(cluster.client_address(cluster.leader())) as client:
        assert client.send_message(b"first").code == ResponseCode.SUCCESS
        assert first_kept(client).code == ResponseCode.SUCCESS
        yield client


def first_kept(client: BareClient) -> RemotingCommand:
    """A pull of the first message that is left: where a disk stays too full for long, the oldest segments go."""
    answer = client.ask(RequestCode.PULL_MESSAGE, pull_fields(0, messages=1))
    if answer.code == ResponseCode.PULL_OFFSET_MOVED:
        answer = client.ask(RequestCode.PULL_MESSAGE, pull_fields(int(answer.ext["nextBeginOffset"]), messages=1))
    return answer


def send_until_refused(client: BareClient, body: bytes) -> tuple[int, str]:
    """The first refusal: code and text. Nothing keeps a disk full that is not refused soon.

    What is under way when disks turn out to be full has an unknown outcome: followers may take it once they have space.
    """
    for _ in range(DISK_MIB):
        answer = client.send_message(body)
        if answer.code != ResponseCode.SUCCESS and answer.ext.get("outcome") != "unknown":
            return answer.code, answer.remark or ""
    raise AssertionError("the disk is larger than it is")


def position(cluster: LocalCluster, node_id: str) -> int:
    return status_of(cluster, node_id).last_position


def test_one_full_disk_does_not_stop_the_group_and_that_node_catches_up(cluster, client):
    leading = cluster.leader()
    full = next(node_id for node_id in cluster.node_ids if node_id != leading)
    fill(cluster.data_dir / full)
    sent = 0
    while position(cluster, full) == position(cluster, leading) or sent < 5:
        assert client.send_message(MESSAGE).code == ResponseCode.SUCCESS
        sent += 1
        assert sent < DISK_MIB // 2, "the node never ran out of space"
    assert cluster.pid(full) is not None
    (cluster.data_dir / full / BALLAST).unlink()
    cluster.wait_ready()
    until(lambda: position(cluster, full) == position(cluster, leading), "it has caught up")


def test_what_waits_for_space_that_the_leader_does_not_have_is_refused_and_stored_nowhere(cluster, client):
    """Nobody knows that the disk is full when it is taken; the followers, who have space, never get it."""
    leading = cluster.leader()
    fill(cluster.data_dir / leading)
    taken = 0
    while True:
        answer = client.send_message(b"%d of the full disk" % taken + MESSAGE)
        if answer.code != ResponseCode.SUCCESS:
            break
        taken += 1
        assert taken < DISK_MIB, "the disk is larger than it is"
    assert (answer.code, answer.ext.get("outcome")) == (ResponseCode.SERVICE_NOT_AVAILABLE, None)
    assert (answer.remark or "").startswith(f"nothing was stored: the disk of {leading} is full")
    (cluster.data_dir / leading / BALLAST).unlink()
    until(lambda: client.send_message(b"again").code == ResponseCode.SUCCESS, "sends are taken again")
    last = int(client.ask(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"}).ext["offset"])
    bodies = [client.ask(RequestCode.PULL_MESSAGE, pull_fields(at, messages=1)).body for at in range(last)]
    assert not any(b"%d of the full disk" % taken in body for body in bodies)


def test_full_disks_refuse_sends_and_let_consumers_go_on_until_there_is_space(cluster, client):
    for node_id in cluster.node_ids:
        fill(cluster.data_dir / node_id)
    code, text = send_until_refused(client, MESSAGE)
    assert code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert text.startswith("nothing was stored: the disk")
    assert "make room there" in text
    assert "\n" not in text
    for size in (1 << 16, 1 << 10, 1):
        send_until_refused(client, bytes(size))
    assert client.send_message(b"not this one").code == ResponseCode.SERVICE_NOT_AVAILABLE

    found = client.ask(RequestCode.PULL_MESSAGE, pull_fields(0, messages=1))
    assert (found.code, b"first" in found.body) == (ResponseCode.SUCCESS, True)
    for offset in (1, 2):
        assert_commits(client, offset)
    assert [cluster.pid(node_id) for node_id in cluster.node_ids if cluster.pid(node_id) is None] == []

    for node_id in cluster.node_ids:
        (cluster.data_dir / node_id / BALLAST).unlink()
    until(lambda: client.send_message(b"again").code == ResponseCode.SUCCESS, "sends are taken again")
    last = int(client.ask(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"}).ext["offset"])
    bodies = [client.ask(RequestCode.PULL_MESSAGE, pull_fields(at, messages=1)).body for at in range(last)]
    assert any(b"again" in body for body in bodies)
    assert not any(b"not this one" in body for body in bodies), "what was refused was not stored"


def assert_commits(client: BareClient, offset: int) -> None:
    """The consumer group commits an offset and reads it back."""
    committed = client.ask(
        RequestCode.UPDATE_CONSUMER_OFFSET, encode_ext(UpdateConsumerOffsetHeader("bare", TOPIC, 0, offset))
    )
    assert (committed.code, committed.remark) == (ResponseCode.SUCCESS, None)
    read = client.ask(RequestCode.QUERY_CONSUMER_OFFSET, encode_ext(QueryConsumerOffsetHeader("bare", TOPIC, 0)))
    assert read.ext["offset"] == str(offset)


def test_a_consumer_of_a_group_that_full_disks_keep_from_being_made_says_so_and_goes_on(cluster, client):
    for node_id in cluster.node_ids:
        fill(cluster.data_dir / node_id)
    for size in (1 << 20, 1 << 16, 1 << 10, 1):
        send_until_refused(client, bytes(size))
    words = [sys.executable, "-m", "dledger_admin", "consume", "--namesrv", cluster.namesrv, "--topic", TOPIC]
    words += ["--group", "made-later", "--from-beginning", "--count", "1", "--format", "%o\n"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as consumer:
        try:
            said = consumer.stderr.readline()
            assert said.startswith("consumer group 'made-later' cannot be made yet: ")
            assert "nothing was stored" in said
            assert said.endswith("; waiting until it can\n")
            for node_id in cluster.node_ids:
                (cluster.data_dir / node_id / BALLAST).unlink()
            output, rest = consumer.communicate(timeout=60)
        finally:
            consumer.kill()
    assert (consumer.returncode, output.strip().isdecimal()) == (0, True)
    assert "'made-later' cannot be made yet" not in rest, "it is said once"


def test_nodes_that_start_on_full_disks_serve_what_they_have(cluster, client):
    for node_id in cluster.node_ids:
        fill(cluster.data_dir / node_id)
    send_until_refused(client, MESSAGE)
    for node_id in cluster.node_ids:
        cluster.kill(node_id)
    for node_id in cluster.node_ids:
        cluster.restart(node_id)
    with BareClient(cluster.client_address(cluster.leader())) as survivor:
        assert first_kept(survivor).code == ResponseCode.SUCCESS
        assert send_until_refused(survivor, MESSAGE)[0] == ResponseCode.SERVICE_NOT_AVAILABLE
        assert_commits(survivor, 3)
        for node_id in cluster.node_ids:
            (cluster.data_dir / node_id / BALLAST).unlink()
        until(lambda: survivor.send_message(b"again").code == ResponseCode.SUCCESS, "sends are taken again")
    assert stop_and_compare_logs(cluster) > 0


def test_a_first_start_on_a_full_disk_is_one_line(tmp_path: Path):
    disk = tmp_path / "disk"
    disk.mkdir()
    with small_disk(disk):
        fill(disk)
        config = tmp_path / "broker.toml"
        names = f'broker_group = "broker-a"\nnode_id = "broker-a-n0"\ndata_dir = "{disk}/data"\n'
        config.write_text(f"{names}port = {find_base_port(1, 1)}\n")
        command = [sys.executable, "-m", "dledger_admin", "broker", "--config", str(config), "--bootstrap"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"broker: the disk of {disk}/data is full (" in done.stderr
    assert "make room there, then start the node again" in done.stderr
