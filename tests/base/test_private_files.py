"""With access control only the user of a server can read its files."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from dledger.testing.ports import free_ports
from dledger_base.private_files import mend_modes
from tests.access_keys import KEY_FILE


def modes(place: Path) -> dict[str, int]:
    """Return the permissions of group and others, by path."""
    found: dict[str, int] = {}
    for path in (place, *place.rglob("*")):
        with suppress(FileNotFoundError):  # a database removes files of its own
            found[str(path.relative_to(place))] = stat.S_IMODE(path.lstat().st_mode) & 0o077
    return found


@pytest.mark.parametrize("secured", [True, False])
@pytest.mark.parametrize("program", ["dledger_broker", "dledger_namesrv"])
def test_files_of_a_secured_process_are_private_including_old_ones(tmp_path: Path, program: str, secured: bool) -> None:
    data, config, keys = tmp_path / "data", tmp_path / "config.toml", tmp_path / "access.keys"
    keys.write_bytes(KEY_FILE.read_bytes())
    keys.chmod(0o600)
    (data / "old").mkdir(parents=True, mode=0o755)
    (data / "old" / "file").touch(mode=0o644)
    port, peer_port, http_port = free_ports(3)
    lines = [f"port = {port}", f"http_port = {http_port}", f'access_key_file = "{keys}"' if secured else ""]
    arguments = [sys.executable, "-m", program, "--config", str(config)]
    if program == "dledger_broker":
        lines += [f'data_dir = "{data}"', 'broker_group = "b"', 'node_id = "n0"', f"peer_port = {peer_port}"]
        arguments += ["--bootstrap"]
    else:
        lines += [f'data = "{data}"']
    config.write_text("\n".join(lines))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DLEDGER_")}
    server = subprocess.Popen(arguments, stdout=subprocess.PIPE, env=environment, text=True, umask=0o022)
    assert server.stdout is not None
    with server.stdout:
        try:
            assert "ready" in server.stdout.readline()
            found = modes(data)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)
    assert len(found) > 3
    assert any(found.values()) != secured, found


def test_mending_modes_skips_links_and_missing_files(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.touch(mode=0o644)
    inside = tmp_path / "inside"
    inside.mkdir(mode=0o755)
    (inside / "link").symlink_to(outside)
    mend_modes((inside, tmp_path / "gone"))
    assert stat.S_IMODE(outside.stat().st_mode) == 0o644
    assert modes(inside)["."] == 0
