"""The progress bars of the demonstration, and the moments in them at which something else begins."""

from __future__ import annotations

import asyncio

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn


def progress_display(console: Console) -> Progress:
    """Return the display that `Bars` draws into, shown on `console`."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        refresh_per_second=5,
        console=console,
    )


class Bars:
    """Bars of sent and returned bytes, of `total_bytes` in `total_files`. Sizes are bytes of bodies."""

    def __init__(self, progress: Progress, total_bytes: int, total_files: int) -> None:
        self.all_received = asyncio.Event()
        self._progress = progress
        self._total_bytes = max(1, total_bytes)
        self._total_files = total_files
        self._sent_bytes = 0
        self._messages = 0
        self._files = 0
        self._events_by_share: dict[float, asyncio.Event] = {}
        self._sent_bar = progress.add_task("sent    ", total=self._total_bytes, note="")
        self._received_bar = progress.add_task("received", total=self._total_bytes, note="")

    async def sent_share(self, share: float) -> None:
        """Wait until this share of the bytes, or everything, is acknowledged."""
        event = self._events_by_share.setdefault(share, asyncio.Event())
        self._set_reached_events()
        await event.wait()

    def sent(self, messages: int, size: int) -> None:
        """Count what was acknowledged."""
        self._messages += messages
        self._sent_bytes += size
        self._progress.update(self._sent_bar, completed=self._sent_bytes, note=f"{self._messages:,} messages")
        self._set_reached_events()

    def all_sent(self) -> None:
        """Fill the bar: nothing more will be sent."""
        self._sent_bytes = self._total_bytes
        self._progress.update(self._sent_bar, completed=self._sent_bytes)
        self._set_reached_events()

    def file_complete(self, received_bytes: int) -> None:
        """Count a rebuilt file; `received_bytes` is the sum over all of them."""
        self._files += 1
        note = f"{self._files:,} of {self._total_files:,} files"
        if self._files == self._total_files:
            self.all_received.set()
            received_bytes = self._total_bytes
        self._progress.update(self._received_bar, completed=received_bytes, note=note)

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self._progress.console.print(text)

    def _set_reached_events(self) -> None:
        for share, event in self._events_by_share.items():
            if self._sent_bytes >= share * self._total_bytes:
                event.set()
