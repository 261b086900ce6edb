"""Costly requests against a live secured cluster.

`python -m tests.integration.fuzz_wire MINUTES [SEED]`, or `make fuzz-wire`. The requests vary fields, counts, nesting,
compression and repetition. Some clients do not read, or leave connections and handshakes half open. Requests have all
codes and go to every port: unsigned, signed wrongly, and signed by an account with rights.

Meanwhile a bystander sends, in a process of its own. In the end leader and term must be unchanged, and no process may
have more than 512 MiB. The slowest hundredth of the bystander's sends may take at most three times as long as in the
comparison before. During the comparison the same requests were generated without being sent, since on few cores their
generation slows the bystander too.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from dledger_base.access_keys import access_keys
from dledger_client.testing.ports import NAMESRV_OFFSET, find_base_port
from dledger_remoting.accounts import root_credentials
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand, decode_command, encode_command
from dledger_remoting.frame import FrameDecoder, join_frame
from dledger_remoting.signatures import Credentials, signed

NODES: Final = 3
MAX_MIB: Final = 512
MAX_DESCRIPTORS: Final = 1_200
HELD: Final = 400
"""Number of connections that the generator leaves open."""
CODES: Final = sorted({*map(int, RequestCode), 0, 9_999, -1})
WAIT_S: Final = 30.0
CALM_S: Final = 30.0
"""Time of the comparison before the attacks, in seconds."""


class Cluster:
    """A secured cluster of `dledger up`, with an account that may send and consume."""

    def __init__(self, data: Path, configuration: str = "") -> None:
        self.data = data
        overrides = data.with_name("overrides.toml")
        overrides.write_text(configuration)
        self.base = find_base_port(1, NODES)
        self.namesrv = self.base + NAMESRV_OFFSET
        ports = ("--base-port", str(self.base), "--namesrv-port", str(self.namesrv), "--nodes", str(NODES))
        self.run("up", "--data", str(data), "--groups", "1", *ports, "--secure", "--config", str(overrides), "--detach")
        self.tls = ssl.create_default_context(cafile=str(data / "secure" / "ca.pem"))
        self.root = root_credentials(access_keys(data / "secure" / "access.keys"))
        self.app = Credentials("app", "the secret of app")

    def run(self, *arguments: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "dledger_admin", *arguments], check=True, capture_output=True, timeout=120
        )

    def connect(self, port: int) -> ssl.SSLSocket:
        return self.tls.wrap_socket(socket.create_connection(("127.0.0.1", port), WAIT_S), server_hostname="127.0.0.1")

    def status(self, number: int) -> dict[str, object]:
        url = f"http://127.0.0.1:{self.base + 10 * number + 2}/status"
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            found: dict[str, object] = json.loads(answer.read())
        return found

    def leader(self) -> tuple[int, object]:
        """Return the number of the leader, and its term."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for number in range(NODES):
                status = self.status(number)
                if status["role"] == "leader" and status["ready"]:
                    return number, status["term"]
            time.sleep(0.1)
        raise AssertionError("there is no leader")

    def processes(self) -> dict[str, int]:
        names = [f"broker-a-n{number}" for number in range(NODES)]
        return {name: int((self.data / name / "pid").read_text().split()[0]) for name in (*names, "namesrv")}

    def call(self, connection: ssl.SSLSocket, code: int, ext: dict[str, str], body: bytes, who: Credentials) -> int:
        """Return the code of an answer."""
        connection.sendall(encode_command(RemotingCommand(code, opaque=1, ext=signed(ext, body, who), body=body)))
        decoder = FrameDecoder()
        while (frame := decoder.next_frame()) is None:
            data = connection.recv(1 << 16)
            if not data:
                raise ConnectionError("closed")
            decoder.receive_data(data)
        return decode_command(frame).code

    def make_account(self) -> None:
        user = json.dumps({"username": "app", "password": self.app.secret, "userType": "Normal"}).encode()
        rules = [
            {"resource": "Topic:*", "actions": ["Pub", "Sub", "Create"], "sourceIps": [], "decision": "Allow"},
            {"resource": "Group:*", "actions": ["Sub"], "sourceIps": [], "decision": "Allow"},
        ]
        policies = {"subject": "User:app", "policies": [{"policyType": "Custom", "entries": rules}]}
        with self.connect(self.base + 10 * self.leader()[0]) as connection:
            assert self.call(connection, 3001, {"username": "app"}, user, self.root) == 0
            assert self.call(connection, 3007, {"subject": "User:app"}, json.dumps(policies).encode(), self.root) == 0


