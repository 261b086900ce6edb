"""Stand-ins for the processes of a cluster, which do only what `dledger` relies on."""

import socket
from pathlib import Path

import pytest

_STUB = """
import http.server, json, os, signal, socketserver, struct, sys, tomllib
from pathlib import Path

config = tomllib.loads(Path(sys.argv[sys.argv.index("--config") + 1]).read_text())
data = Path(config.get("data_dir") or config["data"])
if (data / "fail").exists():
    print("cannot start: the disk is a cheese")
    sys.exit(3)
is_broker = "node_id" in config
terms = []

def on_term(number, frame):
    terms.append(number)
    with (data / "signals").open("a") as file:
        file.write("TERM\\n")
    if (data / "slow-steps").exists():
        if len(terms) == 1:
            signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
        return
    if (data / "stubborn").exists():
        return
    if len(terms) >= (2 if is_broker else 1) or (data / "drains-at-once").exists():
        os._exit(0)

signal.signal(signal.SIGTERM, on_term)

def on_step(number, frame):
    left = int((data / "slow-steps").read_text()) - 1
    (data / "slow-steps").write_text(str(left))
    (data / "stopping").write_text(f"{left} files are to be synced")
    if left == 0:
        os._exit(0)

signal.signal(signal.SIGALRM, on_step)

class Status(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        refusal = (data / "refusal").read_text() if (data / "refusal").exists() else None
        if self.path == "/readyz" and refusal:
            self.send_response(503)
            self.end_headers()
            self.wfile.write(refusal.encode())
            return
        if self.path == "/readyz":
            unready = data / "unready-answers"
            left = int(unready.read_text()) if unready.exists() else 0
            unready.write_text(str(max(0, left - 1)))
            self.send_response(503 if left else 200)
            self.end_headers()
            self.wfile.write(b"not listed yet" if left else b"ready")
            return
        leads = config["node_id"].endswith("n0") and not (data / "never-leads").exists()
        body = json.dumps({
            "node_id": config["node_id"], "group": config["broker_group"], "role": "leader" if leads else "follower",
            "term": 4, "leader_id": config["broker_group"] + "-n0", "commit_index": 10 if leads else 9,
            "applied_index": 10 if leads else 7, "first_position": 0, "last_position": 500, "durable_position": 500,
            "ready": leads, "voters": [config["broker_group"] + "-n" + n for n in "0123"], "learners": [],
            "refusal": refusal,
        }).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *arguments):
        pass

class Names(socketserver.BaseRequestHandler):
    def handle(self):
        group = {"cluster": "c", "brokerName": "broker-a", "brokerAddrs": {"0": "127.0.0.1:1"}}
        body = json.dumps({"brokerAddrTable": {"broker-a": group}, "clusterAddrTable": {"c": ["broker-a"]}}).encode()
        head = json.dumps({"code": 0, "flag": 1, "language": "JAVA", "opaque": 1, "version": 0}).encode()
        while self.request.recv(65536):
            self.request.sendall(struct.pack(">II", 4 + len(head) + len(body), len(head)) + head + body)

if is_broker:
    server = http.server.ThreadingHTTPServer((config["host"], config["http_port"]), Status)
else:
    socketserver.ThreadingTCPServer.allow_reuse_address = True
    server = socketserver.ThreadingTCPServer(("127.0.0.1", config["port"]), Names)
if not (data / "hangs").exists():
    (data / ".pid.tmp").write_text(f"{os.getpid()}\\n")
    (data / ".pid.tmp").replace(data / "pid")  # never an empty file, from which nobody could tell that this runs
server.serve_forever()
"""


@pytest.fixture
def stub_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `python -m dledger_broker` and `python -m dledger_namesrv` start stand-ins in child processes."""
    for package in ("dledger_broker", "dledger_namesrv"):
        folder = tmp_path / "stubs" / package
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder / "__main__.py").write_text(_STUB)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "stubs"))


@pytest.fixture
def ports() -> tuple[int, int]:
    """Return a base port with room for one group of three, and a name server port."""
    from dledger_client.testing.ports import find_free_block

    base = find_free_block([*range(23), 90])
    return base, base + 90


@pytest.fixture
def listener():
    """Return a socket of this process that listens on a free port of 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server
