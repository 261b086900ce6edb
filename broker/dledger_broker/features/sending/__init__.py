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
from dledger_broker.features.sending.send import SendRequests
from dledger_broker.features.sending.targets import SendTargets
from dledger_broker.kernel.names_made import NamesMade
from dledger_broker.kernel.parts import Context, Feature
from dledger_remoting.ids import UniqueKeyGenerator


def _build(context: Context) -> SendRequests:
    machine, log, env, live = context.machine, context.log, context.env, context.live
    counters, requests, store_host = context.counters, context.requests, context.store_host
    keys = UniqueKeyGenerator(store_host.ip, os.getpid(), secrets.randbits(32))
    groups = context.parts[GroupRequests].proposals
    locks = context.parts[LockRequests]
    names = context.parts[NamesMade]
    targets = SendTargets(machine, context.group, live, context.announcements, requests, groups, locks, names)
    idempotent = IdempotentSends(machine, log, env, live.own, counters, requests, context.parts[DueMessages])
    return SendRequests(
        machine,
        context.writer,
        env,
        live,
        counters,
        targets,
        store_host,
        keys,
        requests,
        idempotent,
        context.parts[DueMessages],
        context.parts[QuotaRequests].sends,
    )


FEATURE: Final = Feature(name="sending", commands=SEND_COMMANDS, table=REMEMBERED, build=_build)
