"""Sends of halves: checked, and made into records of a topic that nobody reads."""

from __future__ import annotations

from typing import Final

from dledger_broker.features.sending.single_sends import SingleSend
from dledger_broker.features.sending.targets import SendTarget
from dledger_broker.features.transactions.messages import half_properties
from dledger_broker.features.transactions.table import HALVES, NAME
from dledger_broker.features.transactions.units import HalfSend, HalfUnits, NewHalf, ProposedHalves
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.group_clock import GroupClock
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.units import NewRecord
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import MessageIllegal, ServiceNotAvailable, SystemBusy
from dledger_remoting.hotpath import SendV2Fields
from dledger_remoting.ids import UniqueKeyGenerator
from dledger_remoting.properties import (
    CHECK_IMMUNITY_SECONDS,
    PRODUCER_GROUP,
    TRANSACTION_PREPARED,
    UNIQUE_KEY,
    find_property,
)
from dledger_remoting.record import KEPT_SYS_FLAGS, SYS_TRANSACTION_MASK, SYS_TRANSACTION_PREPARED
from dledger_remoting.topics import DLQ_PREFIX, HALF_TOPIC, validate_group

MAX_IMMUNITY_S: Final = 3_600
"""Maximum time for which a producer may ask not to be checked."""
_MAX_DIGITS: Final = 18


class HalfSends:
    """Handler of sends of halves that `sending` has checked like any other send."""

    def __init__(
        self,
        machine: BrokerMachine,
        requests: Requests,
        proposed: ProposedHalves,
        units: HalfUnits,
        live: LiveConfig,
        counters: BrokerCounters,
        unique_keys: UniqueKeyGenerator,
        clock: GroupClock,
    ) -> None:
        self._machine = machine
        self._requests = requests
        self._proposed = proposed
        self._units = units
        self._live = live
        self._counters = counters
        self._unique_keys = unique_keys
        self._clock = clock
        machine.on_state(self._keep_table)

    def _keep_table(self, state: BrokerState) -> None:
        self._table = state.table(HALVES)

    def take(
        self, request: Request, fields: SendV2Fields, properties: bytes, target: SendTarget, queue_id: int
    ) -> None:
        """Store a half, and answer when every later leader knows of it. Raises `RemotingError`."""
        _require_half(request, fields, target, properties)
        self._machine.activation.require(NAME)
        if self.is_full():
            raise SystemBusy(
                f"{self._live.config.max_open_halves} transactions are open, which is the limit max_open_halves: end"
                " some"
            )
        if self._machine.queue(HALF_TOPIC, 0) is None:
            raise ServiceNotAvailable(f"topic {HALF_TOPIC} is not there yet, nothing was stored: try again later")
        now_ms = self._clock.delay_base_ms()
        if now_ms is None:
            self._clock.hold(request, self._requests)
            return
        group = (find_property(properties, PRODUCER_GROUP.encode()) or b"").decode(
            errors="replace"
        ) or fields.producer_group
        validate_group(group)
        unique_key = (find_property(properties, UNIQUE_KEY.encode()) or b"").decode(
            errors="replace"
        ) or self._unique_keys.next(now_ms)
        check_ms = now_ms + first_check_after_ms(properties, self._live.config.transaction_timeout_ms)
        record = NewRecord(
            topic=HALF_TOPIC,
            queue_id=0,
            body=request.body,
            properties=half_properties(
                properties, group, unique_key, self._live.config.cluster, target.topic, queue_id
            ),
            flag=fields.user_flag,
            sys_flag=fields.sys_flag & KEPT_SYS_FLAGS,
            born_ms=fields.born_timestamp,
            born_host=request.origin.born_host,
            reconsume_times=fields.reconsume_times,
        )
        self._units.add(HalfSend(SingleSend(request, queue_id, unique_key.encode()), NewHalf(record, group, check_ms)))

    def is_full(self) -> bool:
        """Return whether as many halves are open as `max_open_halves` allows, and count it if so."""
        if len(self._table.open) + self._proposed.opening < self._live.config.max_open_halves:
            return False
        self._counters.max_open_halves += 1
        return True


def is_half(properties: bytes) -> bool:
    """Return whether a message's properties mark it as part of a transaction."""
    return find_property(properties, TRANSACTION_PREPARED.encode()) in (b"true", b"TRUE", b"True")


def _require_half(request: Request, fields: SendV2Fields, target: SendTarget, properties: bytes) -> None:
    """Raise `MessageIllegal` unless the send is that of a half."""
    if fields.sys_flag & SYS_TRANSACTION_MASK != SYS_TRANSACTION_PREPARED or not is_half(properties):
        raise MessageIllegal(
            f"sysFlag {fields.sys_flag} with {TRANSACTION_PREPARED} other than true is no half: a message of a "
            "transaction is sent with both, and ended with END_TRANSACTION (37)"
        )
    if fields.batch or request.code == RequestCode.SEND_BATCH_MESSAGE:
        raise MessageIllegal("a batch cannot be a transaction: send its messages one by one")
    if target.retry_group is not None or target.topic.startswith(DLQ_PREFIX):
        raise MessageIllegal(f"topic {target.topic} takes no transactions: send to an ordinary one")


def first_check_after_ms(properties: bytes, timeout_ms: int) -> int:
    """Return the time between a half's send and its first check.

    Raises `MessageIllegal` for an invalid time or over 1 h.
    """
    text = (find_property(properties, CHECK_IMMUNITY_SECONDS.encode()) or b"").strip()
    if not text or text == b"-1":
        return timeout_ms
    if not text.isdigit() or len(text) > _MAX_DIGITS or int(text) > MAX_IMMUNITY_S:
        raise MessageIllegal(
            f"{CHECK_IMMUNITY_SECONDS} = {text[:32].decode(errors='replace')}: 0 to {MAX_IMMUNITY_S} seconds expected"
        )
    return int(text) * 1000
