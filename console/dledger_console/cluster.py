"""Cluster behind the console: clients by account, and answers that several viewers share for a moment."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import replace
from typing import Any, Final, TypeVar

from dledger_admin.health.reports import Survey
from dledger_admin.operations import clusters, consumer_groups
from dledger_admin.operations.access import Access, is_person_unknown, is_right_refused
from dledger_client import Admin, ClientError, Credentials

from .history import SAMPLE_SECONDS, History
from .lags import LAG_SECONDS, MAX_LAG_GROUPS, LagHistory

Value = TypeVar("Value")

MAX_CLIENTS: Final = 64
"""Maximum number of accounts with open connections. The account whose last request is the oldest loses its own."""

SHARED_SECONDS: Final = 1.0
"""Time for which an answer is shared by the viewers of one account."""

_STRANGERS_SECONDS: Final = 10.0
"""Time after which the console asks again whether the cluster answers requests without an account."""

PROBE_SECONDS: Final = 2.0
"""Time limit for the answer to that. A cluster without leaders gives none, and its pages must not wait for it."""

_CLOSED_SECONDS: Final = 60.0
"""Interval between two looks of the history at a cluster with access control, which may be turned off."""


class Cluster:
    """Connections to one cluster, for people with accounts and, where access control is off, for everyone.

    The console has no account of its own: `access` must have no credentials.
    """

    def __init__(self, access: Access) -> None:
        assert access.credentials is None, "the console signs as the person who asks"
        self.access = access
        self._admins: OrderedDict[Credentials | None, Admin] = OrderedDict()
        self._shared: dict[Hashable, tuple[float, asyncio.Task[Any]]] = {}
        self._answers_strangers = True
        self._asked_again_at = 0.0
        self.history = History()
        self.lags = LagHistory()
        self._lags_at = 0.0

    async def watch(self) -> None:
        """Keep the history going until cancelled, as far as the cluster answers requests without an account."""
        while True:
            is_open = await self.answers_strangers()
            if is_open:
                await self.survey(self.access)
                if time.monotonic() >= self._lags_at:
                    self._lags_at = time.monotonic() + LAG_SECONDS
                    await self._note_lags()
            # Brokers count and log each refused request.
            await asyncio.sleep(SAMPLE_SECONDS if is_open else _CLOSED_SECONDS)

    async def _note_lags(self) -> None:
        """Note the lag of the first groups by name. A cluster that does not answer now ends the round."""
        admin = await self.admin_of(None)
        try:
            for name in list(await admin.groups())[:MAX_LAG_GROUPS]:
                self.lags.note(name, await consumer_groups.lag_of(admin, name))
        except ClientError:
            return

    def access_of(self, credentials: Credentials | None) -> Access:
        """Return the access of an account, or that without an account."""
        return replace(self.access, credentials=credentials)

    async def admin_of(self, credentials: Credentials | None) -> Admin:
        """Return a started administrator that signs for an account. The cluster closes it."""
        admin = self._admins.get(credentials)
        if admin is None:
            admin = self.access_of(credentials).admin()
            await admin.start()
            self._admins[credentials] = admin
        self._admins.move_to_end(credentials)
        while len(self._admins) > MAX_CLIENTS:
            _, oldest = self._admins.popitem(last=False)
            await oldest.close()
        return admin

    async def forget(self, credentials: Credentials) -> None:
        """Close the connections of an account."""
        admin = self._admins.pop(credentials, None)
        if admin is not None:
            await admin.close()

    async def close(self) -> None:
        """Close all connections."""
        for _, task in self._shared.values():
            task.cancel()
        await asyncio.gather(*(task for _, task in self._shared.values()), return_exceptions=True)
        while self._admins:
            await self._admins.popitem()[1].close()

    async def answers_strangers(self) -> bool:
        """Return False if the cluster refuses requests without an account: access control is on.

        While the cluster does not answer, its last answer counts. If it has never answered, it refuses nothing, and
        shows nothing either.
        """
        if time.monotonic() < self._asked_again_at:
            return self._answers_strangers
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await (await self.admin_of(None)).groups()
            self._answers_strangers = True
        except TimeoutError:
            pass
        except ClientError as error:
            if is_right_refused(error) or is_person_unknown(error):
                self._answers_strangers = False
        self._asked_again_at = time.monotonic() + _STRANGERS_SECONDS
        return self._answers_strangers

    async def knows(self, credentials: Credentials) -> bool:
        """Return whether the cluster knows an account with this secret. Its rights are another matter.

        Raises `ClientError` if nobody answers.
        """
        try:
            await (await self.admin_of(credentials)).groups()
        except ClientError as error:
            if is_person_unknown(error):
                await self.forget(credentials)
                return False
            if not is_right_refused(error):
                raise
        return True

    async def survey(self, access: Access) -> Survey:
        """Return how all name servers and nodes are, as one account may see it."""

        async def look() -> Survey:
            found = await clusters.look(access)
            self.history.note(found)
            return found

        return await self.share(("survey", access.credentials), SHARED_SECONDS, look)

    async def share(self, key: Hashable, seconds: float, ask: Callable[[], Awaitable[Value]]) -> Value:
        """Return an answer that is at most some seconds old. Callers with the same key wait for the same request."""
        now = time.monotonic()
        self._shared = {
            name: (begun, task)
            for name, (begun, task) in self._shared.items()
            if not task.done() or now - begun < SHARED_SECONDS * 10
        }
        found = self._shared.get(key)
        if found is None or (found[1].done() and now - found[0] >= seconds):
            found = now, asyncio.ensure_future(ask())
            found[1].add_done_callback(_retrieve)
            self._shared[key] = found
        return await asyncio.shield(found[1])


def _retrieve(task: asyncio.Task[object]) -> None:
    """Take the error of an answer for which nobody waits any more, so that it is not logged as lost."""
    if not task.cancelled():
        task.exception()
