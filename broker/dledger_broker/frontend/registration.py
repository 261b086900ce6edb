"""Registration of this node with every name server.

Each name server has a connection and a task of its own, so that one that hangs delays nobody. A registration (103) with
the whole table goes out when the connection is made, when this node becomes or ceases to be the leader, and when topics
change; a name server of ours gets only what has changed of them (20005). In between a comparison of data versions (322)
every few seconds shows that the node lives and whether the name server lost its table. Only a ready leader registers
id 0; the state version is the term, so that an older leader loses.

A name server may *refuse* a registration, because a limit of it is full, or access control says so. The connection
stays then, and what the node registered before: name servers take a node out of their routes when its connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from dledger.net.tls import TlsContext
from dledger.supervision import supervise
from dledger_broker.addresses import Address
from dledger_broker.config import BrokerConfig
from dledger_broker.features.topics.configuration import data_version
from dledger_broker.features.topics.system_topics import system_topics
from dledger_broker.features.topics.write_aliases import AliasedTopics
from dledger_broker.frontend.identity import Identity, OwnAlias
from dledger_broker.frontend.name_server import NameServerConnection
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.machine import BrokerMachine
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

_logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_S: Final = 3.0
SILENT_S: Final = 1.75
"""A name server that does not answer is complained of after so long, though its answer is waited for."""
RECONNECT_S: Final = 0.25
"""Pause before a name server is tried again, doubled each time up to `MAX_RECONNECT_S`."""
MAX_RECONNECT_S: Final = 2.0
COALESCE_S: Final = 0.02
"""Changes of topics are collected for at least so long, and for ten times as long as the last registration took.

