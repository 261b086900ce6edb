"""Work that the clients of a seed share: their messages, the topics, and the answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Final

from dledger_broker.kernel.state import registry_of
from dledger_remoting.batch import BatchMessage, encode_batch
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.properties import KEYS, TAGS, UNIQUE_KEY, format_properties
from dledger_remoting.record import iter_records
from dledger_remoting.topics import PERM_READ_WRITE
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.expected import OffsetKey, Stored
from dledger_sim.brokers.filters import TAG_CHOICES
from dledger_sim.brokers.message_bodies import encode_body, operation_of, position_in
from dledger_sim.brokers.pop_judge import PopJudge
from dledger_sim.brokers.pulls import PullJudge
from dledger_sim.brokers.questions import QuestionJudge
from dledger_sim.brokers.reply_history import ReplyHistory
from dledger_sim.brokers.service import BrokerSettings
from dledger_sim.brokers.stock_sends import StockSends
from dledger_sim.brokers.truth import Truth
from dledger_sim.log.group import SimGroup
from dledger_sim.log.invariants import require

BLAMES_FILES: Final = ("lacks the unit", "Corruption")
"""Texts in answers that report a damaged file."""
NOT_STORED: Final = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
    }
)
"""Response codes after which a message was not stored and never will be."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings of a seed's clients: their numbers and habits."""

    producers: int = 2
    consumers: int = 2
    administrators: int = 1
    readers: int = 1
    repeaters: int = 0
    bulk_readers: int = 0
    racers: int = 0
    waiters: int = 0
    tenants: int = 0
    restarters: int = 0
    stewards: int = 0
    resizers: int = 0
    transactors: int = 0
    delayers: int = 0
    poppers: int = 0
    leasers: int = 0
    lockers: int = 0
    retriers: int = 0
    requesters: int = 0
    repliers: int = 0
    mode_setters: int = 0
    quota_setters: int = 0
    account_setters: int = 0
    signers: int = 0
    reset_members: int = 0
    resetters: int = 0
    stock_producers: int = 0
    stock_consumers: int = 0
    think_s: float = 0.1
    """Mean pause between two operations of a client, in seconds."""
    timeout_s: float = 3.0
    stay_share: float = 0.3
    """Share of the clients that stay at a node, whether it leads or not."""
    no_forward_share: float = 0.2
    """Share of the clients that ask for no forwarding."""
    topics: int = 2
    queues: int = 2
    batch_share: float = 0.2
    most_in_batch: int = 8
    oneway_share: float = 0.05
    padding_bytes: int = 300
    large_share: float = 0.02
    large_bytes: int = 12 << 10
    long_poll_share: float = 0.3
    restart_share: float = 0.05
    """Share of a consumer's steps in which it forgets its offset and asks for it."""


