"""Scenario of a run of brokers, drawn from a seed: its clients, their activity, and the sizes of everything."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from random import Random
from typing import Final

from dledger_broker.features.retention.policy import WHEN_FULL
from dledger_sim.brokers.obstacles import Obstacles
from dledger_sim.brokers.service import BrokerSettings
from dledger_sim.brokers.trial import BrokerTrial
from dledger_sim.brokers.workload import ClientSettings
from dledger_sim.log.cases import Limits
from dledger_sim.log.modes import draw_lossless_plan, with_rot, with_rotten_views
from dledger_sim.log.plan import Plan, draw_plan

SMALL_LIMITS: Final = {
    "max_forward_bytes": (2_048, 16 << 10),
    "max_open_halves": (3, 20),
    "max_relayed_calls": (1, 4),
    "max_request_modes": (2, 5),
    "max_pending_resets": (1, 2),
}
"""Small values for limits that clients can then reach."""
LIMITED_SHARE: Final = 0.3
"""Share of the seeds in which each of these limits is small."""
SHORT_WINDOWS_MS: Final = (500, 1500, 5000)
LEASE_SHARES: Final = (0.15, 0.3)
"""Shares of the usual lease. Leases end while a seed runs, and still leave room for clocks of other speeds."""


CLIENTS: Final = (
    "producers",
    "consumers",
    "administrators",
    "readers",
    "repeaters",
    "bulk_readers",
    "racers",
    "waiters",
    "tenants",
    "restarters",
    "stewards",
    "resizers",
    "transactors",
    "delayers",
    "lockers",
    "retriers",
    "poppers",
    "leasers",
    "requesters",
    "repliers",
    "mode_setters",
    "quota_setters",
    "account_setters",
    "signers",
    "reset_members",
    "resetters",
    "stock_producers",
    "stock_consumers",
)


class BrokerScenario:
    """`Scenario` of brokers. Each flag adds clients or conditions:

    - `repeats`: repeated sends, and readers that pin the log
    - `forgets`: the log remembers sends for a short time only
    - `races`: clients that commit through two nodes at once
    - `halves`: producers of transactions
    - `delays`: delayed messages
    - `locks`: members of a group that lock queues, with shorter leases than usual
    - `retries`: consumers that send messages back
    - `pops`: consumers that pop
    - `leases`: consumers that pop under leases, beside others that pop
    - `replies`: producers that wait for replies, and clients that reply
    - `assignments`: administrators who set how groups consume topics
    - `resets`: groups that are reset while their members run
    - `classes`: consumers with a class filter whose process dies now and then
    - `quotas`: producers and consumers that exceed their quotas
    - `accounts`: producers that sign for accounts whose rights change
    - `aliases`: producers that send through write aliases, and consumers that follow suggestions
    - `crowds`: files of others on the disks, under both limits of retention
    - `swarm`: some further kinds of clients in each seed, and some obstacles
    - `modes`: groups as `draw_lossless_plan` draws them
    - `rot`: rotting small files
    - `rotten_views`: rotting files that are derived from the log
    """

    def __init__(
        self,
        name: str,
        *,
        repeats: bool = False,
        forgets: bool = False,
        races: bool = False,
        halves: bool = False,
        swarm: bool = False,
        delays: bool = False,
        locks: bool = False,
        retries: bool = False,
        pops: bool = False,
        leases: bool = False,
        replies: bool = False,
        assignments: bool = False,
        resets: bool = False,
        classes: bool = False,
        quotas: bool = False,
        accounts: bool = False,
        aliases: bool = False,
        crowds: bool = False,
        modes: bool = False,
        rotten_views: bool = False,
        rot: bool = False,
    ) -> None:
        self.name = name
        self._repeats = repeats
        self._forgets = forgets
        self._races = races
        self._halves = halves
        self._swarm = swarm
        self._delays = delays
        self._locks = locks
        self._retries = retries
        self._pops = pops
        self._leases = leases
        self._replies = replies
        self._assignments = assignments
        self._resets = resets
        self._classes = classes
        self._quotas = quotas
        self._accounts = accounts
        self._aliases = aliases
        self._crowds = crowds
        self._modes = modes
        self._rot = rot
        self._rotten_views = rotten_views

    def plan(self, random: Random, kinds: Collection[str] | None) -> Plan:
        """Draw a seed's group and faults."""
        plan = draw_lossless_plan(random, kinds) if self._modes else draw_plan(random, kinds)
        if self._rotten_views:
            return with_rotten_views(plan)
        return with_rot(plan) if self._rot else plan

    def draw(self, random: Random, limits: Limits) -> BrokerTrial:
        """Draw a seed's clients."""
        limited = {} if limits.usual else _small_limits(random)
        settings = ClientSettings(
            producers=random.choice((1, 2, 4)),
            consumers=random.choice((1, 2, 3)),
            administrators=random.choice((0, 1, 2)),
            readers=random.choice((0, 1, 2)),
            think_s=random.choice((0.05, 0.1, 0.3)),
            timeout_s=random.choice((0.5, 1.5, 4.0)),
            stay_share=random.choice((0.0, 0.3, 1.0)),
            no_forward_share=random.choice((0.0, 0.5)),
            topics=random.choice((1, 2)),
            queues=random.choice((1, 2, 4)),
            batch_share=random.choice((0.0, 0.2)),
            oneway_share=random.choice((0.0, 0.1)),
            padding_bytes=random.choice((50, 500, 3000)),
            large_share=random.choice((0.0, 0.02)),
            long_poll_share=random.choice((0.0, 0.3)),
        )
        if self._repeats:
            settings = replace(
                settings,
                producers=random.choice((0, 1)),
                repeaters=random.choice((1, 2, 4)),
                bulk_readers=random.choice((0, 1, 2)),
            )
        if self._races:
            settings = replace(settings, producers=1, consumers=random.choice((0, 1)), racers=random.choice((2, 4, 6)))
        if self._halves:
            settings = replace(settings, producers=1, transactors=random.choice((2, 4, 8)))
        if self._pops:
            settings = replace(settings, producers=random.choice((1, 2)), poppers=random.choice((3, 6, 9)))
        if self._leases:
            settings = replace(settings, producers=1, poppers=random.choice((0, 3)), leasers=random.choice((3, 6)))
        if self._replies:
            settings = replace(
                settings, producers=1, requesters=random.choice((1, 3, 6)), repliers=random.choice((2, 4))
            )
        if self._assignments:
            settings = replace(
                settings,
                producers=1,
                administrators=random.choice((1, 2)),
                stewards=random.choice((1, 2)),
                mode_setters=random.choice((2, 4)),
            )
        if self._resets:
            settings = replace(
                settings, producers=1, reset_members=random.choice((4, 6)), resetters=random.choice((1, 2))
            )
        if self._classes:
            settings = replace(settings, producers=2, poppers=random.choice((1, 3, 6)), waiters=random.choice((2, 5)))
        if self._quotas:
            settings = replace(
                settings,
                producers=random.choice((3, 6)),
                consumers=random.choice((2, 4)),
                waiters=random.choice((0, 2)),
                poppers=random.choice((0, 3)),
                quota_setters=random.choice((1, 2)),
                think_s=0.05,
                timeout_s=random.choice((1.5, 6.0)),
            )
        if self._accounts:
            settings = replace(
                settings,
                producers=random.choice((0, 1)),
                signers=random.choice((3, 6)),
                account_setters=random.choice((1, 2)),
                consumers=random.choice((1, 3)),
                quota_setters=random.choice((0, 1)),
                think_s=0.05,
            )
        if self._delays:
            settings = replace(settings, delayers=random.choice((1, 2, 4)))
        brokers = BrokerSettings(
            units_per_file=random.choice((8, 32, 256)),
            checkpoint_bytes=random.choice((8 << 10, 64 << 10, 1 << 40)),
            view_flush_ms=random.choice((20, 200)),
            offset_flush_ms=random.choice((20, 200)),
            forward_hold_ms=random.choice((300, 2000)),
        )
        brokers = replace(brokers, class_filters=self._classes, access=self._accounts)
        if self._aliases:
            settings, brokers = _aliased(random, settings, brokers)
            limited.pop("max_forward_bytes", None)  # a large send waits for a leader, too
        if self._crowds:
            settings, brokers = _crowded(random, settings, brokers)
        obstacles = Obstacles()
        if self._swarm:
            settings, brokers, obstacles = _swarm(random, settings, brokers)
        if self._locks:
            settings = replace(settings, lockers=random.choice((2, 3, 5)))
            brokers = replace(brokers, lease_share=random.choice(LEASE_SHARES))
        if self._retries:
            settings = replace(settings, retriers=random.choice((1, 2, 4)))
        if self._forgets:
            brokers = replace(brokers, idempotent_window_ms=random.choice(SHORT_WINDOWS_MS))
        brokers = replace(brokers, limits=limited)
        if limits.clients is not None:
            settings = replace(settings, **{kind: min(getattr(settings, kind), limits.clients) for kind in CLIENTS})
        return BrokerTrial(random, settings, brokers, limits.operations, obstacles)


