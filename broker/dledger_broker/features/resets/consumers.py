"""Calls to a group's members through the relay: to go on elsewhere (220), and where they are (221)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from dledger.environment import COLD, Environment
from dledger_broker.clients.gossip import Gossip
from dledger_broker.clients.relay import Answer, Outcome, Relay
from dledger_broker.clients.tables import ClientRow
from dledger_broker.kernel.requests import Origin
from dledger_remoting.codes import LanguageCode, RequestCode, ResponseCode
from dledger_remoting.headers import encode_ext
from dledger_remoting.resets import ConsumerStatusHeader, ResetOffsetHeader, decode_status, encode_reset
from dledger_remoting.topics import MessageQueue

_logger: Final = logging.getLogger(__name__)

ANSWERED_WITHIN_S: Final = 5.0
"""A member has so long to say where it is."""
MAX_STATUS_BYTES: Final = 1 << 20
"""A longer answer to 221 is left out; one about 10,000 queues is shorter."""
_UNDERSTAND: Final = frozenset({LanguageCode.JAVA, LanguageCode.CPP, LanguageCode.GO, LanguageCode.PYTHON})
"""Clients in these languages obey 220; the others are told when they pull."""
SLOWNESS_S: Final = 15.0
"""Apache's clients go on 10 s after a 220. One that a pull tells as well meanwhile has the queue twice afterwards; ours
reads it twice.
"""

Statuses = dict[str, dict[MessageQueue, int]]


class GroupMembers:
    """The members of groups, as the leader knows them from all nodes."""

    def __init__(self, env: Environment, gossip: Gossip, relay: Relay) -> None:
        self._env = env
        self._merged = gossip.merged
        self._relay = relay
        self._dropping: dict[tuple[str, str], float] = {}
        """Since when members, by group and client id, have been dropping what they have."""

    def is_member(self, group: str, origin: Origin) -> bool:
        """Whether a client of a channel consumes in a group."""
        return not origin.client_ids.isdisjoint(self._merged.members(group))

    def is_dropping(self, group: str, origin: Origin) -> bool:
        """Whether a client of a channel was told by 220 a short while ago, and needs that time."""
        if not self._dropping:
            return False
        now = self._env.now()
        self._dropping = {one: at for one, at in self._dropping.items() if now - at <= SLOWNESS_S}
        return any((group, client_id) in self._dropping for client_id in origin.client_ids)

    def tell(self, group: str, topic: str, timestamp: int, offsets: Mapping[MessageQueue, int]) -> None:
        """Have all members that understand it go on elsewhere; nobody waits for them."""
        header = encode_ext(ResetOffsetHeader(topic, group, timestamp, is_force=True))
        for row in self._members(group, topic):
            if row.language in _UNDERSTAND:
                self._dropping[group, row.client_id] = self._env.now()
                body = encode_reset(offsets, row.language)
                told = partial(_told, group, row.client_id)
                self._relay.call(row.client_id, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body, 0.0, told)

    def ask(self, group: str, topic: str, client_id: str, done: Callable[[Statuses], None]) -> bool:
        """Ask all members, or the one that is named; those that do not say are left out. False if there are none."""
        asked = [row.client_id for row in self._merged.member_rows(group) if client_id in ("", row.client_id)]
        found: Statuses = {}
        left = set(asked)

        def left_out(one: str, why: str) -> None:
            _logger.info("event=unreadable_status group=%r client=%r error=%r", group, one, why)
            settled(one)

        def settled(one: str) -> None:
            left.discard(one)
            if not left:
                done(found)

        def read(one: str, status: Mapping[MessageQueue, int] | BaseException) -> None:
            if isinstance(status, BaseException):
                left_out(one, str(status))
            else:
                found[one] = dict(status)
                settled(one)

        def answered(one: str, outcome: Outcome) -> None:
            if not isinstance(outcome, Answer) or outcome.code != ResponseCode.SUCCESS:
                settled(one)
            elif len(outcome.body) > MAX_STATUS_BYTES:
                left_out(one, f"{len(outcome.body)} bytes, the limit is {MAX_STATUS_BYTES}")
            else:
                self._env.run_blocking(COLD, partial(decode_status, outcome.body), partial(read, one))

        header = encode_ext(ConsumerStatusHeader(topic, group))
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        for one in asked:
            self._relay.call(one, code, header, b"", ANSWERED_WITHIN_S, partial(answered, one))
        return bool(asked)

    def subscribes(self, group: str, topic: str) -> bool:
        """Whether a member wants a topic's messages."""
        return self._merged.subscription(group, topic) is not None

    def is_online(self, group: str) -> bool:
        """Whether a group has members."""
        return self._merged.is_online(group)

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


def _told(group: str, client_id: str, outcome: Outcome) -> None:
    _logger.info("event=consumer_told_of_reset group=%r client=%r outcome=%s", group, client_id, type(outcome).__name__)
