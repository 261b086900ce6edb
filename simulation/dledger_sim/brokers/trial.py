"""Trial of brokers: a seed's clients on a group, from the first topic to the judgement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final

from dledger_broker.features.quotas.requests import QuotaRequests
from dledger_broker.features.sending.dedup.remembered import REMEMBERED
from dledger_remoting.bodies import encode_body
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.topics import SubscriptionGroupConfig
from dledger_sim.brokers.accounts import AccountSetter, Signer
from dledger_sim.brokers.assignments import ModeSetter
from dledger_sim.brokers.branches import watch
from dledger_sim.brokers.bulk import BulkReader
from dledger_sim.brokers.clients import Administrator, Client, Consumer, Producer, Reader
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.crowds import Crowd
from dledger_sim.brokers.databases import NodeDatabases
from dledger_sim.brokers.delays import Delayer
from dledger_sim.brokers.group_times import TimeJudge
from dledger_sim.brokers.halves import Transactor
from dledger_sim.brokers.judgement import Judge
from dledger_sim.brokers.leasers import Leaser
from dledger_sim.brokers.lockers import LOCKED_GROUP, Lockers, share_in
from dledger_sim.brokers.node_loss import check_node_loss
from dledger_sim.brokers.obstacles import Obstacles
from dledger_sim.brokers.poppers import GROUPS as POP_GROUPS
from dledger_sim.brokers.poppers import Popper, check_come_again
from dledger_sim.brokers.quotas import QuotaSetter
from dledger_sim.brokers.races import Racer
from dledger_sim.brokers.repeats import Repeater
from dledger_sim.brokers.replies import Replier, Requester, check_replied
from dledger_sim.brokers.reset_truth import GROUPS as RESET_GROUPS
from dledger_sim.brokers.resets import ResetMember, Resetter
from dledger_sim.brokers.restarts import Restarter
from dledger_sim.brokers.retriers import Retrier
from dledger_sim.brokers.service import BrokerSettings, SimBroker
from dledger_sim.brokers.stock_clients import StockConsumer, StockProducer
from dledger_sim.brokers.tenants import Resizer, Steward, Tenant
from dledger_sim.brokers.trim_judge import judge_trims
from dledger_sim.brokers.waiters import Waiter
from dledger_sim.brokers.workload import ClientSettings, Workload
from dledger_sim.log.environment import MOST_AHEAD_S
from dledger_sim.log.group import Life, SimGroup

MAX_DELIVERIES: Final = 2
"""Maximum number of further deliveries of a popped message that is not acknowledged."""


class BrokerTrial:
    """`Trial` of brokers."""

    def __init__(
        self,
        random: Random,
        settings: ClientSettings,
        brokers: BrokerSettings,
        operations: int | None,
        obstacles: Obstacles | None = None,
    ) -> None:
        self.workload = Workload(random, settings, brokers, operations)
        self.obstacles = obstacles or Obstacles()
        self._databases = NodeDatabases()
        self._running: list[SimBroker] = []
        self._times: TimeJudge | None = None
        self._crowd = Crowd(Random(random.random()), self.counts) if brokers.crowded else None
        self._lockers = Lockers(random, self.counts, settings.lockers, brokers.lease_share)

    @property
    def counts(self) -> Counter[str]:
        """Number of operations by outcome, and of rare things that happened."""
        return self.workload.counts

    def serve(self, group: SimGroup, life: Life) -> SimBroker:
        """Return the broker of a new life of a node."""
        databases = self._databases.of(life.node.disk, Random(f"{life.node.name} {life.node.lives} databases"))
        settings = replace(self.workload.brokers, lease_share=share_in(group, self.workload.brokers.lease_share))
        broker = SimBroker(life, group.scheduler, settings, self.obstacles, self.workload.truth, databases)
        if self._crowd is not None:
            retention = broker.retention
            judge_trims(
                broker.broker,
                retention.trimming,
                life,
                self.workload.truth,
                retention.policy(),
                self._crowd.was_above,
            )
        watch(broker.service, self.counts)
        self._watch_time(broker, group, life)
        self._running.append(broker)
        life.on_ended.append(lambda: self._collect_counters(broker))
        return broker

    def _watch_time(self, broker: SimBroker, group: SimGroup, life: Life) -> None:
        """Judge the group time of each node. It is always needed, as if a delayed message were always pending."""
        calls_take_time = group.settings.call_cost_s > 0
        times = self._times = self._times or TimeJudge(group.scheduler, calls_take_time=calls_take_time)
        times.watch(life, broker.broker, broker.service.clock)
        broker.machine.checks.append(partial(times.told, broker.broker))
        broker.service.clock.add_dependent(lambda: True)

    def _collect_counters(self, broker: SimBroker) -> None:
        """Keep the counters of a life that has ended."""
        self._running.remove(broker)
        counters = broker.counters
        self.counts["request forwarded"] += counters.forwarded
        self.counts["request held"] += counters.forward_held
        self.counts["request expired"] += counters.forward_expired
        self.counts["forward refused"] += counters.forward_refusals
        self.counts["request sent on again"] += counters.forward_repeats
        self.counts["outcome unknown"] += counters.outcomes_unknown
        self.counts["cold read"] += counters.cold_reads
        self.counts["repetition answered"] += counters.idempotent_repeats
        self.counts["repetition held"] += counters.idempotent_waits
        quotas = broker.service.parts[QuotaRequests]
        for what, admission in (("send", quotas.sends), ("read", quotas.reads)):
            meters = admission.meters().values()
            self.counts[f"{what} held by a quota"] += sum(meter.held for meter in meters)
            self.counts[f"{what} refused by a quota"] += sum(meter.refused for meter in meters)
        remembered = broker.broker.state.table(REMEMBERED)
        self.counts["remembered sends expired"] += remembered.capture()[0].added > len(remembered)

    def start(self, group: SimGroup) -> None:
        """Start the clients, after their topics and groups exist."""
        workload = self.workload
        workload.truth.begin(group)
        workload.pops.clock_lead_s = MOST_AHEAD_S if group.settings.call_cost_s else 0.0
        workload.active = True
        if self._crowd is not None:
            self._crowd.begin(group)
        settings = workload.settings
        kinds: list[type[Client]] = [
            *[Producer] * settings.producers,
            *[Consumer] * settings.consumers,
            *[Administrator] * settings.administrators,
            *[Reader] * settings.readers,
            *[Repeater] * settings.repeaters,
            *[BulkReader] * settings.bulk_readers,
            *[Racer] * settings.racers,
            *[Waiter] * settings.waiters,
            *[Tenant] * settings.tenants,
            *[Restarter] * settings.restarters,
            *[Steward] * settings.stewards,
            *[Resizer] * settings.resizers,
            *[Transactor] * settings.transactors,
            *[Delayer] * settings.delayers,
            *[Retrier] * settings.retriers,
            *[Popper] * settings.poppers,
            *[Leaser] * settings.leasers,
            *[Requester] * settings.requesters,
            *[Replier] * settings.repliers,
            *[ModeSetter] * settings.mode_setters,
            *[QuotaSetter] * settings.quota_setters,
            *[AccountSetter] * settings.account_setters,
            *[Signer] * settings.signers,
            *[ResetMember] * settings.reset_members,
            *[Resetter] * settings.resetters,
            *[StockProducer] * settings.stock_producers,
            *[StockConsumer] * settings.stock_consumers,
        ]
        clients = [kind(workload, number) for number, kind in enumerate(kinds)]
        founder = Founder(workload, len(kinds))
        founder.then += [client.pause for client in clients]
        for name in POP_GROUPS if settings.poppers or settings.leasers else ():
            founder.found_group(name, retry_max_times=MAX_DELIVERIES)
        for name in RESET_GROUPS if settings.reset_members else ():
            founder.found_group(name)
        if settings.lockers:
            founder.found_group(LOCKED_GROUP)
            founder.then.append(partial(self._lockers.begin, group))
        founder.pause()

    def stop(self) -> None:
        """Stop the clients, the files of others and the obstacles."""
        self.workload.active = False
        self._lockers.stop()
        if self._crowd is not None:
            self._crowd.stop()
        self.obstacles.over = True

    def judge(self, group: SimGroup) -> None:
        """Check that the whole group has everything promised."""
        self._lockers.check_free(group)
        check_come_again(group, self.workload.truth.pops)
        if self.workload.settings.requesters:
            check_replied(group, self.workload)
            self.workload.replies.check(group.scheduler.now)
        Judge(self.workload, group).judge()
        if self.workload.brokers.write_aliases:
            check_node_loss(group, self.workload)
        for broker in list(self._running):
            self._collect_counters(broker)
        self.workload.stock.check_copies(self.workload.truth.stored_again, self.counts["request sent on again"])


class Founder(Client):
    """Client that creates the lasting topics, and groups, then lets the others begin."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self.then: list[Callable[[], None]] = []
        """Callbacks for the moment at which all topics and groups exist."""
        self._requests_left = [
            (RequestCode.UPDATE_AND_CREATE_TOPIC, workload.topic_fields(topic), b"")
            for topic in sorted(workload.lasting)
        ]

    def found_group(self, name: str, retry_max_times: int = 16) -> None:
        """Plan to create a consumer group before the topics."""
        body = encode_body(SubscriptionGroupConfig(name, retry_max_times=retry_max_times))
        self._requests_left.append((RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, {}, body))

    def act(self) -> None:
        """Create the next topic or group."""
        if not self._requests_left:
            for begin in self.then:
                begin()
            return

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                self._requests_left.pop()
            self.pause()

        code, ext, body = self._requests_left[-1]
        if not self.call(code, dict(ext), done, body=body):
            self.pause()
