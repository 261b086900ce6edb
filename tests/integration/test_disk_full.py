"""A full disk stops only work that needs space, and its effects end when there is space again.

Every node has a small file system. A growing file fills it up.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from bare_client import TOPIC, BareClient, pull_fields, until
from cluster_checks import status_of, stop_and_compare_logs
from commands import run

from dledger_broker.features.retention.job import CHECK_PERIOD_S
from dledger_client.testing import ClusterError, LocalCluster
from dledger_client.testing.ports import find_base_port
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.headers import QueryConsumerOffsetHeader, UpdateConsumerOffsetHeader, encode_ext

pytestmark = pytest.mark.long

DISK_MIB = 150
MESSAGE = bytes(1 << 20)
BALLAST = "ballast"
CROWDED_BYTES = 4 << 30
"""Size in bytes of the file system. The demo takes 15 % of it."""


@contextmanager
def small_disk(directory: Path, mib: int = DISK_MIB) -> Iterator[None]:
    """Mount a file system of `mib` MiB in memory over a directory, with the directory's content."""
    aside = directory.with_name(f"{directory.name}.aside")
    directory.rename(aside)
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system takes root")
    try:
        shutil.copytree(aside, directory, dirs_exist_ok=True)
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def fill(directory: Path, ratio: float = 1.0) -> None:
    """Fill the file system of a directory to a share, by default until no byte is free."""
    size = 1 << 20
    total = os.statvfs(directory).f_blocks * os.statvfs(directory).f_frsize
    with (directory / BALLAST).open("ab", buffering=0) as file:
        while size and (ratio == 1.0 or file.tell() < ratio * total):
            try:
                size = size if file.write(bytes(size)) == size else size // 2
            except OSError:
                size //= 2


def fill_all(cluster: LocalCluster) -> None:
    for node_id in cluster.node_ids:
        fill(cluster.data_dir / node_id)


