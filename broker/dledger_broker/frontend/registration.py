"""Registration of this node with every name server.

Each name server has a connection and a task of its own, so that a name server that hangs delays nobody. A registration
(103) has the whole table. It is sent when the connection is made, when this node begins or ceases to lead, and when
topics change. Our own name servers get only the changes (20005). In between, a comparison of data versions (322) every
few seconds shows that the node lives, and whether the name server lost its table. Only a ready leader registers id 0.
The state version is the term, so that an older leader loses.

A name server may *refuse* a registration, because a limit of it is full, or for access control. The connection and the
earlier registration then stay, because name servers take a node out of their routes when its connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from functools import partial
from typing import Final

import msgspec

from dledger_base.supervision import supervise
from dledger_base.tls import TlsContext
from dledger_broker.addresses import Address
from dledger_broker.config import BrokerConfig
from dledger_broker.features.topics.configuration import data_version
from dledger_broker.features.topics.system_topics import system_topics
from dledger_broker.features.topics.write_aliases import AliasedTopics
from dledger_broker.frontend.identity import Identity, OwnAlias
from dledger_broker.frontend.name_server import NameServerConnection
from dledger_broker.kernel.events import EventListener
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import TopicState
from dledger_remoting.bodies import encode_body
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import ProtocolError, RemotingError, error_from_response
from dledger_remoting.headers import (
    BrokerNodeHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponseHeader,
    decode_ext,
    encode_ext,
)
from dledger_remoting.registration import (
    DataVersion,
    RegisterBrokerBody,
    TopicChangesBody,
    TopicConfigSerializeWrapper,
    encode_compressed_registration,
    encode_registration,
)
from dledger_remoting.route import MASTER_ID
from dledger_remoting.signatures import Credentials
from dledger_remoting.speakers import Speaker
from dledger_remoting.topics import CREATED_ATTRIBUTE, TopicConfig

_logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_S: Final = 3.0
SILENT_S: Final = 1.75
"""Time in seconds after which a silent name server is logged, though its answer is still waited for."""
RECONNECT_S: Final = 0.25
"""Pause in seconds before a name server is tried again. It doubles each time up to `MAX_RECONNECT_S`."""
MAX_RECONNECT_S: Final = 2.0
COALESCE_S: Final = 0.02
"""Minimum time in seconds for which changes of topics are collected. It grows to ten times the duration of the last
registration.

Two kinds of changes are sent at once. The first completes the topics that clients of a new leader need. For the second
a request waits, and the name server takes single changes.
"""
MAX_COALESCE_S: Final = 1.0
MAX_PLAIN_BYTES: Final = 8 << 20
"""Maximum size in bytes of a table of topics without compression. A frame holds 16 MiB."""
INTRODUCTION_BYTES: Final = 64 << 10
"""Minimum size in bytes of a first registration that a small signed request precedes.

