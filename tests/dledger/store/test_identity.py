import errno
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from small_disk import output_on_a_small_disk

from dledger.errors import IdentityError
from dledger.store.disk import Disk, OsDisk, write_file_durably
from dledger.store.identity import (
    ENGINE_FORMAT,
    FORMAT,
    DirectoryLock,
    Identity,
    check_identity,
    read_identity,
    scrub_identity,
    write_identity,
)
from dledger.testing.disk import SimDisk
from dledger.types import Membership, ReplicaId

IDENTITY = Identity(FORMAT, "c1", "broker-a", "n0", "0af3", 1 << 30, Membership((ReplicaId("n0", "0af3"),)))


def test_an_identity_is_read_as_written(disk: Disk):
    assert read_identity(disk) is None
    write_identity(disk, IDENTITY)
    assert read_identity(disk) == IDENTITY


def test_only_an_identity_with_an_engine_has_the_newer_format(disk: Disk):
    other = msgspec.structs.replace(IDENTITY, engine="other")
    for identity, number in ((IDENTITY, FORMAT), (other, ENGINE_FORMAT), (IDENTITY, FORMAT)):
        write_identity(disk, identity)
        file = disk.open("identity.json")
        content = msgspec.json.decode(file.pread(file.size(), 0))
        assert (content["format"], content.get("engine")) == (number, None if number == FORMAT else "other")
        assert read_identity(disk) == msgspec.structs.replace(identity, format=number)
        assert scrub_identity(disk, identity) == []


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


@pytest.mark.parametrize("more", [{"shape": "unheard of"}, {"checksum": "of another kind"}])
def test_a_newer_format_is_refused_even_with_an_unknown_checksum(disk: Disk, more: dict[str, str]):
    raw = msgspec.json.encode({"format": ENGINE_FORMAT + 1, **more})
    for path in ("identity.json", "identity.copy.json"):
        write_file_durably(disk, path, raw)
    text = f"identity.json has format {ENGINE_FORMAT + 1}, this version reads formats up to {ENGINE_FORMAT}"
    with pytest.raises(IdentityError, match=text):
        read_identity(disk)


@pytest.mark.parametrize("path", ["identity.json", "identity.copy.json"])
def test_an_identity_is_read_despite_any_flipped_bit_of_one_copy(path: str):
    disk = SimDisk()
    write_identity(disk, IDENTITY)
    bits = disk.durable_size(path) * 8
    assert bits
    for bit in range(bits):
        disk.flip_bit(path, bit)
        assert read_identity(disk) == IDENTITY
        disk.flip_bit(path, bit)


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
        for _ in range(2):
            lock = DirectoryLock.acquire(str(tmp_path), os.getpid())
            assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
            lock.release()
            lock.release()


def test_a_directory_can_be_locked_without_space_for_the_owners_pid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    lock = DirectoryLock.acquire(str(tmp_path), 1)
    with pytest.raises(IdentityError, match="in use"):
        DirectoryLock.acquire(str(tmp_path), 2)
    lock.release()


_ON_A_SMALL_DISK = """
import os
from dledger.store.identity import DirectoryLock

DirectoryLock.acquire(str(ROOT), 12345678).release()
fill_the_disk()
truncate = os.ftruncate
def truncate_and_lose_what_was_given_back(descriptor, size):
    truncate(descriptor, size)
    fill_the_disk()
if sys.argv[2] == "busy":
    os.ftruncate = truncate_and_lose_what_was_given_back
DirectoryLock.acquire(str(ROOT), 4321).release()
print("locked by", (ROOT / "lock").read_text(), end="")
"""


@pytest.mark.parametrize("others", ["quiet", "busy"])
def test_a_directory_can_be_locked_again_on_a_real_disk_that_is_full(tmp_path: Path, others: str):
    assert output_on_a_small_disk(tmp_path, 1, _ON_A_SMALL_DISK, others) == "locked by 4321\n"
