"""Make the pictures of the console that the documentation shows: a cluster of three nodes, some traffic, a browser.

Needs Chromium, as the tests of the console do. Writes `docs/guides/console-*.png`.
"""

import asyncio
import json
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright

from dledger_admin.operations import leadership
from dledger_admin.operations.access import Access
from dledger_client import Admin, Producer, PushConsumer
from dledger_client.testing import LocalCluster

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "console"))

from served_console import served  # noqa: E402 - it lies in a folder of tests

SIZE = {"width": 1100, "height": 720}
PICTURES = {
    "overview": "/",
    "message": "/messages?topic=orders&by=key&value=order-7",
    "group": "/broker-groups/broker-a",
}
ORDERS = 400
PAYMENTS_AT_ONCE = 20
RATES_S = 30
"""Time for which the overview is followed before its picture is taken: its curve has a point each 5 s."""


async def fill(namesrv: str) -> None:
    """Store orders, of which a group has handled most, with traces."""
    async with Admin(namesrv) as admin, Producer(namesrv, group="shop", trace=True) as producer:
        await admin.create_topic("orders", queues=4)
        for number in range(ORDERS):
            body = json.dumps({"order": number, "amount": 10 + number % 90, "currency": "EUR"}).encode()
            await producer.send("orders", body, key=f"order-{number}", tags="new")
        async with PushConsumer(namesrv, "billing", "orders", start_from="first", trace=True) as consumer:
            for _ in range(ORDERS - 60):
                (await anext(consumer)).ack()


@contextmanager
def traffic(namesrv: str) -> Iterator[None]:
    """Send and receive payments meanwhile, so that pages of rates have something to show."""
    ending = threading.Event()

    async def run() -> None:
        async with Admin(namesrv) as admin:
            await admin.create_topic("payments", queues=4)
        async with (
            Producer(namesrv, group="till") as producer,
            PushConsumer(namesrv, "ledger", "payments", start_from="first") as consumer,
        ):
            while not ending.is_set():
                await asyncio.gather(*(producer.send("payments", b"{}") for _ in range(PAYMENTS_AT_ONCE)))
                for _ in range(PAYMENTS_AT_ONCE):
                    (await anext(consumer)).ack()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


async def drain(access: Access, node: str) -> None:
    """Drain the leader, so that the group has a story."""
    async with access.admin() as admin:
        await leadership.drain(admin, access, "broker-a", node)


def main() -> int:
    """Write the pictures. Return 1 without a browser."""
    chromium = shutil.which("chromium")
    if chromium is None:
        print("chromium is not found: install it (Debian and Ubuntu: apt install chromium)", file=sys.stderr)
        return 1
    with LocalCluster() as cluster, served(Access(cluster.namesrv)) as address:
        asyncio.run(fill(cluster.namesrv))
        asyncio.run(drain(Access(cluster.namesrv), cluster.leader()))
        with traffic(cluster.namesrv):
            take(chromium, address)
    return 0


def take(chromium: str, address: str) -> None:
    """Write a picture of each page."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(base_url=address, viewport=SIZE)
        for name, path in PICTURES.items():
            page.goto(path)
            if name == "message":
                page.locator("tbody th a").click()
            else:
                page.get_by_text("Follows the cluster.").wait_for()
                page.wait_for_timeout(RATES_S * 1000)
            target = ROOT / "docs" / "guides" / f"console-{name}.png"
            page.screenshot(path=target)
            print(target.relative_to(ROOT))
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
