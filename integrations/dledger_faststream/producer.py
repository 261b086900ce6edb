"""Producer behind all publishers of a broker: encodes bodies, and sends them by the client's producer."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from fast_depends.library.serializer import SerializerProto
from faststream import Response
from faststream.exceptions import IncorrectState

from dledger_client import ClientError, InvalidArgumentError, Message, Producer, Reply, SendResult

from .internals import BatchCodecProto, CodecProto, CustomCallable, DefaultCodec, ParserComposition, ProducerProto
from .message import decode, parse_message
from .response import DledgerPublishCommand, DledgerResponse, Sending, plain_bodies

logger = logging.getLogger(__name__)


class DledgerProducer(ProducerProto[DledgerPublishCommand]):
    """Publishes once the broker is connected. `parser` and `decoder` read replies."""

    def __init__(self, parser: CustomCallable | None = None, decoder: CustomCallable | None = None) -> None:
        self._parser = ParserComposition(parser, parse_message)
        self._decoder = ParserComposition(decoder, decode)
        self.codec: CodecProto = DefaultCodec()
        self.serializer: SerializerProto | None = None
        self._client: Producer | None = None

    def __bool__(self) -> bool:
        return self._client is not None

    def connect(self, client: Producer, serializer: SerializerProto | None, codec: CodecProto | None) -> None:
        """Publish by `client` from now on."""
        self._client = client
        self.serializer = serializer
        self.codec = codec or DefaultCodec()

    async def disconnect(self) -> None:
        """Wait for the sends under way, and close the client's producer."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def publish(self, cmd: DledgerPublishCommand) -> SendResult | None:
        """Send one message, and return where it is stored; None for a reply. Raises the errors of `Producer.send`."""
        if cmd.asked is not None:
            await self.reply(cmd)
            return None
        message = await self.encode(cmd)
        return await self._connected().send(cmd.destination, message, idempotent=cmd.idempotent, timeout=cmd.timeout)

    async def publish_batch(self, cmd: DledgerPublishCommand) -> list[SendResult]:
        """Send messages in their order, and return where they are stored. Raises as `Producer.send_batch` does."""
        messages = await self.encode_batch(cmd)
        return await self._connected().send_batch(
            cmd.destination, messages, idempotent=cmd.idempotent, timeout=cmd.timeout
        )

    async def request(self, cmd: DledgerPublishCommand) -> Reply:
        """Send a message, and return the reply of one of its consumers. Raises as `Producer.request` does."""
        message = await self.encode(cmd)
        return await self._connected().request(
            cmd.destination,
            message.body,
            key=message.key,
            tags=message.tags,
            properties=message.properties,
            timeout=cmd.timeout,
        )

    async def reply(self, cmd: DledgerPublishCommand) -> None:
        """Reply to a request. A requester that is gone is logged: its message is handled all the same."""
        assert cmd.asked is not None, "a reply has a request"
        message = await self.encode(cmd)
        try:
            await self._connected().reply(cmd.asked, message.body, properties=message.properties, timeout=cmd.timeout)
        except InvalidArgumentError:
            raise
        except ClientError as error:
            logger.warning("the reply to message %s did not arrive: %s", cmd.asked.message_id, error)

    async def encode(self, cmd: DledgerPublishCommand) -> Message:
        """Return the message of a command."""
        body, content_type = await self.codec.encode(cmd.body, self.serializer)
        return cmd.sending.message(body, cmd.properties(content_type))

    async def encode_batch(self, cmd: DledgerPublishCommand) -> list[Message]:
        """Return the messages of a command. A `DledgerResponse` among its bodies has arguments of its own."""
        bodies: Sequence[Any] = cmd.batch_bodies
        plain: Sequence[Any] = plain_bodies(bodies)
        if isinstance(self.codec, BatchCodecProto):
            encoded = await self.codec.encode_batch(plain, self.serializer)
        else:
            encoded = [await self.codec.encode(body, self.serializer) for body in plain]
        messages: list[Message] = []
        for given, (body, content_type) in zip(bodies, encoded, strict=True):
            own = given if isinstance(given, Response) else None
            own_sending = own.sending if isinstance(own, DledgerResponse) else Sending()
            messages.append(own_sending.over(cmd.sending).message(body, cmd.properties(content_type, own)))
        return messages

    def _connected(self) -> Producer:
        if self._client is None:
            raise IncorrectState("the broker is not connected: use 'async with broker', or start it")
        return self._client
