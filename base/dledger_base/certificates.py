"""Renewal of files that a process reads again while it runs: certificates, which expire, and keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from dledger_base.supervision import supervise
from dledger_base.tls import REFRESH_S, TlsContext


def ends_at(context: TlsContext) -> float:
    """Return the end of the port's certificate, in seconds of Unix time; 0 if the file has none.

    Needs the extra `broker`.
    """
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(context.certificate).not_valid_after_utc.timestamp()
    except ValueError:
        return 0.0


def find_expired(context: TlsContext, now: float) -> str | None:
    """Return a text about the first file of a context without a certificate that is valid at `now`, None if all have
    one.

    `now` is Unix time in seconds. Needs the extra `broker`.
    """
    from cryptography import x509

    certificate_key, _, authority_key = context.files.names
    for key, path in ((certificate_key, context.files.certificate), (authority_key, context.files.authority)):
        if path is None:
            continue
        certificates = x509.load_pem_x509_certificates(path.read_bytes())
        # The first certificate of a file is the one that the port shows. Of the authorities one valid certificate is
        # enough.
        ends = max(
            certificate.not_valid_after_utc
            for certificate in (certificates[:1] if key == certificate_key else certificates)
        )
        if ends.timestamp() < now:
            return f"{key} {path} expired on {ends:%Y-%m-%d %H:%M} UTC: replace it, clients refuse it"
    return None


class Watched(Protocol):
    """An object made from files that the configuration names."""

    def refresh(self) -> bool:
        """Read the files, and return whether they have changed. Called on a worker thread."""


class Renewal:
    """Refreshes contexts and keys every `REFRESH_S` seconds, on a worker thread, until `stop`."""

    def __init__(self, contexts: Sequence[Watched], count_restart: Callable[[], None]) -> None:
        self._contexts = contexts
        self._count_restart = count_restart
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to refresh, if there are contexts."""
        if self._contexts:
            self._task = asyncio.create_task(supervise(self._run, "look for new certificates", self._count_restart))

    def stop(self) -> None:
        """Stop refreshing."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            for context in self._contexts:
                await asyncio.to_thread(context.refresh)