@contextmanager
def secured(configuration: str = "") -> Iterator[Cluster]:
    """Run a cluster with an account; `configuration` is laid over that of each node."""
    with tempfile.TemporaryDirectory(prefix="fuzz-wire-") as folder:
        cluster = Cluster(Path(folder) / "data", configuration)
        try:
            cluster.make_account()
            yield cluster
        finally:
            cluster.run("down", "--data", str(cluster.data))


class Generator:
    """Generator of costly requests and connections, equal for equal seeds.

    With `sends` false it generates them without sending.
    """

    def __init__(self, cluster: Cluster, seed: int, *, sends: bool = True) -> None:
        self._cluster = cluster
        self._sends = sends
        self._random = random.Random(seed)
        self._held: deque[socket.socket] = deque()
        self._kinds: tuple[Callable[[], None], ...] = (
            *(self._large_header, self._many_values, self._deep_values, self._registration, self._repeated),
            *(self._unread, self._half_handshake, self._silent, self._half_request),
        )

    def attack(self) -> None:
        """Run the next attack. Any reaction of the cluster is right if the cluster survives."""
        with suppress(OSError):
            self._random.choice(self._kinds)()
        while len(self._held) > HELD:
            self._held.popleft().close()

    def close(self) -> None:
        for connection in self._held:
            connection.close()

    def _port(self) -> int:
        number = self._random.randrange(NODES + 1)
        return self._cluster.namesrv if number == NODES else self._cluster.base + 10 * number

    def _signed(self, ext: dict[str, str], body: bytes) -> dict[str, str]:
        how = self._random.randrange(3)
        if how == 0:
            return ext
        return signed(
            ext, body, self._cluster.app if how == 1 else Credentials("app", f"guess {self._random.random()}")
        )

    def _send(self, data: bytes, *, port: int | None = None) -> None:
        """Send over a new connection, which stays open for a while."""
        number = self._port() if port is None else port
        if not self._sends:
            return
        connection = self._cluster.connect(number)
        self._held.append(connection)
        connection.settimeout(1.0)
        connection.sendall(data)

    def _request(self, ext: dict[str, str], body: bytes = b"") -> bytes:
        code = self._random.choice(CODES)
        command = RemotingCommand(code, opaque=self._random.getrandbits(31), ext=self._signed(ext, body), body=body)
        command.serialize_type = self._random.randrange(2)
        return encode_command(command)

    def _large_header(self) -> None:
        count = self._random.choice((200, 256, 257, 5_000, 300_000))
        fields = ",".join(f'"{number:x}":"{"x" * self._random.randrange(3)}"' for number in range(count))
        code = self._random.choice(CODES)
        self._send(join_frame(0, f'{{"code":{code},"opaque":1,"flag":0,"extFields":{{{fields}}}}}'.encode()))

    def _many_values(self) -> None:
        item = self._random.choice((b"0,", b'{"topic":"t"},', b'"x",', b"[],", b"0:0,"))
        count = self._random.choice((1_000, 16_000, 500_000))
        self._send(self._request(dict(self._fields()), b"[" + item * (count // len(item)) + b"0]"))

    def _deep_values(self) -> None:
        self._send(self._request(dict(self._fields()), self._random.choice((b"[", b'{"a":')) * 200_000))

    def _registration(self) -> None:
        body = zlib.compress(b"\0\0\0\1{" + b"a 1 1 6 S {}" * self._random.choice((10, 4_000_000)), 1)
        ext = {"brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "haServerAddr": "x", "brokerId": "0"}
        command = RemotingCommand(103, opaque=1, ext=self._signed(ext | {"compressed": "true"}, body), body=body)
        self._send(encode_command(command), port=self._cluster.namesrv)

    def _repeated(self) -> None:
        self._send(self._request(dict(self._fields())) * 300)

    def _unread(self) -> None:
        pull = {
            "consumerGroup": "g",
            "topic": "t",
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "1",
            "sysFlag": "4",
        }
        ext = signed(
            pull | {"commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0"}, b"", self._cluster.app
        )
        self._send(encode_command(RemotingCommand(11, opaque=1, ext=ext)) * 50)

    def _half_handshake(self) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        with suppress(ssl.SSLWantReadError):
            self._cluster.tls.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1").do_handshake()
        self._silent(outgoing.read()[: self._random.choice((1, 100, 1_000))])

    def _silent(self, first: bytes = b"") -> None:
        port = self._port() if self._random.randrange(2) else self._cluster.base + self._random.choice((1, 2, 11, 12))
        if not self._sends:
            return
        connection = socket.create_connection(("127.0.0.1", port), 1.0)
        self._held.append(connection)
        connection.sendall(first)

    def _half_request(self) -> None:
        whole = self._request(dict(self._fields()), bytes(self._random.choice((10, 100_000, 4_000_000))))
        self._send(whole[: len(whole) * 9 // 10])

    def _fields(self) -> Iterator[tuple[str, str]]:
        for name in (
            "topic",
            "consumerGroup",
            "group",
            "queueId",
            "queueOffset",
            "maxMsgNums",
            "topics",
            "key",
            "b",
            "e",
        ):
            if self._random.randrange(2):
                yield name, self._random.choice(("t", "0", "-1", "x" * 30_000, "a," * 20_000, "9" * 18, "%RETRY%g"))


def send(cluster: Cluster, connection: ssl.SSLSocket, body: bytes = b"x") -> int:
    """Send a message as the bystander does, and return the code of the answer."""
    now = str(int(time.time() * 1000))
    ext = {"a": "pg", "b": "t", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": now, "h": "0", "i": "", "j": "0"}
    return cluster.call(connection, 310, ext | {"k": "false", "m": "false"}, body, cluster.app)


def memory_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} has ended")


def require_whole(cluster: Cluster, before: tuple[int, object]) -> None:
    """Raise `AssertionError` if the leader changed, or a process has grown too much."""
    assert cluster.leader() == before, "the leader changed"
    for name, pid in cluster.processes().items():
        assert memory_mib(pid) <= MAX_MIB, f"{name} has {memory_mib(pid):.0f} MiB"
        assert len(os.listdir(f"/proc/{pid}/fd")) <= MAX_DESCRIPTORS, f"{name} has too many descriptors open"


class Bystander:
    """Process that sends, from its creation until `slowest_hundredth_s` is called."""

    def __init__(self, cluster: Cluster, leader: int) -> None:
        context = multiprocessing.get_context("fork")
        self._stop = context.Event()
        self._found, told = context.Pipe(duplex=False)
        self._process = context.Process(target=self._send, args=(cluster, leader, told))
        self._process.start()
        told.close()

    def slowest_hundredth_s(self) -> float:
        """Return the maximum time of 99 of 100 sends. Raise `AssertionError` if a send failed."""
        self._stop.set()
        try:
            found: float = self._found.recv()
        except EOFError:
            raise AssertionError("the bystander was not served") from None
        self._process.join()
        return found

    def _send(self, cluster: Cluster, leader: int, told: Connection) -> None:
        took: list[float] = []
        with cluster.connect(cluster.base + 10 * leader) as connection:
            while not self._stop.wait(0.02):
                began = time.monotonic()
                code = send(cluster, connection)
                assert code == 0, f"a send is answered {code}"
                took.append(time.monotonic() - began)
        told.send(sorted(took)[len(took) * 99 // 100])


def main(minutes: float, seed: int) -> None:
    """Attack a cluster for this many minutes."""
    with secured() as cluster:
        before = cluster.leader()
        with cluster.connect(cluster.base + 10 * before[0]) as connection:
            for _ in range(4):
                assert send(cluster, connection, os.urandom(2 << 20)) == 0
        bystander, idle = Bystander(cluster, before[0]), Generator(cluster, seed, sends=False)
        until = time.monotonic() + min(CALM_S, 60 * minutes)
        while time.monotonic() < until:
            idle.attack()
        alone_s = bystander.slowest_hundredth_s()
        bystander, generator = Bystander(cluster, before[0]), Generator(cluster, seed)
        until, count = time.monotonic() + 60 * minutes, 0
        while time.monotonic() < until:
            generator.attack()
            count += 1
            if not count % 100:
                require_whole(cluster, before)
        found_s = bystander.slowest_hundredth_s()
        generator.close()
        print(f"{count} attacks, seed {seed}: p99 of sends alone {alone_s:.4f} s, meanwhile {found_s:.4f} s")
        print({name: f"{memory_mib(pid):.0f} MiB" for name, pid in cluster.processes().items()})
        require_whole(cluster, before)
        assert found_s <= 3 * alone_s, "the bystander waited too long"


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 30.0, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
