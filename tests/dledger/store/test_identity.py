import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

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


def test_only_an_identity_that_names_an_engine_has_a_format_that_older_versions_refuse(disk: Disk):
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


def test_a_newer_format_is_refused(tmp_path: Path):
    raw = msgspec.json.encode({"format": ENGINE_FORMAT + 1, "shape": "unheard of"})
    (tmp_path / "identity.json").write_bytes(raw)
    with pytest.raises(
        IdentityError, match=f"format {ENGINE_FORMAT + 1}, this version reads formats up to {ENGINE_FORMAT}"
    ):
        read_identity(OsDisk(str(tmp_path)))


def test_a_newer_format_is_refused_whatever_its_checksum_is(disk: Disk):
    raw = msgspec.json.encode({"format": ENGINE_FORMAT + 1, "checksum": "of another kind"})
    for path in ("identity.json", "identity.copy.json"):
        write_file_durably(disk, path, raw)
    with pytest.raises(IdentityError, match=f"identity.json has format {ENGINE_FORMAT + 1}"):
        read_identity(disk)


@pytest.mark.parametrize("path", ["identity.json", "identity.copy.json"])
def test_whichever_bit_of_one_file_rots_the_other_one_tells(path: str):
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
        lock = DirectoryLock.acquire(str(tmp_path), os.getpid())
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
        lock.release()
        lock.release()


def test_a_released_lock_is_free(tmp_path: Path):
    for _ in range(2):
        DirectoryLock.acquire(str(tmp_path), 1).release()


def test_a_directory_can_be_locked_where_there_is_no_space_to_say_by_whom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    lock = DirectoryLock.acquire(str(tmp_path), 1)
    with pytest.raises(IdentityError, match="in use"):
        DirectoryLock.acquire(str(tmp_path), 2)
    lock.release()


_ON_A_SMALL_DISK = """
import os, pytest, sys
from dledger.store.identity import DirectoryLock

root, others = sys.argv[1:]
DirectoryLock.acquire(root, 12345678).release()

def fill_the_disk():
    with pytest.raises(OSError), open(root + "/other", "ab", buffering=0) as other:
        while other.write(bytes(4096)) == 4096:
            pass

fill_the_disk()
truncate = os.ftruncate
def truncate_and_lose_what_was_given_back(descriptor, size):
    truncate(descriptor, size)
    fill_the_disk()
if others == "busy":
    os.ftruncate = truncate_and_lose_what_was_given_back
DirectoryLock.acquire(root, 4321).release()
with open(root + "/lock") as file:
    print("locked by", file.read(), end="")
"""


@pytest.mark.parametrize("others", ["quiet", "busy"])
def test_a_directory_can_be_locked_again_on_a_real_disk_that_is_full(tmp_path: Path, others: str):
    unshare = shutil.which("unshare")
    mounted = tmp_path / "small"
    mounted.mkdir()
    inside = [str(unshare), "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=1m tmpfs {mounted}"
    if unshare is None or subprocess.run([*inside, mount], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no file system of one's own (unshare --user --mount)")
    script = tmp_path / "script.py"
    script.write_text(_ON_A_SMALL_DISK)
    done = subprocess.run(
        [*inside, f"{mount} && exec {sys.executable} {script} {mounted} {others}"],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "locked by 4321\n", done.stdout + done.stderr
