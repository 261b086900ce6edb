"""FastStream's internals: the only module that imports them, after a check of FastStream's version.

FastStream 0.7 keeps in `faststream._internal` what a broker is made of. Another minor version may have changed it, so
that this module refuses the version before it imports anything.
"""

from __future__ import annotations

import re

from dledger_base.extras import install_command

try:
    from faststream.__about__ import __version__ as _version
except ModuleNotFoundError as error:
    if error.name != "faststream":
        raise
    raise ImportError(f"dledger_faststream needs FastStream 0.7: {install_command('faststream')}") from None

if not re.match(r"0\.7\.([89]|\d\d)", _version):
    raise ImportError(
        f"dledger_faststream works with FastStream 0.7 from 0.7.8 on, not with {_version}: "
        "pip install 'faststream>=0.7.8,<0.8'"
    )

from faststream._internal.broker import BrokerRouter, BrokerUsecase
from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import ArgsContainer, SubscriberRoute
from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
    UnderlyingDriverAnnotations,
)
from faststream._internal.constants import EMPTY
from faststream._internal.context import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.endpoint.publisher import PublisherProto, PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.subscriber.mixins import TasksMixin
from faststream._internal.endpoint.utils import ParserComposition, process_msg
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream._internal.parser import BatchCodecProto, CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream._internal.types import CustomCallable, IdGenerator, MsgType

__all__ = [
    "EMPTY",
    "ArgsContainer",
    "BatchCodecProto",
    "BrokerConfig",
    "BrokerRouter",
    "BrokerUsecase",
    "CallsCollection",
    "CodecProto",
    "ContextRepo",
    "CustomCallable",
    "DefaultCodec",
    "DefaultLoggerStorage",
    "EnterType",
    "FakePublisher",
    "FastDependsConfig",
    "IdGenerator",
    "MsgType",
    "ParserComposition",
    "ProducerProto",
    "PublisherProto",
    "PublisherSpecification",
    "PublisherSpecificationConfig",
    "PublisherUsecase",
    "PublisherUsecaseConfig",
    "Registrator",
    "SubscriberRoute",
    "SubscriberSpecification",
    "SubscriberSpecificationConfig",
    "SubscriberUsecase",
    "SubscriberUsecaseConfig",
    "TasksMixin",
    "TestBroker",
    "UnderlyingDriverAnnotations",
    "change_producer",
    "get_broker_logger",
    "make_logger_state",
    "process_msg",
]
