"""Each moment of the demonstration comes once its share is sent. All have come when nothing more is sent."""

import asyncio
import io

import pytest
from rich.console import Console

from dledger_admin.demo.bars import Bars, progress_display


@pytest.fixture
def shown() -> io.StringIO:
    return io.StringIO()


def bars_of(shown: io.StringIO, total_bytes: int, total_files: int = 1) -> Bars:
    return Bars(progress_display(Console(file=shown)), total_bytes, total_files)


async def test_a_wait_for_a_sent_share_ends_at_that_share(shown):
    bars = bars_of(shown, 100)
    waiting = asyncio.create_task(bars.sent_share(0.4))
    bars.sent(1, 39)
    await asyncio.sleep(0)
    assert not waiting.done()
    bars.sent(1, 1)
    await waiting
    await bars.sent_share(0.2)


@pytest.mark.parametrize("total_bytes", [0, 1_000_000])
async def test_a_wait_for_a_sent_share_ends_when_everything_is_sent(shown, total_bytes):
    bars = bars_of(shown, total_bytes)
    waiting = asyncio.create_task(bars.sent_share(0.7))
    await asyncio.sleep(0)
    bars.all_sent()
    await waiting


def test_all_received_is_set_with_the_last_file(shown):
    bars = bars_of(shown, 10, total_files=2)
    bars.file_complete(5)
    assert not bars.all_received.is_set()
    bars.file_complete(10)
    assert bars.all_received.is_set()


def test_lines_are_printed_above_the_bars(shown):
    bars_of(shown, 10).say("hello")
    assert shown.getvalue() == "hello\n"
