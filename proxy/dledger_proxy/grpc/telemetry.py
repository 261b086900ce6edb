"""Telemetry streams, heartbeats and the end of clients: Telemetry, Heartbeat, NotifyClientTermination.

A client opens a stream to each address of its proxies, and sends its settings first. The answer to them is settings
again, see `settings`. From then on commands go to the client over the stream, and their results come back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from grpclib.server import Stream

from dledger_client.errors import ClientError
from dledger_remoting.topics import SubscriptionGroupConfig

from ..backends import Backends
from .answers import Refusal, ok
from .callers import Caller, group_name, topic_name
from .clients import Channel, Client, Clients
from .definition import messaging_pb2 as pb
from .settings import consumer_settings, producer_settings

GROUP_SECONDS: Final = 2.0
"""Time limit in seconds for the settings of a client's group. Clients wait for the answer with their start."""

logger = logging.getLogger(__name__)
TelemetryStream = Stream[pb.TelemetryCommand, pb.TelemetryCommand]


class Telemetry:
    """Serves streams. `on_result` is called with the results of commands, and `settle` before a client is forgotten."""

    def __init__(
        self,
        backends: Backends,
        clients: Clients,
        on_result: Callable[[Caller, pb.TelemetryCommand], None],
        settle: Callable[[str], Awaitable[None]],
        *,
        max_body_bytes: int,
        checks_types: bool,
    ) -> None:
        self._backends = backends
        self._clients = clients
        self._on_result = on_result
        self._settle_leases = settle
        self._max_body_bytes = max_body_bytes
        self._checks_types = checks_types

    async def serve(self, caller: Caller, stream: TelemetryStream) -> None:
        """Serve a stream until its client ends it. Raises `Refusal` if there are too many."""
        channel = Channel()
        client = self._clients.open(caller, channel)
        writing = asyncio.get_running_loop().create_task(_write(stream, channel), name="commands to a client")
        try:
            await stream.send_initial_metadata()
            async for command in stream:
                self._clients.seen(caller)
                if command.HasField("settings"):
                    channel.send(await self._settle(client, command.settings))
                else:
                    self._on_result(caller, command)
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            self._clients.close(client, channel)

    async def heartbeat(self, caller: Caller, _request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        """Note that a client lives. One that is not known here sends its settings over a stream, sooner or later."""
        self._clients.seen(caller)
        return pb.HeartbeatResponse(status=ok())

    async def end(
        self, caller: Caller, _request: pb.NotifyClientTerminationRequest
    ) -> pb.NotifyClientTerminationResponse:
        """Forget a client that ends. Messages that it holds come again soon."""
        await self._settle_leases(caller.client_id)
        self._clients.leave(caller.client_id)
        return pb.NotifyClientTerminationResponse(status=ok())

    async def _settle(self, client: Client, settings: pb.Settings) -> pb.TelemetryCommand:
        """Register a client, and return the settings that it is to use."""
        try:
            self._clients.settle(client, settings)
            if settings.HasField("subscription"):
                merged = consumer_settings(settings, await self._group_settings(settings.subscription))
            else:
                merged = producer_settings(
                    settings, max_body_bytes=self._max_body_bytes, checks_types=self._checks_types
                )
        except Refusal as refusal:
            logger.warning("event=grpc_settings_refused client=%s reason=%r", client.caller.client_id, str(refusal))
            return pb.TelemetryCommand(status=refusal.status, settings=settings)
        return pb.TelemetryCommand(status=ok(), settings=merged)

    async def _group_settings(self, wanted: pb.Subscription) -> SubscriptionGroupConfig:
        """Return the settings of a client's group, the default ones if they cannot be had soon."""
        name = group_name(wanted.group)
        deadline = asyncio.get_running_loop().time() + GROUP_SECONDS
        if not wanted.subscriptions:
            return SubscriptionGroupConfig(name)
        try:
            return await self._backends.group(name, topic_name(wanted.subscriptions[0].topic), deadline)
        except ClientError as error:
            logger.info("event=group_settings_unknown group=%s reason=%r", name, str(error))
            return SubscriptionGroupConfig(name)


async def _write(stream: Stream[Any, Any], channel: Channel) -> None:
    """Write commands to a client as they come."""
    while True:
        await stream.send_message(await channel.commands.get())
        channel.commands.task_done()
