"""`top`, `bench` and `debug bundle` on a secured cluster of one real node."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import tarfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

DLEDGER = Path(sys.executable).with_name("dledger")
SECONDS = 60.0


class Secured:
    """A secured cluster of one node, and commands of its administrator."""

    def __init__(self, data: Path, ports: tuple[int, int]) -> None:
        self.data = data
        self.folder = data / "secure"
        base_port, namesrv_port = ports
        self.environment = {name: text for name, text in os.environ.items() if not name.startswith("DLEDGER_")}
        places = ["--nodes", "1", "--namesrv-port", str(namesrv_port), "--base-port", str(base_port)]
        self.run("up", "--data", str(data), *places, "--console-port", "0", "--secure", "--detach")
        self.environment |= {
            "DLEDGER_NAMESRV": f"127.0.0.1:{namesrv_port}",
            "DLEDGER_TLS_CA": str(self.folder / "ca.pem"),
            "DLEDGER_CREDENTIALS": str(self.folder / "credentials"),
        }

    def run(self, *words: str) -> str:
        done = subprocess.run([DLEDGER, *words], capture_output=True, text=True, env=self.environment, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def read(self, *words: str):
        return json.loads(self.run(*words, "-o", "json"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    from dledger_client.testing.ports import find_free_block

    base = find_free_block([*range(23), 90])
    data = tmp_path_factory.mktemp("tools") / "mq"
    started = Secured(data, (base, base + 90))
    yield started
    started.run("down", "--data", str(data))


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["send", "--batch", "7", "--concurrency", "3"], "send"),
        (["consume"], "consume"),
        (["end-to-end", "--rate", "2000"], "end-to-end"),
    ],
)
def test_a_benchmark_handles_every_message_and_leaves_no_topic(cluster, words, kind):
    result = cluster.read("bench", *words, "--messages", "500", "--size", "64")
    assert (result["kind"], result["messages"], result["failed"], result["missing"]) == (kind, 500, 0, 0)
    assert result["latency"]["count"] == (72 if kind == "send" else result["latency"]["count"])
    assert result["latency"]["count"] > 0
    assert result["topic"] not in cluster.read("topic", "list")


def test_a_topic_that_is_kept_or_given_stays(cluster):
    result = cluster.read("bench", "send", "--messages", "10", "--keep")
    again = cluster.read("bench", "consume", "--topic", result["topic"])
    assert (again["messages"], again["kept"]) == (10, True)
    assert result["topic"] in cluster.read("topic", "list")


@pytest.mark.parametrize("interrupts", [signal.SIG_DFL, signal.SIG_IGN], ids=["foreground", "background"])
def test_a_signal_ends_a_benchmark_and_its_topic_goes(cluster, interrupts):
    """Shells ignore interrupts for what they start in the background."""
    kept = set(open_benches(cluster))
    process = subprocess.Popen(
        [DLEDGER, "bench", "send", "--seconds", "600"],
        env=cluster.environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, interrupts),  # noqa: PLW1509 - no thread of this process forks
    )
    try:
        wait_until(lambda: set(open_benches(cluster)) - kept)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 1
    finally:
        process.kill()
        process.wait()
    assert set(open_benches(cluster)) == kept


def open_benches(cluster) -> list[str]:
    return [name for name in cluster.read("topic", "list") if name.startswith("bench-")]


def wait_until(holds) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline


def test_top_shows_the_cluster_on_a_terminal_until_q(cluster):
    assert cluster.read("top", "--once")["nodes"][0]["role"] == "leader"
    child, terminal = pty.fork()
    if child == 0:
        terminal_size = {"TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
        os.execve(DLEDGER, ["dledger", "top", "--interval", "0.2"], {**cluster.environment, **terminal_size})
    seen = read_until(terminal, b"leader")
    assert b"Healthy: 1 node" in seen
    os.write(terminal, b"q")
    with suppress(OSError):  # the end of a terminal without a process
        read_until(terminal, b"a word that never comes")
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0


def read_until(terminal: int, word: bytes) -> bytes:
    seen = b""
    deadline = time.monotonic() + SECONDS
    while word not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, seen
        seen += os.read(terminal, 65536)
    return seen


def test_a_bundle_has_everything_but_the_secrets_in_use(cluster, tmp_path):
    """A secret that got into a log is removed, too."""
    secrets = [line for line in (cluster.data / "secret").read_text().split() if len(line) > 7]
    secrets += (cluster.folder / "access.keys").read_text().split()
    secrets += (cluster.folder / "credentials").read_text().split()[1:]
    secrets += [line for line in (cluster.folder / "node-key.pem").read_text().splitlines() if "-----" not in line]
    log = next(cluster.data.glob("broker-a-n0/log/broker.log"))
    with log.open("a") as file:
        file.write(f"a line with {' '.join(secrets)}\n")
    result = cluster.read(
        "debug", "bundle", "--data", str(cluster.data), "--into", str(tmp_path / "b.tar.gz"), "--verify"
    )
    assert result["missing"] == []
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        files = {member.name: tar.extractfile(member).read().decode() for member in tar}
    assert len(secrets) > 3
    assert not [(name, secret) for name, data in files.items() for secret in secrets if secret in data]
    assert "a line with" in files["b/nodes/broker-a-n0/log/broker.log"]
    assert "dledger_raft_term" in files["b/nodes/broker-a-n0/metrics.txt"]
    assert json.loads(files["b/local/verification-broker-a.json"])["ok"]
    assert json.loads(files["b/cluster/health.json"])["nodes"][0]["role"] == "leader"
    assert "access_key_file" in files["b/nodes/broker-a-n0/broker.toml"]


def test_a_bundle_of_a_stopped_cluster_has_its_logs_and_says_what_it_lacks(cluster, tmp_path):
    cluster.run("down", "--data", str(cluster.data))
    try:
        result = cluster.read("debug", "bundle", "--data", str(cluster.data), "--into", str(tmp_path / "b.tar.gz"))
        assert any("127.0.0.1" in one["what"] or "127.0.0.1" in one["why"] for one in result["missing"])
        with tarfile.open(tmp_path / "b.tar.gz") as tar:
            assert "b/nodes/broker-a-n0/log/broker.log" in tar.getnames()
    finally:
        cluster.run("up", "--data", str(cluster.data), "--console-port", "0", "--detach")
