"""An application's function that cannot work is refused when it is passed."""

from functools import partial
from unittest.mock import AsyncMock, MagicMock

import pytest

from dledger_client import InvalidArgumentError, PushConsumer, SyncTransactionProducer, TransactionProducer


def plain(_message):
    pass


async def takes_none():
    pass


async def takes_two(_one, _two):
    pass


async def generator(_message):
    yield


class Handler:
    async def __call__(self, message):
        pass


NOT_AWAITABLE = [plain, lambda one: None, takes_none, takes_two, generator, Handler, partial(plain), MagicMock()]


def consumer(**options):
    return PushConsumer("127.0.0.1:9876", "CG", "T", **options)


@pytest.mark.parametrize("handler", NOT_AWAITABLE)
def test_a_handler_that_cannot_be_awaited_with_one_message_is_refused(handler):
    with pytest.raises(InvalidArgumentError, match=r"^handler=.*async def handler\(message\)"):
        consumer(handler=handler)


@pytest.mark.parametrize(
    "handler", [Handler(), Handler().__call__, partial(takes_two, 1), AsyncMock(), partial(AsyncMock())]
)
def test_every_awaitable_callable_of_one_message_is_a_handler(handler):
    consumer(handler=handler)


@pytest.mark.parametrize(
    ("strategy", "words"), [(takes_two, ""), (lambda queues: queues, ""), (AsyncMock(), ".*a plain one is expected")]
)
def test_a_strategy_that_is_asynchronous_or_takes_other_arguments_is_refused(strategy, words):
    with pytest.raises(InvalidArgumentError, match=f"^strategy={words}"):
        consumer(strategy=strategy)


transactions = partial(TransactionProducer, "127.0.0.1:9876", group="PG")
sync_transactions = partial(SyncTransactionProducer, "127.0.0.1:9876", group="PG")


@pytest.mark.parametrize("check", NOT_AWAITABLE)
def test_a_transaction_check_that_is_no_coroutine_function_is_refused(check):
    """Such a check would decide nothing, and the half messages would be given up after the last check-back."""
    with pytest.raises(InvalidArgumentError, match=r"^check=.*async def check\(transaction\)"):
        transactions(check=check)


@pytest.mark.parametrize("check", [Handler(), takes_none, takes_two, Handler().__call__])
def test_a_wrong_check_of_a_blocking_transaction_producer_is_refused(check):
    with pytest.raises(InvalidArgumentError, match=r"^check=.*'def check\(transaction\)"):
        sync_transactions(check=check)


def test_the_right_kinds_of_checks_are_taken():
    transactions(check=Handler())
    with sync_transactions(check=plain):
        pass
