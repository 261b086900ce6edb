"""The console in front of a cluster that fails while its pages are open, and of one with 10,000 topics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from served_console import Visitor, served
from test_browser import CHROMIUM, browser, sync_api  # noqa: F401 - a fixture, and what it needs

from dledger_admin.operations.access import Access
from dledger_client import Admin
from dledger_client.testing import LocalCluster
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]

PATIENCE_MS = 60_000
MANY_TOPICS = 10_000


@pytest.fixture
def replicated() -> Iterator[LocalCluster]:
    with LocalCluster() as cluster:
        yield cluster


def test_an_open_page_shows_that_the_leader_died_who_leads_now_and_why(
    replicated: LocalCluster,
    browser: sync_api.Browser,  # noqa: F811
) -> None:
    first = replicated.leader()
    with served(Access(replicated.namesrv)) as address:
        page = browser.new_page(base_url=address)
        page.set_default_timeout(PATIENCE_MS)
        page.goto("/broker-groups/broker-a")
        page.get_by_text(f"{first} leads in term").wait_for()
        replicated.kill_leader()
        second = replicated.leader()
        page.get_by_text(f"{second} leads in term").wait_for()
        page.get_by_text(f"it has not heard from {first} for an election timeout").first.wait_for()
        page.goto("/")
        page.get_by_text("Not healthy:").wait_for()
        assert "start it" in page.inner_text("#live") or "does not answer" in page.inner_text("#live")
        replicated.restart(first)
        page.get_by_text("Healthy: 3 nodes in 1 broker group work.").wait_for()
        page.close()


def test_a_cluster_without_nodes_shows_what_is_known_and_says_what_is_not(replicated: LocalCluster) -> None:
    with served(Access(replicated.namesrv)) as address:
        visitor = Visitor(address)
        for node in replicated.node_ids:
            replicated.kill(node)
        wait_until(lambda: "Not healthy" in visitor.go("/").text)  # viewers share an answer for a second
        assert visitor.page.response.status_code == 200
        assert f"Name servers {replicated.namesrv}: answers" in visitor.page.text
        groups = visitor.go("/consumer-groups")
        assert (groups.response.status_code, "/" in groups.links) == (503, True)
        assert "The cluster cannot answer this now" in groups.text
        logs = visitor.go("/logs")
        assert (logs.response.status_code, "Pins are not known now" in logs.text) == (200, True)
        group = visitor.go("/broker-groups/broker-a")
        assert (group.response.status_code, "Nobody leads." in group.text) == (200, True)
        assert "No member of the group is known now." in group.text
        assert visitor.go("/delayed").response.status_code == 503
        visitor.http.close()


def test_lists_of_ten_thousand_topics_are_paged_and_searched_on_the_server() -> None:
    async def fill(namesrv: str) -> None:
        async with Admin(namesrv) as admin:
            names = [f"many-{number:05}" for number in range(MANY_TOPICS)]
            for begin in range(0, MANY_TOPICS, 200):
                await asyncio.gather(*(admin.create_topic(name, queues=1) for name in names[begin : begin + 200]))

    with LocalCluster(nodes=1) as cluster:
        with ThreadPoolExecutor(1) as thread:  # the browser's library has a loop on this one
            thread.submit(asyncio.run, fill(cluster.namesrv)).result()
        with served(Access(cluster.namesrv)) as address:
            visitor = Visitor(address)
            page = visitor.go("/topics?page=2")
            assert f"{MANY_TOPICS:,} of {MANY_TOPICS:,} topics, page 2 of 200" in page.text
            assert len(page.response.content) < 100_000
            assert "1 of 10,000 topics" in visitor.go("/topics?q=many-09999").text
            visitor.http.close()
