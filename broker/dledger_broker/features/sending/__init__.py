"""Sends (10, 310, 320): messages of clients, checked, collected into units of the log, answered once applied.

Start reading in `send`. `dedup` decides which sends repeat an earlier send.
"""

from __future__ import annotations

import os
import secrets
from typing import Final

from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.features.groups.requests import GroupRequests
from dledger_broker.features.locks.requests import LockRequests
from dledger_broker.features.quotas.requests import QuotaRequests
from dledger_broker.features.sending.dedup.idempotent import IdempotentSends
from dledger_broker.features.sending.dedup.remembered import REMEMBERED, SEND_COMMANDS
from dledger_broker.features.sending.delayed import DelayedSends
from dledger_broker.features.sending.on_their_way import UnitsInFlight
from dledger_broker.features.sending.plain_sends import PlainSends
from dledger_broker.features.sending.send import SendRequests
from dledger_broker.features.sending.single_sends import SingleSendUnits
from dledger_broker.features.sending.staging import SendStaging
from dledger_broker.features.sending.tails import RecordTails
from dledger_broker.features.sending.targets import SendTargets
from dledger_broker.kernel.names_made import NamesMade
from dledger_broker.kernel.parts import Context, Feature
from dledger_remoting.ids import UniqueKeyGenerator, offset_message_id_prefix


def _build(context: Context) -> SendRequests:
    machine, env, live, counters = context.machine, context.env, context.live, context.counters
    requests, store_host, parts = context.requests, context.store_host, context.parts
    quotas, due_messages = parts[QuotaRequests].sends, parts[DueMessages]
    keys = UniqueKeyGenerator(store_host.ip, os.getpid(), secrets.randbits(32))
    tails = RecordTails(live.own.cluster, live.own.region_id, keys, env.wall_ms)
    groups = parts[GroupRequests].proposals
    targets = SendTargets(machine, live, context.announcements, requests, groups, parts[LockRequests], parts[NamesMade])
    idempotent = IdempotentSends(machine, context.log, env, live.own, counters, requests, due_messages)
    in_flight = UnitsInFlight(env, live.own.quorum_timeout_ms)
    staging = SendStaging(machine, context.writer, counters, quotas, in_flight, store_host)
    plain = PlainSends(env, live, counters, targets, tails, staging, quotas, idempotent, requests)
    units = SingleSendUnits(env, live.own, counters, requests, offset_message_id_prefix(store_host))
    delayed = DelayedSends(env, units, requests, tails, due_messages, idempotent, quotas, plain)
    return SendRequests(live, counters, targets, tails, plain, in_flight, delayed, idempotent)


FEATURE: Final = Feature(name="sending", commands=SEND_COMMANDS, table=REMEMBERED, build=_build)