def _small_limits(random: Random) -> dict[str, int]:
    """Draw small limits from a separate source, so that a seed keeps its other draws."""
    own = Random()
    own.setstate(random.getstate())
    own = Random(f"{own.random()} limits")
    return {key: own.choice(values) for key, values in SMALL_LIMITS.items() if own.random() < LIMITED_SHARE}


def _aliased(
    random: Random, settings: ClientSettings, brokers: BrokerSettings
) -> tuple[ClientSettings, BrokerSettings]:
    """Return settings for write aliases.

    Topics of one queue have no aliases. Nodes hold a send for as long as an election may take.
    """
    settings = replace(
        settings,
        producers=1,
        consumers=1,
        queues=max(settings.queues, 2),
        stock_producers=random.choice((2, 4, 8)),
        stock_consumers=random.choice((1, 3)),
    )
    reads = random.choice(("spread", "spread", "lagging", "off"))
    return settings, replace(brokers, write_aliases=True, follower_reads=reads, forward_hold_ms=2000)


def _crowded(
    random: Random, settings: ClientSettings, brokers: BrokerSettings
) -> tuple[ClientSettings, BrokerSettings]:
    """Return settings with both limits of retention, any reaction to a full disk, delayed messages, crowded disks."""
    settings = replace(settings, producers=2, delayers=random.choice((0, 1, 2)), padding_bytes=3000, think_s=0.05)
    return settings, replace(
        brokers,
        retention_ms=random.choice((6_000, 10_000, 1 << 40)),
        retention_bytes=random.choice((0, 200 << 10, 600 << 10)),
        when_full=random.choice(WHEN_FULL),
        crowded=True,
    )


def _swarm(
    random: Random, settings: ClientSettings, brokers: BrokerSettings
) -> tuple[ClientSettings, BrokerSettings, Obstacles]:
    """Return settings with some more kinds of clients. A few kinds in each seed find more than all kinds in all."""
    tenants = random.choice((0, 1, 3))
    settings = replace(
        settings,
        administrators=max(settings.administrators, 1 if tenants else 0),
        bulk_readers=random.choice((0, 0, 1)),
        waiters=random.choice((0, 2, 5)),
        tenants=tenants,
        restarters=random.choice((0, 1, 2)),
        stewards=random.choice((0, 0, 1, 2)),
        resizers=random.choice((0, 0, 0, 1)),
    )
    flush_ms = random.choice((brokers.offset_flush_ms, brokers.offset_flush_ms, 2000))
    obstacles = Obstacles(random.choice((0.0, 0.0, 0.05, 0.3)), random.choice((0.0, 0.0, 0.5, 2.0, 8.0)))
    return settings, replace(brokers, offset_flush_ms=flush_ms), obstacles
