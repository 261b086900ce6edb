"""Scenario `client`: our client library under all faults of the simulator."""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import Final

from dledger_sim.brokers.library.members import Habits
from dledger_sim.brokers.library.trial import LibraryTrial
from dledger_sim.brokers.service import BrokerSettings
from dledger_sim.brokers.workload import ClientSettings
from dledger_sim.log.cases import Limits
from dledger_sim.log.plan import Plan, draw_plan

NAME: Final = "client"


class LibraryScenario:
    """`Scenario` of client processes."""

    name: Final = NAME

    def plan(self, random: Random, kinds: Collection[str] | None) -> Plan:
        """Draw a seed's group and faults."""
        return draw_plan(random, kinds)

    def draw(self, random: Random, limits: Limits) -> LibraryTrial:
        """Draw a seed's clients."""
        most = 1 << 30 if limits.clients is None else limits.clients
        settings = ClientSettings(
            producers=min(most, random.choice((1, 2))),
            consumers=0,
            administrators=0,
            readers=0,
            think_s=random.choice((0.1, 0.3)),
            timeout_s=random.choice((0.5, 1.5, 4.0)),
            stay_share=random.choice((0.0, 0.3)),
            topics=random.choice((1, 2)),
            queues=random.choice((2, 4)),
            batch_share=random.choice((0.0, 0.2)),
            padding_bytes=random.choice((50, 500)),
        )
        brokers = BrokerSettings(
            units_per_file=random.choice((8, 32, 256)),
            checkpoint_bytes=random.choice((8 << 10, 64 << 10, 1 << 40)),
            view_flush_ms=random.choice((20, 200)),
            offset_flush_ms=random.choice((20, 200)),
            forward_hold_ms=random.choice((300, 2000)),
            retention_ms=random.choice((8_000, 30_000, 1 << 40)),
        )
        habits = Habits(
            slow_share=random.choice((0.01, 0.05)),
            usual_s=random.choice((0.02, 0.5)),
            fail_share=random.choice((0.0, 0.03)),
        )
        return LibraryTrial(
            random,
            settings,
            brokers,
            limits.operations,
            habits=habits,
            members=min(most, random.choice((1, 2, 4))),
            change_s=random.choice((0.5, 1.0, 2.0, 5.0)),
            senders=min(most, random.choice((1, 2))),
            movers=min(most, random.choice((0, 1, 1, 2))),
            patience=random.choice((2.0, 10.0, 30.0)),
            strikes=random.random() < 0.5,
        )