def make_room(cluster: LocalCluster) -> None:
    for node_id in cluster.node_ids:
        (cluster.data_dir / node_id / BALLAST).unlink()


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
def disk(tmp_path: Path) -> Path:
    """Return a folder over which a file system can be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[BareClient]:
    """Run a client of the leader, with an existing topic and consumer group."""
    with BareClient(cluster.client_address(cluster.leader())) as client:
        # A node with a full disk checks it again within seconds.
        until(lambda: client.send_message(b"first").code == ResponseCode.SUCCESS, "a first message is stored")
        assert first_kept(client).code == ResponseCode.SUCCESS
        yield client


def first_kept(client: BareClient) -> RemotingCommand:
    """Pull the first message that is kept."""
    answer = client.ask(RequestCode.PULL_MESSAGE, pull_fields(0, messages=1))
    if answer.code == ResponseCode.PULL_OFFSET_MOVED:
        answer = client.ask(RequestCode.PULL_MESSAGE, pull_fields(int(answer.ext["nextBeginOffset"]), messages=1))
    return answer


def send_until_refused(client: BareClient, body: bytes) -> tuple[int, str]:
    """Return code and text of the first refusal. A disk that refuses nothing soon is not full.

    Sends under way when the disks fill up have an unknown outcome: followers may store them once they have space.
    """
    for _ in range(DISK_MIB):
        answer = client.send_message(body)
        if answer.code != ResponseCode.SUCCESS and answer.ext.get("outcome") != "unknown":
            return answer.code, answer.remark or ""
    raise AssertionError("the disk is larger than it is")


def test_full_disks_refuse_sends_while_consumers_continue(cluster, client):
    fill_all(cluster)
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

    make_room(cluster)
    until(lambda: client.send_message(b"again").code == ResponseCode.SUCCESS, "sends are taken again")
    last = int(client.ask(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"}).ext["offset"])
    bodies = [client.ask(RequestCode.PULL_MESSAGE, pull_fields(at, messages=1)).body for at in range(last)]
    assert any(b"again" in body for body in bodies)
    assert not any(b"not this one" in body for body in bodies), "what was refused was not stored"


def assert_commits(client: BareClient, offset: int) -> None:
    """Check that the consumer group can commit an offset and read it back."""
    committed = client.ask(
        RequestCode.UPDATE_CONSUMER_OFFSET, encode_ext(UpdateConsumerOffsetHeader("bare", TOPIC, 0, offset))
    )
    assert (committed.code, committed.remark) == (ResponseCode.SUCCESS, None)
    read = client.ask(RequestCode.QUERY_CONSUMER_OFFSET, encode_ext(QueryConsumerOffsetHeader("bare", TOPIC, 0)))
    assert read.ext["offset"] == str(offset)


def test_consume_waits_for_disk_space_to_create_its_group_and_says_so(cluster, client):
    fill_all(cluster)
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
            make_room(cluster)
            output, rest = consumer.communicate(timeout=60)
        finally:
            consumer.kill()
    assert (consumer.returncode, output.strip().isdecimal()) == (0, True)
    assert "'made-later' cannot be made yet" not in rest, "it is said once"


def test_nodes_that_start_on_full_disks_serve_stored_messages(cluster, client):
    fill_all(cluster)
    send_until_refused(client, MESSAGE)
    for node_id in cluster.node_ids:
        cluster.kill(node_id)
    fill_all(cluster)
    for node_id in cluster.node_ids:
        cluster.restart(node_id)
    with BareClient(cluster.client_address(cluster.leader())) as survivor:
        assert first_kept(survivor).code == ResponseCode.SUCCESS
        assert send_until_refused(survivor, MESSAGE)[0] == ResponseCode.SERVICE_NOT_AVAILABLE
        assert_commits(survivor, 3)
        make_room(cluster)
        until(lambda: survivor.send_message(b"again").code == ResponseCode.SUCCESS, "sends are taken again")
    assert stop_and_compare_logs(cluster) > 0


def test_a_first_start_on_a_full_disk_is_one_line(disk: Path, tmp_path: Path):
    with small_disk(disk):
        fill(disk)
        config = tmp_path / "broker.toml"
        names = f'broker_group = "broker-a"\nnode_id = "broker-a-n0"\ndata_dir = "{disk}/data"\n'
        config.write_text(f"{names}port = {find_base_port(1, 1)}\n")
        done = run("broker", "--config", config, "--bootstrap")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"broker: the disk of {disk}/data is full (" in done.stderr
    assert "make room there, then start the node again" in done.stderr


def test_retention_deletes_nothing_on_a_disk_filled_by_others_and_tools_warn(disk: Path):
    with small_disk(disk, 800):
        fill(disk, 0.85)
        cluster = LocalCluster(
            data_dir=disk / "cluster", config=f"segment_bytes = {4 << 20}\nsnapshot_interval_s = 1\n"
        )
        try:
            cluster.start()
            with BareClient(cluster.client_address(cluster.leader())) as client:
                for _ in range(9):
                    assert client.send_message(MESSAGE).code == ResponseCode.SUCCESS
                cluster.kill_leader()  # a leader checks for retention a second after it is ready
            leading = cluster.leader()
            ready_at = time.monotonic()
            until(lambda: time.monotonic() > ready_at + CHECK_PERIOD_S, "retention has looked twice")
            with BareClient(cluster.client_address(leading)) as client:
                assert client.send_message(b"goes on").code == ResponseCode.SUCCESS
                queue = {"topic": TOPIC, "queueId": "0"}
                assert client.ask(RequestCode.GET_MIN_OFFSET, queue).ext["offset"] == "0"
                assert client.ask(RequestCode.GET_MAX_OFFSET, queue).ext["offset"] == "10"
            assert status_of(cluster, leading).first_position == 0
            health = run("cluster", "health", "--namesrv", cluster.namesrv, "--max-disk", "99")
            warned = f"warning: {leading}: the disk of {leading} is "
            assert warned in health.stdout
            assert "above disk_max_used_ratio = 0.75" in health.stdout
            shown = run("status", "--data", str(cluster.data_dir))
            assert warned in shown.stdout
            sent = run("produce", "--namesrv", cluster.namesrv, "--topic", TOPIC, stdin="one\ntwo\n")
            assert (sent.returncode, sent.stderr.count("above disk_max_used_ratio")) == (0, 1), sent.stderr
        finally:
            cluster.stop()


@contextmanager
def crowded_disk(directory: Path, used: float) -> Iterator[None]:
    """Mount a file system that is partly filled, in a sparse file, so that it needs neither disk nor memory."""
    image = directory.with_name(f"{directory.name}.image")
    with image.open("wb") as file:
        file.truncate(CROWDED_BYTES)
    commands = (["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], ["mount", "-o", "loop", str(image), str(directory)])
    for words in commands:
        if os.geteuid() != 0 or subprocess.run(words, capture_output=True, check=False).returncode != 0:
            pytest.skip("mounting a file as a file system takes root and a loop device")
    try:
        with (directory / BALLAST).open("wb") as ballast:
            space = os.statvfs(directory)
            os.posix_fallocate(
                ballast.fileno(), 0, int((space.f_bavail - (1 - used) * space.f_blocks) * space.f_frsize)
            )
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)
        image.unlink()


def test_the_demo_runs_with_a_warning_on_a_file_system_filled_to_85_percent(disk: Path, tmp_path: Path):
    text = tmp_path / "input"
    text.mkdir()
    (text / "some.py").write_text("x = 1\n" * 200_000)
    with crowded_disk(disk, 0.85):
        demo = run("demo", "--input", text, timeout=120, TMPDIR=str(disk))
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "85% are used: above 75% nodes warn" in demo.stderr


def test_a_cluster_or_demo_start_without_disk_space_is_refused_with_numbers(disk: Path):
    with small_disk(disk, 40):
        cluster = LocalCluster(data_dir=disk / "cluster")
        with pytest.raises(ClusterError, match=r"MiB free of 40 MiB, and a cluster of 3 nodes takes about 48 MiB"):
            cluster.start()
        demo = run("demo", TMPDIR=str(disk))
        assert demo.returncode != 0
        assert "MiB free of 40 MiB, and the demonstration takes about" in demo.stdout + demo.stderr
