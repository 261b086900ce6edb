"""Part of a bundle that name servers and nodes tell over the network."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from dledger_client import Admin, ClientError
from dledger_client.cluster.connection import split_address

from ..health.groups import group_views
from ..health.judge import judge
from ..health.reports import Limits, Survey
from ..http_calls import ask
from ..operations import consumer_groups, topics
from ..operations.access import Access
from ..operations.clusters import look, registered_nodes
from ..operations.errors import OperationError
from .archive import Archive

SECONDS: Final = 10.0
"""Time limit for each question."""
MAX_GROUPS: Final = 500
"""Maximum number of consumer groups whose lag is asked for."""
_HTTP_PATHS: Final = {"metrics.txt": "/metrics", "status.json": "/status"}


async def add_cluster(archive: Archive, access: Access) -> None:
    """Add what name servers, leaders and nodes tell."""
    survey = await look(access)
    archive.add_json("cluster/survey.json", survey)
    archive.add_json("cluster/health.json", judge(survey, Limits()))
    archive.add_json("verification.json", _verification(survey))
    for server in survey.name_servers:
        if server.error:
            archive.lacks(f"name server {server.address}", server.error)
    for address, answer in survey.nodes.items():
        if isinstance(answer, str):
            archive.lacks(f"node at {address}", answer)
    if all(server.error for server in survey.name_servers):  # a client would try again until its time limit
        archive.lacks("topics, consumer groups and live keys", "no name server answers")
        return
    await asyncio.gather(_add_operations(archive, access), _add_pages(archive, survey))


async def _add_operations(archive: Archive, access: Access) -> None:
    async def groups(admin: Admin) -> object:
        found = await admin.groups()
        if len(found) > MAX_GROUPS:
            archive.lacks("consumer groups", f"only the first {MAX_GROUPS} of {len(found)} were asked")
        return await consumer_groups.lines_of(admin, dict(list(found.items())[:MAX_GROUPS]))

    async def settings(admin: Admin) -> object:
        return await admin.settings()

    async def names(admin: Admin) -> object:
        return await topics.names(admin, include_system=True)

    questions: dict[str, Callable[[Admin], Awaitable[object]]] = {
        "nodes": registered_nodes,
        "live-keys": settings,
        "topics": names,
        "consumer-groups": groups,
    }
    async with access.admin() as admin:
        for name, question in questions.items():
            try:
                async with asyncio.timeout(SECONDS):
                    answer = await question(admin)
            except TimeoutError:
                archive.lacks(name, f"no answer within {SECONDS:.0f} s")
            except (ClientError, OperationError) as error:
                archive.lacks(name, error)
            else:
                archive.add_json(f"cluster/{name}.json", answer)


async def _add_pages(archive: Archive, survey: Survey) -> None:
    """Add what each node tells on its HTTP port, which its answer names."""
    for view in group_views(survey):
        for node_id, answer in sorted(view.answers.items()):
            for file, path in _HTTP_PATHS.items():
                what = f"{path} of {node_id}"
                if answer.http is None:
                    archive.lacks(what, "the node has no HTTP port")
                    continue
                try:
                    status, body = await asyncio.to_thread(_fetch, answer.http, path)
                except (OSError, http.client.HTTPException, ClientError) as error:
                    archive.lacks(what, f"{answer.http}: {error}")
                    continue
                if status == HTTPStatus.OK:
                    archive.add(f"nodes/{node_id}/{file}", body)
                else:
                    archive.lacks(what, f"{answer.http} answers {status}")


def _fetch(address: str, path: str) -> tuple[int, bytes]:
    host, port = split_address(address)
    answer = ask(host, port, "GET", path, {}, SECONDS)
    return answer.status, answer.body


def _verification(survey: Survey) -> dict[str, object]:
    """Return what each node has found of its own log, by node."""
    return {
        node_id: {
            "corrupt_bytes": report.corrupt_bytes,
            "rotten_snapshots": report.rotten_snapshots,
            "failure": report.failure,
            "refusal": report.refusal,
            "commit_index": report.commit_index,
        }
        for view in group_views(survey)
        for node_id in view.node_ids
        if (report := view.report(node_id)) is not None
    }
