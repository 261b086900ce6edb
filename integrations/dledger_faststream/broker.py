"""The broker: the object that an application declares its subscribers and publishers on, and starts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Annotated, Any, Final

import anyio
from fast_depends import Provider, dependency_provider
from fast_depends.dependencies import Dependant
from fast_depends.library.serializer import SerializerProto
from faststream import AckPolicy, Context, PublishType, UnderlyingDriverAnnotation
from faststream.message import gen_cor_id
from faststream.security import BaseSecurity
from faststream.specification.schema import BrokerSpec, Tag, TagDict
from faststream.types import BrokerMiddleware, LoggerProto, SendableMessage

from dledger_client import ClientError, Credentials, Producer, SendResult, Tls

from .connections import Connection, DledgerBrokerConfig
from .internals import (
    EMPTY,
    BrokerUsecase,
    CodecProto,
    ContextRepo,
    CustomCallable,
    DefaultLoggerStorage,
    FastDependsConfig,
    IdGenerator,
    UnderlyingDriverAnnotations,
    get_broker_logger,
    make_logger_state,
)
from .message import DledgerMessage, DledgerReply
from .producer import DledgerProducer
from .registrator import DledgerRegistrator, Received
from .response import DledgerPublishCommand, DledgerResponse, Sending, filled
from .subscriber import LogicSubscriber
from .subscriptions import Subscription

_MESSAGE_ID_CHARS: Final = 32
_PING_SECONDS: Final = 3.0


class _LogColumns(DefaultLoggerStorage):
    """Widths of the columns of log lines, and the logger that writes them."""

    def __init__(self) -> None:
        super().__init__()
        self._widths = {"topic": 4, "group": 5}

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Widen the columns for a subscriber."""
        for name, width in self._widths.items():
            self._widths[name] = max(width, len(params.get(name, "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        """Return the logger of this broker."""
        logger = self._get_logger_ref()
        if logger is None:
            topic, group = self._widths["topic"], self._widths["group"]
            logger = get_broker_logger(
                name="dledger",
                default_context={"topic": "", "group": ""},
                message_id_ln=_MESSAGE_ID_CHARS,
                fmt=(
                    f"%(asctime)s %(levelname)-8s - %(topic)-{topic}s | %(group)-{group}s | "
                    f"%(message_id)-{_MESSAGE_ID_CHARS}s - %(message)s"
                ),
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger


class DledgerBroker(DledgerRegistrator, BrokerUsecase[Received, Producer, DledgerBrokerConfig]):
    """A broker of FastStream whose messages are in a cluster of dledger-mq, or of RocketMQ.

        broker = DledgerBroker("127.0.0.1:9876")

        @broker.subscriber("orders", group="billing")
        @broker.publisher("invoices")
        async def bill(order: Order) -> Invoice: ...

    | argument | meaning |
    |---|---|
    | `name_servers` | addresses, "host:port;host:port" or a list |
    | `producer_group`, `timeout`, `idempotent`, `trace` | those of `Producer` |
    | `start_timeout` | time limit in seconds for the first answer of a name server; None: it may come later |
    | `namespace`, `credentials`, `tls` | those of all clients |
    | `graceful_timeout` | time limit in seconds for the messages in work when the broker stops; None: none |
    | `ack_policy` | policy of subscribers that have none; by default a message comes again if its handler raises |
    | `specification_url`, `protocol`, `protocol_version`, `description`, `tags`, `security` | the server in the AsyncAPI document |
    | others | as in all brokers of FastStream |
    """  # noqa: E501 -- rows of a table

    def __init__(
        self,
        name_servers: str | Sequence[str] = "127.0.0.1:9876",
        *,
        producer_group: str = "DEFAULT_PRODUCER",
        timeout: float = 10.0,
        idempotent: bool = False,
        start_timeout: float | None = 10.0,
        namespace: str | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        trace: bool | str = False,
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        id_generator: IdGenerator = gen_cor_id,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        parser: CustomCallable | None = None,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[DledgerRegistrator] = (),
        security: BaseSecurity | None = None,
        specification_url: str | Iterable[str] | None = None,
        protocol: str | None = None,
        protocol_version: str | None = None,
        description: str | None = None,
        tags: Iterable[Tag | TagDict] = (),
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        provider: Provider | None = None,
        serializer: SerializerProto | None = EMPTY,
        context: ContextRepo | None = None,
        underlying_driver_annotations: UnderlyingDriverAnnotations | None = None,
    ) -> None:
        connection = Connection(
            name_servers=name_servers,
            producer_group=producer_group,
            timeout=timeout,
            idempotent=idempotent,
            start_timeout=start_timeout,
            namespace=namespace,
            credentials=credentials,
            tls=tls,
            trace=trace,
        )
        connection.producer()  # refuses a wrong argument here, where it was given
        if specification_url is None:
            urls = connection.addresses
        else:
            urls = [specification_url] if isinstance(specification_url, str) else list(specification_url)
        super().__init__(
            routers=routers,
            config=DledgerBrokerConfig(
                connection=connection,
                producer=DledgerProducer(parser, decoder),
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                broker_middlewares=middlewares,
                broker_dependencies=dependencies,
                logger=make_logger_state(logger=logger, log_level=log_level, default_storage_cls=_LogColumns),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                id_generator=id_generator,
                extra_context={"broker": self},
                default_driver_annotations={
                    driver: UnderlyingDriverAnnotation(
                        type_hint=Annotated[driver, Context(name)],
                        module="dledger_faststream.annotations",
                        name=driver.__name__,
                    )
                    for driver, name in ((DledgerBroker, "broker"), (DledgerMessage, "message"))
                },
                underlying_driver_annotations=underlying_driver_annotations or {},
            ),
            specification=BrokerSpec(
                url=urls,
                protocol=protocol or ("rocketmq-secure" if tls else "rocketmq"),
                protocol_version=protocol_version,
                description=description,
                tags=tags,
                security=security,
            ),
        )

    async def start(self) -> None:
        """Connect, and start all subscribers. Raises `ClientError` if no name server answers in `start_timeout` s.

        Raises `SetupError` if two subscribers have one group for different things.
        """
        self.check_subscriptions()
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Finish the messages in work, stop all subscribers, and then wait for the sends under way."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            await self.config.disconnect()
            self._connection = None

    async def ping(self, timeout: float | None = None) -> bool:
        """Return whether a name server answers within `timeout` seconds (3) and knows a broker group with a leader."""
        limit_s = _PING_SECONDS if timeout is None else timeout
        with anyio.move_on_after(limit_s):
            try:
                return await self.config.broker_config.connection.has_leader(limit_s)
            except ClientError:
                return False
        return False

    async def publish(
        self,
        message: SendableMessage,
        topic: str,
        *,
        key: str | Sequence[str] | None = None,
        tags: str | None = None,
        headers: dict[str, str] | None = None,
        ordering_key: str | None = None,
        unique_key: str | None = None,
        delay_s: float | None = None,
        deliver_at: datetime | int | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        idempotent: bool | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Publish a message, and wait until a majority of its broker group has stored it.

        `headers` become properties, by which `Sql` filters select. `reply_to` is the topic to which the results of
        handlers go. The other arguments are those of `Producer.send`. Returns where the message is stored. Raises the
        errors of `Producer.send`: `InvalidArgumentError` and `SendError`.
        """
        sending = Sending(
            key=key, tags=tags, ordering_key=ordering_key, unique_key=unique_key, delay_s=delay_s, deliver_at=deliver_at
        )
        cmd = DledgerPublishCommand(
            message,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            sending=sending,
            idempotent=idempotent,
            timeout=timeout,
            _publish_type=PublishType.PUBLISH,
        )
        result: SendResult = await self._basic_publish(cmd, producer=self.config.producer)
        return result

    async def publish_batch(  # type: ignore[override]  # has the arguments of our broker
        self,
        *messages: SendableMessage | DledgerResponse,
        topic: str,
        key: str | Sequence[str] | None = None,
        tags: str | None = None,
        headers: dict[str, str] | None = None,
        ordering_key: str | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        idempotent: bool | None = None,
        timeout: float | None = None,
    ) -> list[SendResult]:
        """Publish messages in their order, many times faster than one by one. Returns where each is stored.

        A `DledgerResponse` among them has its own headers, key, tag and delay. Raises the errors of
        `Producer.send_batch`.
        """
        cmd = DledgerPublishCommand(
            *filled(messages),
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            sending=Sending(key=key, tags=tags, ordering_key=ordering_key),
            idempotent=idempotent,
            timeout=timeout,
            _publish_type=PublishType.PUBLISH,
        )
        results: list[SendResult] = await self._basic_publish_batch(cmd, producer=self.config.producer)
        return results

    async def request(  # type: ignore[override]  # has the arguments of our broker
        self,
        message: SendableMessage,
        topic: str,
        *,
        key: str | Sequence[str] | None = None,
        tags: str | None = None,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        timeout: float | None = None,
    ) -> DledgerReply:
        """Publish a message, and return the reply: the result of a handler of one consumer.

        `timeout` limits both, in seconds. Raises the errors of `Producer.request`: `DeadlineError` without a reply in
        time. The message is stored then, and may be handled later.
        """
        cmd = DledgerPublishCommand(
            message,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            sending=Sending(key=key, tags=tags),
            timeout=timeout,
            _publish_type=PublishType.REQUEST,
        )
        reply: DledgerReply = await self._basic_request(cmd, producer=self.config.producer)
        return reply

    def check_subscriptions(self) -> None:
        """Raise `SetupError` if a subscriber cannot run as declared, or two have one group for different things."""
        checked: list[Subscription] = []
        for subscriber in self.subscribers:
            assert isinstance(subscriber, LogicSubscriber), "this class registers no others"
            subscriber.check(checked)
            checked.append(subscriber.subscription)

    async def _connect(self) -> Producer:
        return await self.config.broker_config.connect()
