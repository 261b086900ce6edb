"""The image's entry point runs the compose file's commands and configurations, without a container engine.

The tests replace only the engine's part: mounted directories by temporary ones, host names by 127.0.0.1, and ports by
free ones.
"""

import http.client
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cluster_checks import wait_until

from dledger_admin.cluster.layout import ClusterLayout, NamesrvPlace, NodePlace
from dledger_admin.cluster.probes import fetch_status, groups_clients_find
from dledger_client.testing.ports import find_free_block

pytestmark = pytest.mark.long

DOCKER = Path(__file__).resolve().parents[2] / "docker"
COMPOSE = (DOCKER / "compose.yaml").read_text()
BOOTSTRAP = (DOCKER / "bootstrap.yaml").read_text()
NODE_IDS = sorted(path.stem for path in (DOCKER / "config").glob("broker-*.toml"))
CLIENT_PORT = 10911
NAMESRV_PORT, NAMESRV_HTTP_PORT = 9876, 9877
SECONDS = 60.0


def command_of(service: str, *compose_files: str) -> list[str]:
    """Return the arguments that a service gives the entry point. The last file that names them counts."""
    found = [
        json.loads(match[1])
        for text in compose_files
        for match in re.finditer(rf"^  {service}:\n(?:    .*\n)*?    command: (\[.*\])$", text, re.MULTILINE)
    ]
    return found[-1]


class Compose:
    """Services of the compose file as processes of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.base = find_free_block([*range(23), 90, 91])
        self.secret = root / "secret"
        self.secret.write_text("5" * 64)
        self.secret.chmod(0o600)

    def place(self, node_id: str) -> NodePlace:
        return ClusterLayout(self.root, base_port=self.base, namesrv_port=self.base + 90).place(node_id)

    def arguments(self, service: str, command: list[str]) -> list[str]:
        """Return `command` with its configuration file replaced by one for this machine."""
        home = self.root / service
        home.mkdir(exist_ok=True)
        at = command.index("--config") + 1
        text = (DOCKER / "config" / Path(command[at]).name).read_text()
        text = text.replace("/var/lib/dledger-secret/secret", str(self.secret)).replace("/var/lib/dledger", str(home))
        text = re.sub(rf'"({"|".join([*NODE_IDS, "namesrv"])}):', '"127.0.0.1:', text)
        text = re.sub(r'(advertised_host = )".*"', r'\1"127.0.0.1"', text)
        text = re.sub(r"\b109([1-3])([1-3])\b", lambda match: str(int(match[0]) - CLIENT_PORT + self.base), text)
        text = text.replace(str(NAMESRV_PORT), str(self.base + 90)).replace("0.0.0.0", "127.0.0.1")
        text = text.replace(str(NAMESRV_HTTP_PORT), str(self.base + 91))
        file = home / "config.toml"
        file.write_text(text)
        return [*command[:at], str(file), *command[at + 1 :]]

    def run(self, service: str, *compose_files: str) -> subprocess.Popen[bytes]:
        arguments = self.arguments(service, command_of(service, *compose_files))
        log = (self.root / f"{service}.log").open("wb")
        with log:
            return subprocess.Popen([sys.executable, "-m", "dledger_admin", *arguments], stdout=log, stderr=log)


@pytest.fixture
def compose(tmp_path: Path) -> Iterator[tuple[Compose, dict[str, subprocess.Popen[bytes]]]]:
    """Start all services as the first `docker compose up` does."""
    one = Compose(tmp_path)
    with ExitStack() as stack:
        processes = {}
        for service in ("namesrv", *NODE_IDS):
            processes[service] = stack.enter_context(one.run(service, COMPOSE, BOOTSTRAP))
            stack.callback(processes[service].kill)
        yield one, processes


def test_the_services_found_a_group_and_stop_on_sigterm(compose):
    one, processes = compose
    places = [one.place(node_id) for node_id in NODE_IDS]

    def all_vote() -> bool:
        assert not [(name, code) for name, process in processes.items() if (code := process.poll()) is not None]
        statuses = [fetch_status(place) for place in places]
        return all(status is not None and status.voter for status in statuses)

    assert wait_until(all_vote, SECONDS)
    assert wait_until(lambda: groups_clients_find(NamesrvPlace(one.base + 90, one.root)) == {"broker-a"}, SECONDS)
    assert asked(one.base + 91, "/healthz") == (200, b"ok")
    assert wait_until(lambda: b"dledger_namesrv_nodes 3.0" in asked(one.base + 91, "/metrics")[1], SECONDS)
    for process in processes.values():
        assert wait_until(lambda it=process: health_of(it) == (0, "healthy"), SECONDS), health_of(process)
    for node_id in NODE_IDS:
        processes[node_id].send_signal(signal.SIGTERM)
    for node_id in NODE_IDS:
        process, place = processes[node_id], one.place(node_id)
        assert wait_until(lambda p=process, at=place: p.poll() is not None or is_draining(at), SECONDS)
        # The last service has no other to drain for, and may end before it is asked.
        found = check_health(process)
        if process.poll() is None:
            assert (found.returncode, found.stderr) == (1, "")
            process.send_signal(signal.SIGTERM)
    processes["namesrv"].send_signal(signal.SIGTERM)
    assert [process.wait(timeout=SECONDS) for process in processes.values()] == [0] * len(processes)


def test_a_node_that_cannot_serve_yet_is_unhealthy(tmp_path):
    one = Compose(tmp_path)
    with one.run(NODE_IDS[1], COMPOSE) as process:
        try:
            place = one.place(NODE_IDS[1])
            assert wait_until(lambda: fetch_status(place) is not None or process.poll() is not None, SECONDS)
            status, why = health_of(process)
            assert (status, "healthy" in why) == (1, False), why
        finally:
            process.kill()


def health_of(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Return exit status and output of the image's health check, aimed at `process` instead of process 1."""
    done = check_health(process)
    assert not done.stderr
    return done.returncode, done.stdout.strip()


def check_health(process: subprocess.Popen[bytes]) -> subprocess.CompletedProcess[str]:
    check = [sys.executable, str(DOCKER / "health.py"), str(process.pid)]
    return subprocess.run(check, capture_output=True, text=True, check=False)


def is_draining(place: NodePlace) -> bool:
    """Return whether the node reports that it is draining."""
    try:
        status, text = asked(place.http_port, "/readyz")
    except OSError:
        return False
    return status == 503 and text.startswith(b"draining")


def asked(http_port: int, path: str) -> tuple[int, bytes]:
    """Return status and text of an HTTP port's answer, or raise `OSError`."""
    connection = http.client.HTTPConnection("127.0.0.1", http_port, timeout=SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