A name server with access control has little memory for requests of connections that have signed nothing.
"""
MAX_CHANGES: Final = 1_000
"""Maximum number of changed topics that are registered alone. With more changes the whole table is registered."""


class Registrar(EventListener):
    """Registrar of this node. Call `start`, then `leave` to unregister, then `stop`."""

    def __init__(
        self,
        machine: BrokerMachine,
        group: LeadershipView,
        config: BrokerConfig,
        credentials: Credentials | None = None,
        tls: TlsContext | None = None,
    ) -> None:
        self.credentials = credentials
        """Credentials that sign the requests to name servers."""
        self.tls = tls
        self._machine = machine
        self._group = group
        self._config = config
        self._body: tuple[DataVersion, bytes, bool] | None = None
        self._aliased = AliasedTopics(config)
        self._has_left = False
        self._system_topics = frozenset(topic.topic_name for topic in system_topics(config))
        self.restarts = 0
        """Number of times that a registration continued after an unexpected exception."""
        self._links = [_Link(self, address) for address in config.namesrv]

    def announced_version(self) -> float:
        """Return the version of this leader's topics that every reachable name server has.

        It is infinite if this node does not lead, or no name server can be reached: then no request has to wait.
        """
        if self._has_left or not self._group.ready:
            return math.inf
        term = self._group.term
        return min((link.registered_version(term) for link in self._links if not link.is_unreachable), default=math.inf)

    def servers_behind(self, version: int) -> list[str]:
        """Return the reachable name servers with which this node, as a leader, has not registered topics of this
        version or later.

        Versions grow over terms, too. A version registered before the node lost its leadership counts.
        """
        return [link.name for link in self._links if not link.is_unreachable and not link.has_registered(version)]

    def announce_soon(self) -> None:
        """Register changes at once where that costs little, because a request waits for them."""
        for link in self._links:
            if link.accepts_changes:
                link.wake(urgent=True)

    def start(self) -> None:
        """Begin to register."""
        for link in self._links:
            link.start()

    async def leave(self) -> None:
        """Unregister everywhere and stay away. Name servers that do not answer drop this node by themselves."""
        self._has_left = True
        self.tell_changed()
        await asyncio.gather(*(link.leave() for link in self._links))

    async def stop(self) -> None:
        """Close all connections. Name servers take that as a leave, too."""
        self._has_left = True
        self.tell_changed()
        await asyncio.gather(*(link.stop() for link in self._links))

    @property
    def registered(self) -> int:
        """Number of name servers that have this node's present registration."""
        return sum(link.registered_identity == self.identity for link in self._links)

    @property
    def introduced(self) -> bool:
        """True if clients find this leader.

        Every name server must have taken a registration in this term that names all topics that a broker has from the
        start. A name server that cannot be reached, or refuses the registration, is not waited for, because it may do
        so for ever.
        """
        return self.is_complete and all(
            link.introduction_term == self._group.term or link.is_unreachable or link.is_refused for link in self._links
        )

    @property
    def is_complete(self) -> bool:
        """True if this node leads, and all topics that a broker has from the start exist."""
        return self._group.ready and self._machine.state.topics.keys() >= self._system_topics

    @property
    def identity(self) -> Identity:
        """The present facts about this node, to be registered with a name server."""
        table = self._machine.state.topic_table
        broker_id = MASTER_ID if self._group.ready else self._config.broker_id_when_follower
        alias = self._own_alias() if self._config.alias_port else None
        return broker_id, data_version(self._group.term, table), alias, self._machine.log.group_identity

    def _own_alias(self) -> OwnAlias:
        config = self._config
        members = [member.node_id for member in self._machine.log.membership.members] if self._group.ready else []
        return OwnAlias(
            config.node_id,
            config.alias_number,
            str(Address(config.advertised_host, config.advertised_alias_port)),
            ",".join(members) or None,
        )

    @property
    def period_s(self) -> float:
        """Pause in seconds between two signs of life."""
        return self._config.register_period_ms / 1000

    def registration(self, identity: Identity) -> RemotingCommand:
        """Return request 103."""
        broker_id, version, alias, group_identity = identity
        if self._body is None or self._body[0] != version:
            table = {name: self._as_registered(topic) for name, topic in self._machine.state.topics.items()}
            body = RegisterBrokerBody(TopicConfigSerializeWrapper(table, version))
            encoded = encode_registration(body)
            compressed = len(encoded) > MAX_PLAIN_BYTES
            self._body = (version, encode_compressed_registration(body) if compressed else encoded, compressed)
        header = RegisterBrokerHeader(
            self._config.broker_group,
            str(self._config.advertised),
            self._config.cluster,
            str(self._config.advertised),
            broker_id,
            self._config.register_timeout_ms,
            compressed=self._body[2],
            topics_complete=True,
            group_identity=group_identity or None,
        )
        if alias is not None:
            header = msgspec.structs.replace(
                header,
                node_id=alias.node_id,
                alias_number=alias.number,
                alias_addr=alias.address,
                member_ids=alias.member_ids,
            )
        return RemotingCommand(RequestCode.REGISTER_BROKER, ext=encode_ext(header), body=self._body[1])

    def changes(self, registered_identity: Identity | None, identity: Identity) -> RemotingCommand | None:
        """Return request 20005, for a name server that has an older version. None if it needs the whole table."""
        if registered_identity is None or (registered_identity[0], registered_identity[1].state_version) != (
            identity[0],
            identity[1].state_version,
        ):
            return None
        if registered_identity[2:] != identity[2:]:
            return None
        state = self._machine.state
        names = state.topic_table.changes.since(registered_identity[1].counter)
        if names is None or len(names) > MAX_CHANGES:
            return None
        topics = state.topics
        table = {name: self._as_registered(topics[name]) for name in sorted(names) if name in topics}
        body = TopicChangesBody(registered_identity[1], identity[1], table, sorted(names - table.keys()))
        return RemotingCommand(
            RequestCode.DLEDGER_TOPIC_CHANGES, ext=encode_ext(self._node(identity[0])), body=encode_body(body)
        )

    def _as_registered(self, topic: TopicState) -> TopicConfig:
        """Return a topic as it is registered with name servers: with the position of its creation."""
        config = self._aliased.with_aliases(topic.config)
        created = {CREATED_ATTRIBUTE: str(topic.created_position)}
        return msgspec.structs.replace(config, attributes=config.attributes | created)

    def comparison(self, identity: Identity) -> RemotingCommand:
        """Return request 322."""
        return RemotingCommand(
            RequestCode.QUERY_DATA_VERSION, ext=encode_ext(self._node(identity[0])), body=encode_body(identity[1])
        )

    def unregistration(self, broker_id: int) -> RemotingCommand:
        """Return request 104."""
        return RemotingCommand(RequestCode.UNREGISTER_BROKER, ext=encode_ext(self._node(broker_id)))

    def _node(self, broker_id: int) -> BrokerNodeHeader:
        config = self._config
        address, term = str(config.advertised), self._group.term
        return BrokerNodeHeader(config.broker_group, address, config.cluster, broker_id, term)

    def count_restart(self) -> None:
        """Count that a link's task was started again."""
        self.restarts += 1

    def tell_changed(self) -> None:
        """Tell the others that `announced_version` may have grown."""
        for tell in self._group.events.name_servers_changed:
            tell()

    def topics_changed(self) -> None:
        self._wake(urgent=self.is_complete and not self.introduced)

    def leader_changed(self) -> None:
        self._wake(urgent=True)

    def _wake(self, *, urgent: bool) -> None:
        if not self._has_left:
            for link in self._links:
                link.wake(urgent=urgent)


