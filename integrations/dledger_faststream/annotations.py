"""Annotations of handlers' arguments: FastStream passes the message or the broker for them."""

from __future__ import annotations

from typing import Annotated

from faststream import Context
from faststream.annotations import ContextRepo, Logger
from faststream.params import NoCast

from .broker import DledgerBroker as _Broker
from .message import DledgerBatchMessage as _Batch
from .message import DledgerMessage as _Message

__all__ = ["ContextRepo", "DledgerBatchMessage", "DledgerBroker", "DledgerMessage", "Logger", "NoCast"]

DledgerMessage = Annotated[_Message, Context("message")]
"""The message that is handled."""
DledgerBatchMessage = Annotated[_Batch, Context("message")]
"""The batch that is handled."""
DledgerBroker = Annotated[_Broker, Context("broker")]
"""The broker that the message came from."""