Not so the change that completes the topics for which clients of a new leader look, and none that somebody waits for
where it is told by itself.
"""
MAX_COALESCE_S: Final = 1.0
MAX_PLAIN_BYTES: Final = 8 << 20
"""Tables of topics that take more are compressed: a frame holds 16 MiB."""
MAX_CHANGES: Final = 1_000
"""More topics that have changed are told with all others."""


class Registrar:
    """Registers this node. `start`, then `leave` to unregister, then `stop`."""

    def __init__(
        self,
        machine: BrokerMachine,
        group: Group,
        config: BrokerConfig,
        credentials: Credentials | None = None,
        tls: TlsContext | None = None,
    ) -> None:
        self.credentials = credentials
        self.tls = tls
        """What requests to name servers are signed with."""
        self._machine = machine
        self._group = group
        self._config = config
        self._body: tuple[DataVersion, bytes, bool] | None = None
        self._aliased = AliasedTopics(config)
        self._left = False
        self._system_topics = frozenset(topic.topic_name for topic in system_topics(config))
        self.restarts = 0
        """How often a registration went on after an unexpected exception."""
        self.on_told: Callable[[], None] = lambda: None
        """Called when `told_version` may have grown."""
        self._links = [_Link(self, address) for address in config.namesrv]
        machine.on_topics_changed.append(lambda: self._wake(urgent=self.is_complete and not self.introduced))
        group.listeners.append(lambda: self._wake(urgent=True))

    def told_version(self) -> float:
        """The version of this leader's topics that every name server knows which can be reached.

        Infinite if this node does not lead, or none can be reached: then nothing is to be waited for.
        """
        if self._left or not self._group.ready:
            return math.inf
        term = self._group.term
        return min((link.told_as_leader(term) for link in self._links if not link.is_unreachable), default=math.inf)

    def untold(self, version: int) -> list[str]:
        """Name servers that can be reached, and have from this node as the leader no topics of this version or later.

        Versions grow over terms, too: what the node has told before it lost its leadership is told.
        """
        return [link.name for link in self._links if not link.is_unreachable and not link.was_told(version)]

    def hurry(self) -> None:
        """Somebody waits for what has changed: tell it at once where that costs little."""
        for link in self._links:
            if link.accepts_changes:
                link.wake(urgent=True)

    def start(self) -> None:
        """Begin to register."""
        for link in self._links:
            link.start()

    async def leave(self) -> None:
        """Unregister everywhere and stay away; name servers that do not answer drop this node by themselves."""
        self._left = True
        self.on_told()
        await asyncio.gather(*(link.leave() for link in self._links))

    async def stop(self) -> None:
        """Close all connections, which name servers take as a leave too."""
        self._left = True
        self.on_told()
        await asyncio.gather(*(link.stop() for link in self._links))

    @property
    def registered(self) -> int:
        """Name servers that know this node as it is now."""
        return sum(link.told == self.identity for link in self._links)

    @property
    def introduced(self) -> bool:
        """Whether clients find this leader.

        Every name server has taken a registration of it in this term that names all topics which a broker has from the
        start. One that cannot be reached, or refuses it, is not waited for: it may do so for ever.
        """
        return self.is_complete and all(
            link.introduced_in == self._group.term or link.is_unreachable or link.is_refused for link in self._links
        )

    @property
    def is_complete(self) -> bool:
        """Whether this node leads, and all topics that a broker has from the start are there."""
        return self._group.ready and self._machine.state.topics.keys() >= self._system_topics

    @property
    def identity(self) -> Identity:
        """What a name server is to know of this node now."""
        table = self._machine.state.topic_table
        broker_id = MASTER_ID if self._group.ready else self._config.broker_id_when_follower
        alias = self._own_alias() if self._config.alias_port else None
        return broker_id, data_version(self._group.term, table), alias

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
        """Pause between two signs of life."""
        return self._config.register_period_ms / 1000

    def registration(self, identity: Identity) -> RemotingCommand:
        """Request 103."""
        broker_id, version, alias = identity
        if self._body is None or self._body[0] != version:
            table = {name: self._aliased.told(topic.config) for name, topic in self._machine.state.topics.items()}
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

    def changes(self, told: Identity | None, identity: Identity) -> RemotingCommand | None:
        """Request 20005, for a name server that was told of an older version; None if it needs to be told all."""
        if told is None or (told[0], told[1].state_version) != (identity[0], identity[1].state_version):
            return None
        if told[2] != identity[2]:
            return None
        state = self._machine.state
        names = state.topic_table.changes.since(told[1].counter)
        if names is None or len(names) > MAX_CHANGES:
            return None
        topics = state.topics
        table = {name: self._aliased.told(topics[name].config) for name in sorted(names) if name in topics}
        body = TopicChangesBody(told[1], identity[1], table, sorted(names - table.keys()))
        return RemotingCommand(
            RequestCode.DLEDGER_TOPIC_CHANGES, ext=encode_ext(self._node(identity[0])), body=encode_body(body)
        )

    def comparison(self, identity: Identity) -> RemotingCommand:
        """Request 322."""
        return RemotingCommand(
            RequestCode.QUERY_DATA_VERSION, ext=encode_ext(self._node(identity[0])), body=encode_body(identity[1])
        )

    def farewell(self, broker_id: int) -> RemotingCommand:
        """Request 104."""
        return RemotingCommand(RequestCode.UNREGISTER_BROKER, ext=encode_ext(self._node(broker_id)))

    def _node(self, broker_id: int) -> BrokerNodeHeader:
        config = self._config
        address, term = str(config.advertised), self._group.term
        return BrokerNodeHeader(config.broker_group, address, config.cluster, broker_id, term)

    def count_restart(self) -> None:
        """A link's task was started again."""
        self.restarts += 1

    def _wake(self, *, urgent: bool) -> None:
        if not self._left:
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
        self._complained = False
        self._said = False
        self.is_refused = False
        """Whether the name server answered the last registration with an error."""
        self._silence: asyncio.TimerHandle | None = None
        """Until the connection brings its first answer."""
        self._announced_id: int | None = None
        self.told: Identity | None = None
        self.accepts_changes = False
        """Whether the name server has said so since the connection was made."""
        self.introduced_in: int | None = None
        """The term in which the name server took a registration as leader with all system topics."""

    @property
    def is_unreachable(self) -> bool:
        """True from a failed attempt until a registration is answered."""
        return self._complained

    def told_as_leader(self, term: int) -> int:
        """The version of the topics that the name server took from this node as the leader in a term, else -1."""
        if self.told is None or self.told[0] != MASTER_ID or self.told[1].state_version != term:
            return -1
        return self.told[1].counter

    @property
    def name(self) -> str:
        """The name server's address."""
        return str(self._address)

    def was_told(self, version: int) -> bool:
        """Whether this node, as the leader of some term, has told topics of this version or later."""
        return self.told is not None and self.told[0] == MASTER_ID and self.told[1].counter >= version

    def start(self) -> None:
        run = supervise(self._run, f"register with {self._address}", self._registrar.count_restart)
        self._task = asyncio.get_running_loop().create_task(run)

    def wake(self, *, urgent: bool) -> None:
        self._changed.set()
        if urgent:
            self._urgent.set()

    async def leave(self) -> None:
        """Stop registering, then say so."""
        await self._cancel()
        if self._wire is not None and self._announced_id is not None:
            with contextlib.suppress(OSError, TimeoutError, RemotingError):
                await self._wire.call(self._registrar.farewell(self._announced_id))
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
                    self._registrar.credentials,
                    self._registrar.tls,
                )
                self._watch_silence()
                await self._register()
                pause_s = RECONNECT_S
                await self._stay_registered()
            except (OSError, TimeoutError, RemotingError) as error:
                self._complain(error)
            except Exception as error:  # this name server is not waited for while the task is started again
                self._complain(error)
                raise
            finally:
                self.told = self.introduced_in = None
                self._end_silence()
                self.accepts_changes = self.is_refused = False
                if self._task is not None and self._wire is not None:
                    self._wire.close()
                    self._wire = None
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, MAX_RECONNECT_S)

    def _complain(self, error: Exception) -> None:
        self._complained = True
        self._say(str(error) or type(error).__name__)
        self._registrar.on_told()

    def _say(self, what: str) -> None:
        """Once per outage."""
        if not self._said:
            self._said = True
            _logger.warning("event=namesrv_unreachable namesrv=%s error=%r", self._address, what)

    def _watch_silence(self) -> None:
        """Tell an operator of a wrong port soon; a right one may take longer to read a large table."""
        loop = asyncio.get_running_loop()
        self._silence = loop.call_later(SILENT_S, self._say, "it takes connections and says nothing")

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
            self._seen()
            if self.told == self._registrar.identity:
                await self._compare()
                if self.told is not None:
                    continue
            await self._register()

    def _seen(self) -> None:
        """What changed so far is about to be told; what changes during the call that follows starts another one."""
        self._changed.clear()
        self._urgent.clear()

    @staticmethod
    async def _wait(event: asyncio.Event, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

    async def _compare(self) -> None:
        """Show that this node lives; what was told no longer counts if the name server has another table, or none."""
        if self.told is not None:
            response = await self._call(self._registrar.comparison(self.told))
            if (
                response.code != ResponseCode.SUCCESS
                or decode_ext(QueryDataVersionResponseHeader, response.ext).changed
            ):
                self.told = None

    async def _register(self) -> None:
        self._seen()
        identity = self._registrar.identity
        is_complete = self._registrar.is_complete
        former_id, self._announced_id = self._announced_id, identity[0]
        started = asyncio.get_running_loop().time()
        if not await self._tell_changes(identity):
            refusal = await self._tell_all(identity)
            if refusal is not None:
                self._announced_id = former_id
                self._note_refusal(refusal)
                return
        took_s = asyncio.get_running_loop().time() - started
        self._pause_s = min(max(COALESCE_S, 10 * took_s), MAX_COALESCE_S)
        if self.told is None or self.told[0] != identity[0] or self._complained or self.is_refused:
            _logger.info(
                "event=registered namesrv=%s broker_id=%d term=%d",
                self._address,
                identity[0],
                identity[1].state_version,
            )
        self._complained = self._said = self.is_refused = False
        self.told = identity
        if is_complete:
            self.introduced_in = identity[1].state_version
        self._registrar.on_told()

    async def _tell_changes(self, identity: Identity) -> bool:
        """Tell what has changed; False if the name server is to be told all."""
        request = self._registrar.changes(self.told, identity) if self.accepts_changes else None
        return request is not None and (await self._call(request)).code == ResponseCode.SUCCESS

    def _note_refusal(self, refusal: RemotingError) -> None:
        """The name server is there, and what it was told before stands. Logged once, until a registration is taken."""
        if not self.is_refused:
            _logger.warning("event=registration_refused namesrv=%s error=%r", self._address, str(refusal))
        self._complained = self._said = False
        self.is_refused = True
        self._registrar.on_told()

    async def _tell_all(self, identity: Identity) -> RemotingError | None:
        """Register; the error with which the name server refuses, if it does."""
        response = await self._call(self._registrar.registration(identity))
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
        response = await self._wire.call(request)
        self._end_silence()
        return response