class _Link:
    """The connection to one name server."""

    def __init__(self, registrar: Registrar, address: Address) -> None:
        self._registrar = registrar
        self._address = address
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._urgent = asyncio.Event()
        self._wire: NameServerConnection | None = None
        self._pause_s = COALESCE_S
        self._has_failed = False
        self._is_outage_logged = False
        self.is_refused = False
        """True if the name server answered the last registration with an error."""
        self._silence: asyncio.TimerHandle | None = None
        """Timer that runs until the connection brings its first answer."""
        self._announced_id: int | None = None
        self.registered_identity: Identity | None = None
        self.accepts_changes = False
        """True if the name server has said since the connection was made that it accepts changes."""
        self.introduction_term: int | None = None
        """The term in which the name server took a registration as leader with all system topics."""

    @property
    def is_unreachable(self) -> bool:
        """True from a failed attempt until a registration is answered."""
        return self._has_failed

    def registered_version(self, term: int) -> int:
        """Return the version of the topics that the name server took from this node as the leader in a term, else
        -1.
        """
        if (
            self.registered_identity is None
            or self.registered_identity[0] != MASTER_ID
            or self.registered_identity[1].state_version != term
        ):
            return -1
        return self.registered_identity[1].counter

    @property
    def name(self) -> str:
        """The name server's address."""
        return str(self._address)

    def has_registered(self, version: int) -> bool:
        """Return whether this node, as the leader of some term, has registered topics of this version or later."""
        return (
            self.registered_identity is not None
            and self.registered_identity[0] == MASTER_ID
            and self.registered_identity[1].counter >= version
        )

    def start(self) -> None:
        run = supervise(self._run, f"register with {self._address}", self._registrar.count_restart)
        self._task = asyncio.get_running_loop().create_task(run)

    def wake(self, *, urgent: bool) -> None:
        self._changed.set()
        if urgent:
            self._urgent.set()

    async def leave(self) -> None:
        """Stop registering, then unregister."""
        await self._cancel()
        if self._wire is not None and self._announced_id is not None:
            with contextlib.suppress(OSError, TimeoutError, RemotingError):
                await self._wire.call(self._registrar.unregistration(self._announced_id), self._registrar.credentials)
        await self.stop()

    async def stop(self) -> None:
        await self._cancel()
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    async def _cancel(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        pause_s = RECONNECT_S
        while True:
            try:
                self._announced_id = None
                self._wire = await NameServerConnection.open(
                    self._address,
                    REQUEST_TIMEOUT_S,
                    partial(self.wake, urgent=True),
                    self._registrar.tls,
                )
                self._watch_silence()
                await self._register()
                pause_s = RECONNECT_S
                await self._stay_registered()
            except (OSError, TimeoutError, RemotingError) as error:
                self._on_failure(error)
            except Exception as error:  # this name server is not waited for while the task is started again
                self._on_failure(error)
                raise
            finally:
                self.registered_identity = self.introduction_term = None
                self._end_silence()
                self.accepts_changes = self.is_refused = False
                if self._task is not None and self._wire is not None:
                    self._wire.close()
                    self._wire = None
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, MAX_RECONNECT_S)

    def _on_failure(self, error: Exception) -> None:
        self._has_failed = True
        self._log_outage(str(error) or type(error).__name__)
        self._registrar.tell_changed()

    def _log_outage(self, reason: str) -> None:
        """Log an outage, once."""
        if not self._is_outage_logged:
            self._is_outage_logged = True
            _logger.warning("event=namesrv_unreachable namesrv=%s error=%r", self._address, reason)

    def _watch_silence(self) -> None:
        """Log the silence of a wrong port soon. A real name server may take longer to read a large table."""
        loop = asyncio.get_running_loop()
        self._silence = loop.call_later(SILENT_S, self._log_outage, "it takes connections and says nothing")

    def _end_silence(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    async def _stay_registered(self) -> None:
        pause_s = RECONNECT_S
        while True:
            if self.is_refused:
                await asyncio.sleep(min(pause_s, self._registrar.period_s))
                pause_s = min(pause_s * 2, MAX_RECONNECT_S)
                await self._compare()
                await self._register()
                continue
            pause_s = RECONNECT_S
            await self._wait(self._changed, self._registrar.period_s)
            if self._changed.is_set():
                await self._wait(self._urgent, self._pause_s)
            self._clear_changes()
            if self.registered_identity == self._registrar.identity:
                await self._compare()
                if self.registered_identity is not None:
                    continue
            await self._register()

    def _clear_changes(self) -> None:
        """Note that all changes so far are about to be sent. A change during the following call starts another call."""
        self._changed.clear()
        self._urgent.clear()

    @staticmethod
    async def _wait(event: asyncio.Event, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

    async def _compare(self) -> None:
        """Show that this node lives. Forget the registered facts if the name server has another table, or no table."""
        if self.registered_identity is not None:
            response = await self._call(self._registrar.comparison(self.registered_identity))
            if (
                response.code != ResponseCode.SUCCESS
                or decode_ext(QueryDataVersionResponseHeader, response.ext).changed
            ):
                self.registered_identity = None

    async def _register(self) -> None:
        self._clear_changes()
        identity = self._registrar.identity
        is_complete = self._registrar.is_complete
        former_id, self._announced_id = self._announced_id, identity[0]
        started = asyncio.get_running_loop().time()
        if not await self._register_changes(identity):
            refusal = await self._register_all(identity)
            if refusal is not None:
                self._announced_id = former_id
                self._note_refusal(refusal)
                return
        took_s = asyncio.get_running_loop().time() - started
        self._pause_s = min(max(COALESCE_S, 10 * took_s), MAX_COALESCE_S)
        if (
            self.registered_identity is None
            or self.registered_identity[0] != identity[0]
            or self._has_failed
            or self.is_refused
        ):
            _logger.info(
                "event=registered namesrv=%s broker_id=%d term=%d",
                self._address,
                identity[0],
                identity[1].state_version,
            )
        self._has_failed = self._is_outage_logged = self.is_refused = False
        self.registered_identity = identity
        if is_complete:
            self.introduction_term = identity[1].state_version
        self._registrar.tell_changed()

    async def _register_changes(self, identity: Identity) -> bool:
        """Register the changes. Return False if the name server needs the whole table."""
        request = self._registrar.changes(self.registered_identity, identity) if self.accepts_changes else None
        return request is not None and (await self._call(request)).code == ResponseCode.SUCCESS

    def _note_refusal(self, refusal: RemotingError) -> None:
        """Note a refusal: the name server is reachable, and the earlier registration is still valid.

        It is logged once, until a registration is taken.
        """
        if not self.is_refused:
            _logger.warning("event=registration_refused namesrv=%s error=%r", self._address, str(refusal))
        self._has_failed = self._is_outage_logged = False
        self.is_refused = True
        self._registrar.tell_changed()

    async def _register_all(self, identity: Identity) -> RemotingError | None:
        """Register. Return the error with which the name server refuses, None if it does not."""
        registration = self._registrar.registration(identity)
        has_answered = self._silence is None
        if self._registrar.credentials is not None and not has_answered and len(registration.body) > INTRODUCTION_BYTES:
            await self._call(self._registrar.comparison(identity))
        response = await self._call(registration)
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise ProtocolError(f"{Speaker.BROKER.value} answered there, which is no name server")
        if response.code != ResponseCode.SUCCESS:
            return error_from_response(response.code, response.remark, response.ext)
        header = decode_ext(RegisterBrokerResponseHeader, response.ext)
        self.accepts_changes = header.accepts_topic_changes or False
        return None

    async def _call(self, request: RemotingCommand) -> RemotingCommand:
        if self._wire is None:
            raise ConnectionResetError("the connection is closed")
        response = await self._wire.call(request, self._registrar.credentials)
        self._end_silence()
        return response
