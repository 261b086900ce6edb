"""Declarations of subscribers and publishers, for brokers and routers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, overload

from fast_depends.dependencies import Dependant
from faststream import AckPolicy
from faststream.exceptions import SetupError
from faststream.types import BrokerMiddleware

from dledger_client import Filter, StartFrom

from . import publisher as publishers
from . import subscriber as subscribers
from .connections import DledgerBrokerConfig
from .internals import EMPTY, CallsCollection, CodecProto, CustomCallable, Registrator
from .message import Batch, Raw
from .publisher import BatchPublisher, DefaultPublisher
from .response import Sending
from .subscriber import BatchSubscriber, SingleSubscriber
from .subscriptions import Mode, Subscription

Received: TypeAlias = Raw | Batch
"""Message or batch as the middlewares of a broker see it."""


class SubscriberOptions(TypedDict, total=False):
    """Arguments of `DledgerBroker.subscriber` beside topics, group and batch."""

    mode: Mode
    filter: Filter
    start_from: StartFrom
    max_workers: int
    max_reconsume_times: int | None
    offset_file: str | Path | None
    invisible: float
    max_messages: int
    batch_wait: float
    ack_policy: AckPolicy
    no_reply: bool
    dependencies: Sequence[Dependant]
    parser: CustomCallable | None
    decoder: CustomCallable | None
    codec: CodecProto | None
    persistent: bool
    title: str | None
    description: str | None
    include_in_schema: bool


class PublisherOptions(TypedDict, total=False):
    """Arguments of `DledgerBroker.publisher` beside topic and batch."""

    key: str | Sequence[str] | None
    tags: str | None
    headers: dict[str, str] | None
    ordering_key: str | None
    delay_s: float | None
    deliver_at: datetime | int | None
    reply_to: str
    persistent: bool
    title: str | None
    description: str | None
    schema: object | None
    include_in_schema: bool


class DledgerRegistrator(Registrator[Received, DledgerBrokerConfig]):
    """Common part of brokers and routers: `subscriber`, `publisher` and `include_router`."""

    @overload  # type: ignore[override]  # has the arguments of our broker
    def subscriber(
        self, *topics: str, group: str, batch: Literal[False] = False, **options: Unpack[SubscriberOptions]
    ) -> SingleSubscriber: ...

    @overload
    def subscriber(
        self, *topics: str, group: str, batch: Literal[True], **options: Unpack[SubscriberOptions]
    ) -> BatchSubscriber: ...

    @overload
    def subscriber(
        self, *topics: str, group: str, batch: bool, **options: Unpack[SubscriberOptions]
    ) -> SingleSubscriber | BatchSubscriber: ...

    def subscriber(
        self,
        *topics: str,
        group: str,
        batch: bool = False,
        mode: Mode = "push",
        filter: Filter = "*",  # noqa: A002 -- as all consumers have it
        start_from: StartFrom = "first",
        max_workers: int = 1,
        max_reconsume_times: int | None = None,
        offset_file: str | Path | None = None,
        invisible: float = 30.0,
        max_messages: int = 32,
        batch_wait: float = 0.1,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> SingleSubscriber | BatchSubscriber:
        """Declare a subscriber of topics, as a member of a consumer group. Use it as a decorator of its handlers.

        | argument | meaning |
        |---|---|
        | `topics`, `group` | topics, before which the prefixes of routers come, and the consumer group |
        | `mode` | "push": the members of the group share the queues. "ordered": and handle each queue in order. "broadcast": each member gets everything. "simple": members share single messages of one topic |
        | `filter` | tags (`"a || b"`), `Sql("amount > 100")` or a `ClassFilter` |
        | `start_from` | start of a new group: "first", "last", or a time in ms since 1970 |
        | `max_workers` | number of messages in work; in the mode "ordered", of queues |
        | `max_reconsume_times` | number of times that a failed message comes again; None: as the group's settings say |
        | `offset_file` | file of a member's offsets, for the mode "broadcast" |
        | `invisible` | time in seconds for which a taken message is hidden, for the mode "simple"; renewed while a handler works |
        | `batch` | handlers get lists, of up to `max_messages` messages, that wait up to `batch_wait` seconds to be filled |
        | `ack_policy` | what ends a message; by default a message comes again if its handler raises (NACK_ON_ERROR) |
        | others | as in all brokers of FastStream |

        Raises `SetupError` if the arguments exclude each other.
        """  # noqa: E501 -- rows of a table
        subscription = Subscription(
            topics=topics,
            group=group,
            mode=mode,
            filter=filter,
            max_workers=max_workers,
            batch=batch,
            start_from=start_from,
            max_reconsume_times=max_reconsume_times,
            offset_file=None if offset_file is None else Path(offset_file),
            invisible=invisible,
        )
        subscription.check()
        subscription.check_policy(ack_policy)
        if max_messages < 1:
            raise SetupError(f"max_messages={max_messages}: a batch has at least one message")
        config = subscribers.SubscriberConfig(
            _outer_config=self.config,  # type: ignore[arg-type]  # a composition answers for the configuration
            _ack_policy=ack_policy,
            no_reply=no_reply,
            subscription=subscription,
            max_messages=max_messages,
            batch_wait=batch_wait,
        )
        calls: CallsCollection[Any] = CallsCollection()
        specification = subscribers.Specification(
            self.config,  # type: ignore[arg-type]
            subscribers.SpecificationConfig(
                topics=topics, title_=title, description_=description, include_in_schema=include_in_schema
            ),
            calls,
        )
        made: SingleSubscriber | BatchSubscriber = (
            BatchSubscriber(config, specification, calls) if batch else SingleSubscriber(config, specification, calls)
        )
        super().subscriber(made, persistent=persistent)
        made.add_call(parser_=parser, decoder_=decoder, dependencies_=dependencies, codec_=codec)
        return made

    @overload  # type: ignore[override]  # has the arguments of our broker
    def publisher(
        self, topic: str, *, batch: Literal[False] = False, **options: Unpack[PublisherOptions]
    ) -> DefaultPublisher: ...

    @overload
    def publisher(self, topic: str, *, batch: Literal[True], **options: Unpack[PublisherOptions]) -> BatchPublisher: ...

    @overload
    def publisher(
        self, topic: str, *, batch: bool, **options: Unpack[PublisherOptions]
    ) -> DefaultPublisher | BatchPublisher: ...

    def publisher(
        self,
        topic: str,
        *,
        batch: bool = False,
        key: str | Sequence[str] | None = None,
        tags: str | None = None,
        headers: dict[str, str] | None = None,
        ordering_key: str | None = None,
        delay_s: float | None = None,
        deliver_at: datetime | int | None = None,
        reply_to: str = "",
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: object | None = None,
        include_in_schema: bool = True,
    ) -> DefaultPublisher | BatchPublisher:
        """Declare a publisher to a topic. Use it as a decorator of handlers, or by its method `publish`.

        The arguments of the send (`DledgerBroker.publish`) apply to publications that do not give their own. With
        `batch`, a handler's list is sent as several messages. The rest is as in all brokers of FastStream.
        """
        sending = Sending(key=key, tags=tags, ordering_key=ordering_key, delay_s=delay_s, deliver_at=deliver_at)
        config = publishers.PublisherConfig(
            _outer_config=self.config,  # type: ignore[arg-type]
            topic=topic,
            sending=sending,
            headers=headers or {},
            reply_to=reply_to,
        )
        specification = publishers.Specification(
            self.config,
            publishers.SpecificationConfig(
                topic=topic,
                schema_=schema,
                title_=title,
                description_=description,
                include_in_schema=include_in_schema,
            ),
        )
        made = BatchPublisher(config, specification) if batch else DefaultPublisher(config, specification)
        super().publisher(made, persistent=persistent)
        return made

    def include_router(
        self,
        router: Registrator[Received, Any],
        *,
        prefix: str = "",
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        include_in_schema: bool | None = None,
    ) -> None:
        """Add the subscribers and publishers of a router. Raises `SetupError` for the router of another broker."""
        if not isinstance(router, DledgerRegistrator):
            raise SetupError(f"{type(router).__name__} is no router of this broker: use DledgerRouter")
        super().include_router(
            router,
            prefix=prefix,
            dependencies=dependencies,
            middlewares=middlewares,
            include_in_schema=include_in_schema,
        )
