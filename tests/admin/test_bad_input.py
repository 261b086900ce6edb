"""Wrong input to `up` and `node` gives one line that says what to do, and changes nothing."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dledger.extras import install_command
from dledger_admin.cli import main
from dledger_admin.cluster.bootstrap import check_data_dir, complete_bootstrap, founding_manifest
from dledger_admin.cluster.layout import ClusterLayout
from dledger_admin.cluster.lifecycle import up_lock
from dledger_admin.cluster.ports import describe_listener
from dledger_admin.commands import client_calls
from dledger_admin.errors import AdminError
from dledger_client import ConnectError, NoNameServerError, SendError


def dledger(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(arguments))
    return result.exit_code, result.output


@pytest.fixture
def founded(tmp_path, ports):
    """A stopped cluster of one group of three."""
    data = tmp_path / "cluster"
    base_port, namesrv_port = ports
    layout = ClusterLayout(data, 1, 3, namesrv_port, base_port)
    complete_bootstrap(layout, founding_manifest(layout, None, 1 << 20))
    return data


def test_a_port_in_use_names_its_user_and_leaves_no_directory(tmp_path, listener):
    port = listener.getsockname()[1]
    data = tmp_path / "cluster"
    code, output = dledger("up", "--data", str(data), "--namesrv-port", str(port), "--detach")
    assert code == 1
    assert output.startswith(f"Error: port {port} (name server port) is in use by pid {os.getpid()} (")
    assert "--namesrv-port" in output
    assert output.count("\n") == 1
    assert not data.exists()


def test_the_listener_of_a_port_is_described_by_pid_and_command(listener):
    assert describe_listener(listener.getsockname()[1]).startswith(f"pid {os.getpid()} (")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--nodes", "5"], ["holds a cluster of 1 group(s) of 3 nodes", "--nodes 5", "give 3"]),
        (["--groups", "2"], ["--groups 2", "give 1"]),
    ],
)
def test_the_directory_of_another_layout_is_left_alone(founded, options, words):
    before = sorted(path.name for path in founded.rglob("*"))
    code, output = dledger("up", "--data", str(founded), *options, "--detach")
    assert code == 1
    assert all(word in output for word in words), output
    assert sorted(path.name for path in founded.rglob("*")) == before


def test_a_segment_size_other_than_the_founding_one_is_refused(founded, tmp_path):
    config = tmp_path / "c.toml"
    config.write_text("segment_bytes = 4096\n")
    code, output = dledger("up", "--data", str(founded), "--config", str(config), "--detach")
    assert code == 1
    assert "segment_bytes = 4096 was given" in output
    assert "1048576" in output


def test_two_ups_at_once_are_one_too_many(founded):
    with up_lock(founded):
        code, output = dledger("up", "--data", str(founded), "--detach")
    assert code == 1
    assert "another `dledger up` holds" in output


def test_an_even_group_is_refused_before_anything_is_made(tmp_path):
    code, output = dledger("up", "--data", str(tmp_path / "x"), "--nodes", "4", "--detach")
    assert code == 2
    assert "--nodes 4" in output
    assert not (tmp_path / "x").exists()


def test_in_the_foreground_there_is_no_result_to_print_as_json(tmp_path):
    code, output = dledger("up", "--data", str(tmp_path / "x"), "-o", "json")
    assert code == 2
    assert "-o json goes with --detach" in output
    assert not (tmp_path / "x").exists()


def test_a_directory_that_cannot_be_made_is_named(tmp_path, ports, monkeypatch):
    data = tmp_path / "cluster"
    base_port, namesrv_port = map(str, ports)

    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    code, output = dledger("up", "--data", str(data), "--base-port", base_port, "--namesrv-port", namesrv_port)
    assert (code, output) == (1, f"Error: {data} cannot be used: Permission denied\n")


@pytest.mark.parametrize(
    ("arguments", "streams", "words"),
    [
        (("topic", "create", "\udcff"), {}, r"'\udcff' is not UTF-8"),
        (("up", "--data", "\udcff", "--detach"), {}, r"'\udcff' is not UTF-8"),
        (("produce", "--topic", "t"), {"stdin": None}, "standard input is closed"),
        (("consume", "--topic", "t"), {"stdout": None}, "standard output is closed"),
    ],
)
def test_what_python_stumbles_over_is_said_in_one_line(tmp_path, monkeypatch, listener, arguments, streams, words):
    program = (
        "import sys; from dledger_admin.cli import main\n"
        f"for name, stream in {streams!r}.items(): setattr(sys, name, stream)\n"
        "main()"
    )
    monkeypatch.setenv("DLEDGER_NAMESRV", "{}:{}".format(*listener.getsockname()))
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode in {1, 2}
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_cluster_is_not_founded_below_a_folder_whose_name_no_configuration_could_hold(tmp_path, monkeypatch):
    folder = tmp_path / "\udcff"
    folder.mkdir()
    monkeypatch.chdir(folder)
    code, output = dledger("up", "--data", "mq", "--detach")
    assert code == 2
    assert "is not UTF-8: give another path" in output
    assert not list(folder.iterdir())


def test_a_founding_on_a_full_disk_names_the_file_and_is_completed_once_there_is_room(tmp_path, ports):
    data = tmp_path / "cluster"
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
    command = [sys.executable, "-c", limited + "from dledger_admin.cli import main; main()", "up", "--data", str(data)]
    numbers = ["--base-port", str(ports[0]), "--namesrv-port", str(ports[1])]
    done = subprocess.run([*command, *numbers], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (1, f"Error: {data}/cluster.json cannot be used: File too large\n")
    layout = ClusterLayout(data, 1, 3, ports[1], ports[0])
    check_data_dir(data)
    assert complete_bootstrap(layout, founding_manifest(layout, None, 1 << 20)).complete


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["status", "--version"])
def test_a_result_that_does_not_fit_on_the_disk_is_an_error_in_one_line(founded, command, unbuffered):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "dledger_admin",
                command,
                *(["--data", str(founded)] if command == "status" else []),
            ],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            text=True,
            check=False,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (1, "Error: No space left on device\n")


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_result_with_letters_that_the_output_does_not_know_is_printed_all_the_same(tmp_path, founded, output):
    with_letters = tmp_path / "✓"
    founded.rename(with_letters)
    done = subprocess.run(
        [sys.executable, "-m", "dledger_admin", "down", "--data", str(with_letters), "-o", output],
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    if output == "text":
        assert b"\\u2713" in done.stdout
    else:
        assert json.loads(done.stdout) == {"stopped": [], "killed": []}


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_name_server_that_does_not_answer_is_answered_with_what_to_do(wrapped, monkeypatch):
    monkeypatch.setattr(client_calls, "require_name_server", lambda namesrv: None)

    async def ask() -> None:
        nobody = NoNameServerError(["127.0.0.1:1"], ConnectError("127.0.0.1:1", "Connection refused"))
        if wrapped:
            raise SendError("T", 0, "not_sent", nobody) from nobody
        raise nobody

    with pytest.raises(AdminError, match="Connection refused: start one with `dledger up`"):
        client_calls.run(ask, "127.0.0.1:1")


@pytest.mark.parametrize(
    "command",
    [["topic", "list"], ["produce", "--topic", "T"], ["consume", "--topic", "T"], ["spark", "stats", "--topics", "T"]],
)
def test_a_name_server_that_refuses_connections_is_told_before_a_client_would_give_up(monkeypatch, ports, command):
    slept: list[float] = []
    monkeypatch.setattr(client_calls.time, "monotonic", lambda: sum(slept))
    monkeypatch.setattr(client_calls.time, "sleep", slept.append)
    address = f"127.0.0.1:{ports[1]}"
    code, output = dledger(*command, "--namesrv", address)
    assert code == 1
    assert output.startswith(f"Error: no name server at {address} (Connection refused): start one with `dledger up`")
    assert output.count("\n") == 1
    assert sum(slept) <= client_calls.REFUSED_SECONDS


def test_one_name_server_of_several_is_enough(listener, ports):
    host, port = listener.getsockname()[:2]
    client_calls.require_name_server(f"127.0.0.1:{ports[1]};{host}:{port}")


@pytest.mark.parametrize("command", [["down"], ["status"], ["node", "status"]])
def test_a_directory_without_a_cluster_is_told_how_to_get_one(tmp_path, command):
    code, output = dledger(*command, "--data", str(tmp_path))
    assert code == 1
    assert "holds no cluster (cluster.json is missing)" in output


def test_an_unknown_node_is_answered_with_the_known_ones(founded):
    code, output = dledger("node", "start", "--data", str(founded), "broker-a-n7", "--detach")
    assert code == 1
    assert "no node broker-a-n7; it has namesrv, broker-a-n0" in output


def test_a_node_does_not_start_before_the_bootstrap_is_complete(founded):
    path = founded / "cluster.json"
    path.write_bytes(path.read_bytes().replace(b'"complete": true', b'"complete": false'))
    code, output = dledger("node", "start", "--data", str(founded), "broker-a-n0", "--detach")
    assert code == 1
    assert "interrupted" in output


def test_a_missing_extra_is_answered_with_the_pip_line(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "aiohttp" else object())
    code, output = dledger("up", "--data", str(tmp_path / "x"), "--detach")
    assert code == 1
    assert output == f"Error: this command needs aiohttp: {install_command('broker')}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flussh = 1", ["configuration of broker-a-n0", "flussh", "did you mean 'flush'"]),
        ("heartbeat_ms = 700", ["heartbeat_ms = 700", "election_min_ms = 500"]),
        ("[namesrv]\nprot = 1", ["configuration of the name server", "prot"]),
    ],
)
def test_a_configuration_that_a_component_would_refuse_starts_nothing(tmp_path, ports, text, words):
    config = tmp_path / "c.toml"
    config.write_text(text)
    numbers = ("--base-port", str(ports[0]), "--namesrv-port", str(ports[1]))
    code, output = dledger("up", "--data", str(tmp_path / "x"), *numbers, "--config", str(config), "--detach")
    assert code == 1
    assert all(word in output for word in words), output
    assert not (tmp_path / "x").exists()
