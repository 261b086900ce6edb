"""The first example of the console's guide runs as it stands, but for the addresses."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx

GUIDE = Path(__file__).parents[2] / "docs/guides/console.md"
SECONDS = 30


def test_the_first_example_of_the_guide_shows_a_group_as_json(cluster) -> None:
    (first, second) = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(), re.DOTALL)[0].strip().splitlines()
    program, *words = shlex.split(first)
    assert program == "dledger"
    words[words.index("--namesrv") + 1] = cluster.namesrv
    words[words.index("--port") + 1] = "0"
    process = subprocess.Popen([sys.executable, "-m", "dledger_admin", *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().removeprefix("console on ").strip()
        path = urlsplit(shlex.split(second)[1]).path
        assert httpx.get(address.rstrip("/") + path).json()["description"]["group"] == "billing"
        assert "Consumer group billing" in httpx.get(address.rstrip("/") + path.removeprefix("/api")).text
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(SECONDS)