class Workload:
    """Work of a seed's clients, and the answers to them.

    At most `operations` actions are begun, if that is not None.
    """

    def __init__(
        self, random: Random, settings: ClientSettings, brokers: BrokerSettings, operations: int | None
    ) -> None:
        self.random = random
        self.settings = settings
        self.brokers = brokers
        self.counts: Counter[str] = Counter()
        self.truth = Truth(self.counts, registry_of(brokers.features))
        self.truth.window_ms = brokers.idempotent_window_ms
        self.truth.halves.most_checks = brokers.transaction_check_max
        self.truth.halves.immune_s = brokers.transaction_timeout_ms / 1000
        self.lasting = self.truth.lasting
        self.lasting.update(f"lasting-{number}" for number in range(settings.topics))
        self.questions = QuestionJudge(self.truth)
        self._pulls = PullJudge(self.truth)
        self.pops = PopJudge(self.truth.pops, self.counts)
        self.replies = ReplyHistory(self.counts)
        self.stock = StockSends()
        self.decided: dict[int, int] = {}
        """End that was decided for each transaction, by operation. Any producer of the group may be asked for it."""
        self.queue_holders: dict[OffsetKey, int] = {}
        """Number of the member that consumes each queue of the groups that are reset."""
        self.passing: list[str] = []
        self.floors: dict[tuple[str, int], int] = {}
        """Minimum end of each queue, by (topic, queue id)."""
        self.stored_below = 0
        """Position of the log below which all acknowledged messages are stored."""
        self._most_operations = operations
        self._operations = 0
        self._started = 0
        self.acknowledged: list[Stored] = []
        """Acknowledged messages of lasting topics."""
        self.active = False
        """True while clients may begin an action."""

    @property
    def group(self) -> SimGroup:
        return self.truth.group

    def takes_another(self) -> bool:
        """Return whether a client may begin an action."""
        self._started += 1
        return self.active and (self._most_operations is None or self._started <= self._most_operations)

    # ---------------------------------------------------------------- sending

    def any_topic(self) -> str:
        """Return the topic of the next message: a lasting topic more often than not."""
        if self.passing and self.random.random() < 0.3:
            return self.random.choice(self.passing)
        return self.random.choice(sorted(self.lasting))

    def topic_fields(self, topic: str, queue_count: int | None = None) -> dict[str, str]:
        """Return the fields for creating a topic, or for changing its number of queues."""
        queues = str(queue_count or self.settings.queues)
        return {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": str(PERM_READ_WRITE),
            "topicFilterType": "SINGLE_TAG",
        }

    def next_operation(self) -> int:
        """Return a number that no message had before."""
        self._operations += 1
        return self._operations

    def make_send(
        self, topic: str, queue_id: int, operations: list[int], *, batch: bool
    ) -> tuple[int, dict[str, str], bytes]:
        """Return code, fields and body of a send."""
        ext = {
            "a": "producers",
            "b": topic,
            "c": "nothing",
            "d": "4",
            "e": str(queue_id),
            "f": "0",
            "g": "1700000000000",
            "h": "0",
            "m": "true" if batch else "false",
        }
        if not batch:
            ext["i"] = self._properties(operations[0])
            return RequestCode.SEND_MESSAGE_V2, ext, self._body(operations[0])
        ext["i"] = ""
        self.truth.batches.update(dict.fromkeys(operations, operations))
        messages = [
            BatchMessage(0, self._body(operation), self._properties(operation).encode()) for operation in operations
        ]
        return RequestCode.SEND_BATCH_MESSAGE, ext, encode_batch(messages)

    def _body(self, operation: int) -> bytes:
        settings, random = self.settings, self.random
        large = random.random() < settings.large_share
        return encode_body(operation, random.randint(0, settings.large_bytes if large else settings.padding_bytes))

    def _properties(self, operation: int) -> str:
        properties = {UNIQUE_KEY: unique_key(operation), KEYS: f"key-{operation % 50}"}
        tag = TAG_CHOICES[operation % len(TAG_CHOICES)]
        return format_properties(properties | ({TAGS: tag} if tag else {}))

    def not_sent(self, operations: list[int]) -> None:
        """Note that messages never left their client."""
        for operation in operations:
            self.truth.refuse(operation)

    def sent(self, operations: list[int], queue_id: int, answer: Answer | None) -> None:
        """Judge the outcome of a send: ok, fail, or unknown."""
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self.counts["ok"] += len(operations)
            first = int(answer.ext["queueOffset"])
            identities = answer.ext["msgId"].split(",")
            require(
                int(answer.ext["queueId"]) == queue_id and len(identities) == len(operations),
                "a send is answered for all its messages",
                answer=answer,
            )
            for number, (operation, identity) in enumerate(zip(operations, identities, strict=True)):
                position = position_in(identity)
                self.truth.acknowledged(operation, queue_id, first + number, position)
                self.stored_below = max(self.stored_below, position + 1)
            stored = self.truth.stored[operations[-1]]
            if stored.topic in self.lasting:
                self.acknowledged.append(stored)
                key = (stored.topic, queue_id)
                # Do not use the offset in `stored`: a message that was sent twice may since have been stored in another
                # queue.
                self.floors[key] = max(self.floors.get(key, 0), first + len(operations))
        elif answer is not None and answer.code in NOT_STORED:
            self.counts["fail"] += len(operations)
            self.counts[f"answer {answer.code}"] += 1
            self.not_sent(operations)
        else:
            self.counts["info"] += len(operations)
            self.counts["no answer" if answer is None else f"answer {answer.code}"] += 1

    # ---------------------------------------------------------------- reading

    def answered(self, code: int, answer: Answer) -> None:
        """Check any answer. A report of a damaged file is right only if a disk has rotten."""
        group = self.group
        require(
            not any(blames in answer.remark for blames in BLAMES_FILES) or group.rotten,
            "no answer blames an undamaged file",
            code=code,
            answer=answer,
        )

    def pulled(
        self, topic: str, queue_id: int, offset: int, answer: Answer, codes: frozenset[int] | None = None
    ) -> int | None:
        """Check the answer to a pull. Return the next offset, or None if it is unknown."""
        return self._pulls.pulled(topic, queue_id, offset, answer, codes)

    def _first_kept(self, topic: str, queue_id: int) -> int:
        return self.truth.topics[topic].first_offsets.get(queue_id, 0)

    def any_acknowledged(self, random: Random) -> Stored | None:
        """Return any kept message of a lasting topic, or None."""
        if not self.acknowledged:
            return None
        stored = random.choice(self.acknowledged)
        return stored if self.is_kept(stored) else None

    def is_kept(self, stored: Stored) -> bool:
        """Return whether no trim has taken a message of a lasting topic."""
        return stored.offset >= self._first_kept(stored.topic, stored.queue_id)

    @staticmethod
    def make_lookup(stored: Stored, *, by_key: bool) -> tuple[int, dict[str, str]]:
        """Return code and fields of a lookup of a message."""
        if not by_key:
            return RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(stored.position)}
        ext = {
            "topic": stored.topic,
            "key": unique_key(stored.operation),
            "maxNum": "4",
            "beginTimestamp": "0",
            "endTimestamp": str(1 << 62),
            "_UNIQUE_KEY_QUERY": "true",
        }
        return RequestCode.QUERY_MESSAGE, ext

    def offset_read(self, answer: Answer, floor: int, key: dict[str, str]) -> int:
        """Return the committed offset in an answer.

        It is at least `floor`, the highest offset acknowledged to this client.
        """
        found = int(answer.ext["offset"])
        require(
            found >= floor,
            "a committed offset is answered once it is acknowledged",
            key=key,
            found=found,
            acknowledged=floor,
        )
        self.counts["offset read"] += 1
        return found

    def looked_up(self, stored: Stored, answer: Answer | None, *, by_key: bool) -> None:
        """Check that an acknowledged message is found, unless it has been trimmed."""
        if self.group.rotten or answer is None or not self.is_kept(stored):
            return
        if answer.code == ResponseCode.SUCCESS:
            found = [(operation_of(record.body), record.physical_offset) for record in iter_records(answer.body)]
            expected = (stored.operation, stored.position)
            # A follower that has not applied a repeated message yet finds by key the message that was stored first.
            behind = by_key and stored.operation in self.truth.stored_again
            finds = bool(found) and {operation for operation, _ in found} == {stored.operation}
            require(found == [expected] or (behind and finds), "a lookup finds the message", stored=stored, found=found)
            self.counts["found by key" if by_key else "found by position"] += 1
        else:
            denied = answer.code == ResponseCode.QUERY_NOT_FOUND or "can not find" in answer.remark
            require(not denied, "acknowledged messages are found", stored=stored, by_key=by_key, answer=answer)

    def topic_seen(self, topic: str, *, expected: bool | None, found: bool) -> None:
        """Check a topic that its only administrator looked up."""
        require(
            expected in {None, found},
            "a topic is as the last change left it",
            topic=topic,
            expected=expected,
            found=found,
        )
        self.counts["topic read"] += 1


def unique_key(operation: int) -> str:
    """Return a message's unique key."""
    return f"7F00000100002A{operation:018X}"
