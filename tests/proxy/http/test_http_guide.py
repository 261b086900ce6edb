"""The commands of the guide run as they are written, against a front before a real cluster."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cluster_fronts import proxy, send

from dledger_client.testing import LocalCluster
from dledger_client.testing.ports import find_free_block

GUIDE = (Path(__file__).parents[3] / "docs/guides/http.md").read_text("utf-8")
START, FIRST, *REST = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
ADDRESS = "http://127.0.0.1:8082"


async def output(url: str, script: str) -> list[str]:
    """Run commands in one shell, each of which must succeed, and return the lines that they print."""
    assert shutil.which("curl"), "the guide needs curl"
    assert shutil.which("jq"), "the guide needs jq"
    shell = await asyncio.create_subprocess_exec(
        *("bash", "-e", "-o", "pipefail", "-c", script.replace(ADDRESS, url)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, errors = await shell.communicate()
    assert not errors, errors.decode()
    assert shell.returncode in {0, 28}, script  # 28: the tail ends by its own time limit
    return printed.decode().splitlines()


def test_the_first_example_is_short() -> None:
    assert START.count("\n") + FIRST.count("\n") <= 15
    assert GUIDE.index(FIRST) < GUIDE.index("##")


@asynccontextmanager
async def started(namesrv: str) -> AsyncIterator[str]:
    """Start a proxy by the guide's command, on free ports, and return its address."""
    port = find_free_block(range(1))
    words = shlex.split(START.replace("127.0.0.1:9876", namesrv).replace("8082", str(port)))
    assert words[0] == "dledger"
    shell = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "dledger_admin", *words[1:], "--grpc-port", "0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert shell.stdout is not None
    try:
        async with asyncio.timeout(30):
            assert (await shell.stdout.readline()).startswith(b"proxy ready on ")
        yield f"http://127.0.0.1:{port}"
    finally:
        shell.terminate()
        assert await shell.wait() == 0


async def test_the_first_example_takes_a_message_and_acknowledges_it(cluster: LocalCluster) -> None:
    async with started(cluster.namesrv) as url:
        stored, text, acked = await output(url, FIRST)
    assert json.loads(stored)["messages"][0]["offset"] == 0
    assert text == "resize image 17"
    assert json.loads(acked)["results"][0]["state"] == "done"


async def test_the_other_examples_do_what_the_text_says(cluster: LocalCluster) -> None:
    sends, idempotent, settles, tail, looks, signed = REST
    url = f"URL={ADDRESS}/v1/topics/examples\n"
    async with proxy(cluster.namesrv) as caller:
        answers = [json.loads(line)["messages"] for line in await output(caller.url, url + sends)]
        assert [len(messages) for messages in answers] == [1, 2, 1]
        assert len({message["queue"] for message in answers[1]}) == 1
        assert "recall_handle" in answers[2][0]
        repeated = [json.loads(line)["messages"][0] for line in await output(caller.url, url + idempotent)]
        assert [message["repeated"] for message in repeated] == [False, True]
        (given_back,) = await output(caller.url, url + settles)
        assert json.loads(given_back)["results"][0]["state"] == "done"
        await caller.post("/v1/topics/examples/messages", {"text": "seen", "tag": "images"})
        lines = await output(caller.url, url + tail)
        (data,) = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert json.loads(data)["text"] == "seen"
        topics, queues, progress = (json.loads(line) for line in await output(caller.url, url + looks))
        assert ("examples" in topics["topics"], queues["topic"], progress["group"]) == (True, "examples", "workers")
        (stored,) = await output(caller.url, url + signed)
        assert json.loads(stored)["messages"], "without access control every account may send"


@pytest.mark.parametrize("query", ["", "?start=first&body_as=text"])
async def test_a_browser_can_follow_a_tail(cluster: LocalCluster, query: str) -> None:
    """Events have what `EventSource` needs: the media type, and no cache on the way."""
    async with proxy(cluster.namesrv) as caller:
        await send(caller, "browsed", "x")
        async with caller.session.get(caller.url + "/v1/topics/browsed/tail" + query) as response:
            assert response.headers["Content-Type"] == "text/event-stream"
            assert response.headers["Cache-Control"] == "no-store"
            assert (await response.content.readline()).startswith(b"retry: ")
