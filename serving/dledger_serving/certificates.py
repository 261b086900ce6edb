"""Certificates of a process while it runs: loaded again when their files change, and when they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from dledger.net.tls import REFRESH_S, TlsContext
from dledger.supervision import supervise


def ends_at(context: TlsContext) -> float:
    """When the certificate that is shown ends, Unix time in seconds, 0 for what is none. Needs the extra `broker`."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(context.certificate).not_valid_after_utc.timestamp()
    except ValueError:
        return 0.0


class Renewal:
    """Has contexts look at their files every `REFRESH_S` seconds, on a worker thread, from `start` to `stop`."""

    def __init__(self, contexts: Sequence[TlsContext], count_restart: Callable[[], None]) -> None:
        self._contexts = contexts
        self._count_restart = count_restart
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; without contexts there is nothing to do."""
        if self._contexts:
            self._task = asyncio.create_task(supervise(self._run, "look for new certificates", self._count_restart))

    def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            for context in self._contexts:
                await asyncio.to_thread(context.refresh)
