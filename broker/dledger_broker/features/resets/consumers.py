"""Calls to a group's members through the relay: continue at other offsets (220), report your offsets (221)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from dledger.environment import COLD, Environment
from dledger_base.telling import Telling
from dledger_broker.clients.gossip import Gossip
from dledger_broker.clients.relay import Answer, Outcome, Relay
from dledger_broker.clients.tables import ClientRow, shown_id
from dledger_broker.kernel.requests import Origin
from dledger_remoting.codes import LanguageCode, RequestCode, ResponseCode
from dledger_remoting.headers import encode_ext
from dledger_remoting.resets import ConsumerStatusHeader, ResetOffsetHeader, decode_status, encode_reset
from dledger_remoting.topics import MessageQueue

_logger: Final = logging.getLogger(__name__)

ANSWERED_WITHIN_S: Final = 5.0
"""Time limit for a member to answer with its offsets."""
MAX_STATUS_BYTES: Final = 1 << 20
"""Maximum size of an answer to 221. Longer answers are left out, but an answer about 10,000 queues is shorter."""
_UNDERSTAND: Final = frozenset({LanguageCode.JAVA, LanguageCode.CPP, LanguageCode.GO, LanguageCode.PYTHON})
"""Languages of clients that obey 220. Other clients learn of a reset when they pull."""
SLOWNESS_S: Final = 15.0
"""Time for which a client that obeys 220 is not notified by a pull.

Apache's clients continue 10 s after a 220. If a pull notifies them as well in that time, they have the queue twice
afterwards, and the client of this project reads it twice.
"""

Statuses = dict[str, dict[MessageQueue, int]]


class GroupMembers:
    """Members of groups, as the leader knows them from all nodes."""

    def __init__(self, env: Environment, gossip: Gossip, relay: Relay) -> None:
        self._env = env
        self._telling = Telling(env.now)
        self._merged = gossip.merged
        self._relay = relay
        self._dropping: dict[tuple[str, str], float] = {}
        """Time since which a member has been dropping its messages, by group and client id."""

    def is_member(self, group: str, origin: Origin) -> bool:
        """Return whether a client of a channel consumes in a group."""
        return not origin.client_ids.isdisjoint(self._merged.members(group))

    def is_dropping(self, group: str, origin: Origin) -> bool:
        """Return whether a client of a channel was notified by 220 a short while ago, and still drops its messages."""
        if not self._dropping:
            return False
        now = self._env.now()
        self._dropping = {member: since for member, since in self._dropping.items() if now - since <= SLOWNESS_S}
        return any((group, client_id) in self._dropping for client_id in origin.client_ids)

    def tell(self, group: str, topic: str, timestamp: int, offsets: Mapping[MessageQueue, int]) -> None:
        """Have all members that understand 220 continue at these offsets. Do not wait for their answers."""
        header = encode_ext(ResetOffsetHeader(topic, group, timestamp, is_force=True))
        bodies: dict[int, bytes] = {}
        for row in self._members(group, topic):
            if row.language in _UNDERSTAND:
                self._dropping[group, row.client_id] = self._env.now()
                body = bodies.get(row.language) or bodies.setdefault(row.language, encode_reset(offsets, row.language))
                on_answer = partial(self._on_reset_answer, group, row.client_id)
                self._relay.call(row.client_id, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body, 0.0, on_answer)

    def ask(self, group: str, topic: str, client_id: str, done: Callable[[Statuses], None]) -> bool:
        """Request the offsets of all members, or only of the named member. Return False if no member is found.

        Members that do not answer are left out.
        """
        client_ids = [
            row.client_id for row in self._merged.member_rows(group) if client_id in ("", shown_id(row.client_id))
        ]
        statuses: Statuses = {}
        pending = set(client_ids)

        def skip(client: str, reason: str) -> None:
            line = "event=unreadable_status group=%r client=%r error=%r"
            self._telling.log(_logger, logging.INFO, client, group, line, group, client, reason)
            settle(client)

        def settle(client: str) -> None:
            pending.discard(client)
            if not pending:
                done(statuses)

        def on_decoded(client: str, status: Mapping[MessageQueue, int] | BaseException) -> None:
            if isinstance(status, BaseException):
                skip(client, str(status))
            else:
                statuses[shown_id(client)] = dict(status)
                settle(client)

        def on_answer(client: str, outcome: Outcome) -> None:
            if not isinstance(outcome, Answer) or outcome.code != ResponseCode.SUCCESS:
                settle(client)
            elif len(outcome.body) > MAX_STATUS_BYTES:
                skip(client, f"{len(outcome.body)} bytes, the limit is {MAX_STATUS_BYTES}")
            else:
                self._env.run_blocking(COLD, partial(decode_status, outcome.body), partial(on_decoded, client))

        header = encode_ext(ConsumerStatusHeader(topic, group))
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        for client in client_ids:
            self._relay.call(client, code, header, b"", ANSWERED_WITHIN_S, partial(on_answer, client))
        return bool(client_ids)

    def subscribes(self, group: str, topic: str) -> bool:
        """Return whether a member subscribes to a topic."""
        return self._merged.subscription(group, topic) is not None

    def is_online(self, group: str) -> bool:
        """Return whether a group has members."""
        return self._merged.is_online(group)

    def _on_reset_answer(self, group: str, client_id: str, outcome: Outcome) -> None:
        name, line = type(outcome).__name__, "event=consumer_told_of_reset group=%r client=%r outcome=%s"
        self._telling.log(_logger, logging.INFO, client_id, f"{group} {name}", line, group, client_id, name)

    def _members(self, group: str, topic: str) -> list[ClientRow]:
        return [
            row
            for row in self._merged.member_rows(group)
            if any(
                entry.topic == topic
                for consumer in row.consumers
                if consumer.group_name == group
                for entry in consumer.subscription_data_set
            )
        ]
