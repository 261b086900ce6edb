import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from dledger.errors import IdentityError
from dledger.store.disk import Disk, OsDisk
from dledger.store.identity import (
    FORMAT,
    DirectoryLock,
    Identity,
    check_identity,
    read_identity,
    write_identity,
)
from dledger.types import Membership, ReplicaId

IDENTITY = Identity(FORMAT, "c1", "broker-a", "n0", "0af3", 1 << 30, Membership((ReplicaId("n0", "0af3"),)))


def test_an_identity_is_read_as_written(disk: Disk):
    assert read_identity(disk) is None
    write_identity(disk, IDENTITY)
    assert read_identity(disk) == IDENTITY


@pytest.mark.parametrize(
    ("key", "expected", "text"),
    [
        ("cluster", "c2", "/data belongs to cluster 'c1', this node is configured as cluster 'c2'"),
        ("group", "broker-b", "/data belongs to group 'broker-a', this node is configured as group 'broker-b'"),
        ("node_id", "n1", "/data belongs to node id 'n0', this node is configured as node id 'n1'"),
        ("segment_bytes", 4096, "/data was made with segment_bytes 1073741824, 4096 was given"),
    ],
)
def test_a_directory_of_another_is_refused_by_name(key: str, expected: object, text: str):
    wanted = {"cluster": "c1", "group": "broker-a", "node_id": "n0", "segment_bytes": 1 << 30}
    check_identity(IDENTITY, directory="/data", **wanted)  # type: ignore[arg-type]
    with pytest.raises(IdentityError, match=text):
        check_identity(IDENTITY, directory="/data", **{**wanted, key: expected})  # type: ignore[arg-type]


def test_a_newer_format_is_refused(tmp_path: Path):
    raw = msgspec.json.encode({"format": FORMAT + 1, "shape": "unheard of"})
    (tmp_path / "identity.json").write_bytes(raw)
    with pytest.raises(IdentityError, match=f"format {FORMAT + 1}, this version reads format {FORMAT}"):
        read_identity(OsDisk(str(tmp_path)))


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"format": 1}', b"\xff\xfe", b'{"format": "one"}'])
def test_an_unreadable_identity_is_refused(tmp_path: Path, raw: bytes):
    (tmp_path / "identity.json").write_bytes(raw)
    with pytest.raises(IdentityError, match="not readable"):
        read_identity(OsDisk(str(tmp_path)), "/data")


def test_a_directory_in_use_names_the_process(tmp_path: Path):
    program = (
        "import sys, os; from dledger.store.identity import DirectoryLock;"
        "lock = DirectoryLock.acquire(sys.argv[1], os.getpid()); print(flush=True); sys.stdin.read()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        holder.stdout.readline()
        with pytest.raises(IdentityError, match=f"in use by the live process {holder.pid}"):
            DirectoryLock.acquire(str(tmp_path), os.getpid())
        holder.kill()
        holder.wait()
        lock = DirectoryLock.acquire(str(tmp_path), os.getpid())
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
        lock.release()
        lock.release()


def test_a_released_lock_is_free(tmp_path: Path):
    for _ in range(2):
        DirectoryLock.acquire(str(tmp_path), 1).release()
