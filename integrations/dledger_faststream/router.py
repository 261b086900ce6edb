"""Routers: subscribers and publishers that are declared apart from the broker, and included in it later."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Unpack

from fast_depends.dependencies import Dependant
from faststream import AckPolicy
from faststream.types import BrokerMiddleware, SendableMessage

from .connections import DledgerBrokerConfig
from .internals import EMPTY, ArgsContainer, BrokerRouter, CodecProto, CustomCallable, SubscriberRoute
from .registrator import DledgerRegistrator, PublisherOptions, Received, SubscriberOptions


class DledgerPublisher(ArgsContainer):
    """A publisher of a `DledgerRoute`, with the arguments of `DledgerBroker.publisher`."""

    def __init__(self, topic: str, *, batch: bool = False, **options: Unpack[PublisherOptions]) -> None:
        super().__init__(topic, batch=batch, **options)


class DledgerRoute(SubscriberRoute):
    """A handler with its publishers and the arguments of `DledgerBroker.subscriber`, for `DledgerRouter(handlers=)`."""

    def __init__(
        self,
        call: Callable[..., SendableMessage] | Callable[..., Awaitable[SendableMessage]],
        *topics: str,
        group: str,
        batch: bool = False,
        publishers: Iterable[DledgerPublisher] = (),
        **options: Unpack[SubscriberOptions],
    ) -> None:
        super().__init__(call, *topics, publishers=publishers, group=group, batch=batch, **options)


class DledgerRouter(DledgerRegistrator, BrokerRouter[Received, DledgerBrokerConfig]):
    """Subscribers and publishers, to be included in a `DledgerBroker`. `prefix` comes before the names of all topics.

    Middlewares, dependencies, parser, decoder and acknowledgement policy apply to all of them, as in all brokers of
    FastStream.
    """

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[DledgerRoute] = (),
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[DledgerRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        ack_policy: AckPolicy = EMPTY,
        include_in_schema: bool | None = None,
    ) -> None:
        super().__init__(
            handlers=handlers,
            config=DledgerBrokerConfig(
                prefix=prefix,
                broker_middlewares=middlewares,
                broker_dependencies=dependencies,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                ack_policy=ack_policy,
                include_in_schema=include_in_schema,
            ),
            routers=routers,
        )
