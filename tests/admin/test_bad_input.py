"""Wrong input to `up` and `node` gives one line with the remedy, and changes nothing."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from command_fakes import refused

from dledger_admin.cluster.bootstrap import complete_bootstrap, founding_manifest
from dledger_admin.cluster.layout import ClusterLayout
from dledger_admin.commands import client_calls
from dledger_admin.errors import AdminError
from dledger_admin.output import columns, emit
from dledger_base.extras import install_command
from dledger_client import ConnectError, NoNameServerError, RefusedError, SendError
from dledger_remoting.errors import NoPermission
from dledger_remoting.signatures import NOT_SIGNED


@pytest.fixture
def founded(tmp_path, ports):
    """Return a stopped cluster of one group of three."""
    data = tmp_path / "cluster"
    base_port, namesrv_port = ports
    layout = ClusterLayout(data, 1, 3, namesrv_port, base_port)
    complete_bootstrap(layout, founding_manifest(layout, None, 1 << 20))
    return data


def test_a_port_in_use_names_its_user_and_leaves_no_directory(tmp_path, listener):
    port = listener.getsockname()[1]
    data = tmp_path / "cluster"
    error = refused("up", "--data", data, "--namesrv-port", port, "--detach")
    assert error.startswith(f"Error: port {port} (name server port) is in use by pid {os.getpid()} (")
    assert "--namesrv-port" in error
    assert error.count("\n") == 1
    assert not data.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--nodes", "5"), ["holds a cluster of 1 group(s) of 3 nodes", "--nodes 5", "give 3"]),
        (("--groups", "2"), ["--groups 2", "give 1"]),
        (("--config", "segments.toml"), ["segment_bytes = 4096 was given", "1048576"]),
    ],
)
def test_the_directory_of_another_layout_is_left_alone(founded, tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    Path("segments.toml").write_text("segment_bytes = 4096\n")
    before = sorted(path.name for path in founded.rglob("*"))
    error = refused("up", "--data", founded, *options, "--detach")
    assert all(word in error for word in words), error
    assert sorted(path.name for path in founded.rglob("*")) == before


def test_in_the_foreground_there_is_no_result_to_print_as_json(tmp_path):
    assert "-o json goes with --detach" in refused("up", "--data", tmp_path / "x", "-o", "json", code=2)
    assert not (tmp_path / "x").exists()


def test_a_directory_that_cannot_be_made_is_named(tmp_path, ports, monkeypatch):
    data = tmp_path / "cluster"

    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    error = refused("up", "--data", data, "--base-port", ports[0], "--namesrv-port", ports[1])
    assert error == f"Error: {data} cannot be used: Permission denied\n"


@pytest.mark.parametrize(
    ("arguments", "streams", "words"),
    [
        (("topic", "create", "\udcff"), {}, r"'\udcff' is not UTF-8"),
        (("up", "--data", "\udcff", "--detach"), {}, r"'\udcff' is not UTF-8"),
        (("produce", "--topic", "t"), {"stdin": None}, "standard input is closed"),
        (("consume", "--topic", "t"), {"stdout": None}, "standard output is closed"),
    ],
)
def test_invalid_utf8_and_closed_streams_are_refused_without_a_traceback(
    tmp_path, monkeypatch, listener, arguments, streams, words
):
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


def test_a_cluster_is_not_founded_in_a_folder_whose_name_is_not_utf8(tmp_path, monkeypatch):
    folder = tmp_path / "\udcff"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert "is not UTF-8: give another path" in refused("up", "--data", "mq", "--detach", code=2)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("number", ["inf", "nan"])
@pytest.mark.parametrize("words", [("produce", "--topic", "t", "--delay"), ("cluster", "health", "--watch")])
def test_a_number_that_is_not_finite_is_refused(words, number):
    assert number in refused(*words, number, code=2)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["status", "--version"])
def test_a_result_that_does_not_fit_on_the_disk_is_an_error_in_one_line(founded, command, unbuffered):
    program = [sys.executable, "-m", "dledger_admin", command, *["--data", str(founded)][: 2 * (command == "status")]]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            program, stdout=full, stderr=subprocess.PIPE, env=environment, text=True, check=False, timeout=60
        )
    assert (done.returncode, done.stderr) == (1, "Error: No space left on device\n")


@pytest.mark.parametrize("output", ["text", "json"])
def test_characters_that_the_output_cannot_encode_are_escaped(tmp_path, founded, output):
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
def test_the_error_for_a_silent_name_server_says_what_to_do(wrapped, monkeypatch):
    monkeypatch.setattr(client_calls, "require_name_server", lambda namesrv: None)

    async def ask() -> None:
        nobody = NoNameServerError(["127.0.0.1:1"], ConnectError("127.0.0.1:1", "Connection refused"))
        if wrapped:
            raise SendError("T", 0, "not_sent", nobody) from nobody
        raise nobody

    with pytest.raises(AdminError, match="Connection refused: start one with `dledger up`"):
        client_calls.run(ask, "127.0.0.1:1")


@pytest.mark.parametrize(
    ("remark", "remedy"),
    [
        (NOT_SIGNED, NOT_SIGNED),
        ("User:app is not found.", "`dledger account list`, and makes them with `create`"),
        ("The subject of User:app is not exist.", "`dledger account list`, and makes them with `create`"),
        ("check signature failed. (User:app)", "`dledger account rotate` makes another"),
        ("User:app has no permission to access Topic:T from 127.0.0.1, no matched policies.", "`dledger acl grant`"),
    ],
)
def test_a_refused_account_is_told_what_to_do(monkeypatch, remark, remedy):
    monkeypatch.setattr(client_calls, "require_name_server", lambda _: None)

    async def ask() -> None:
        raise RefusedError(NoPermission(remark))

    with pytest.raises(AdminError, match=re.escape(remedy)):
        client_calls.run(ask, "127.0.0.1:1")


@pytest.mark.parametrize(
    "command",
    [["topic", "list"], ["produce", "--topic", "T"], ["consume", "--topic", "T"], ["spark", "stats", "--topics", "T"]],
)
def test_a_name_server_that_refuses_connections_is_reported_soon(monkeypatch, ports, command):
    slept: list[float] = []
    monkeypatch.setattr(client_calls.time, "monotonic", lambda: sum(slept))
    monkeypatch.setattr(client_calls.time, "sleep", slept.append)
    address = f"127.0.0.1:{ports[1]}"
    error = refused(*command, "--namesrv", address)
    assert error.startswith(f"Error: no name server at {address} (Connection refused): start one with `dledger up`")
    assert error.count("\n") == 1
    assert sum(slept) <= client_calls.REFUSED_SECONDS


def test_a_list_with_one_reachable_name_server_is_accepted(listener, ports):
    host, port = listener.getsockname()[:2]
    client_calls.require_name_server(f"127.0.0.1:{ports[1]};{host}:{port}")


def test_a_node_does_not_start_before_the_bootstrap_is_complete(founded):
    path = founded / "cluster.json"
    path.write_bytes(path.read_bytes().replace(b'"complete": true', b'"complete": false'))
    assert "interrupted" in refused("node", "start", "--data", founded, "broker-a-n0", "--detach")


def test_a_missing_extra_is_answered_with_the_pip_line(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "aiohttp" else object())
    error = refused("up", "--data", tmp_path / "x", "--detach")
    assert error == f"Error: this command needs the extra broker (aiohttp): {install_command('broker')}\n"


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
    numbers = ("--base-port", ports[0], "--namesrv-port", ports[1])
    error = refused("up", "--data", tmp_path / "x", *numbers, "--config", config, "--detach")
    assert all(word in error for word in words), error
    assert not (tmp_path / "x").exists()


def test_text_of_clients_is_printed_without_control_characters(capsys):
    evil = "me\x1b]0;owned\x07\x1b[2J\n\u202estable"
    emit([[evil, 1]], "text", lambda rows: columns(("member", "lag"), rows) + "\nof \x1b[H" + evil)
    with pytest.raises(SystemExit):
        click.Command("asked", callback=lambda: refuse(evil)).main([])
    printed = capsys.readouterr()
    for text in printed:
        assert not {*text} & {"\x1b", "\x07", "\u202e"}
    assert printed.out.splitlines()[1].startswith("me\ufffd")
    assert "stable" in printed.out.splitlines()[1], "a name breaks no line of a table"


def refuse(text):
    raise AdminError(text)
