"""A function of the application that cannot work is refused where it is given."""

from functools import partial

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


def consumer(**options):
    return PushConsumer("127.0.0.1:9876", "CG", "T", **options)


@pytest.mark.parametrize(
    "handler", [plain, lambda message: None, takes_none, takes_two, generator, Handler, partial(plain)]
)
def test_a_handler_that_is_no_coroutine_function_of_one_message_is_refused(handler):
    with pytest.raises(InvalidArgumentError, match=r"^handler=.*async def handler\(message\)"):
        consumer(handler=handler)


@pytest.mark.parametrize("handler", [Handler(), Handler().__call__, partial(takes_two, 1)])
def test_whatever_is_awaited_with_one_message_is_a_handler(handler):
    consumer(handler=handler)


@pytest.mark.parametrize("strategy", [takes_two, lambda queues: queues])
def test_a_strategy_that_is_asynchronous_or_takes_other_arguments_is_refused(strategy):
    with pytest.raises(InvalidArgumentError, match=r"^strategy="):
        consumer(strategy=strategy)


def test_an_asynchronous_strategy_is_refused():
    async def strategy(_client_id, _client_ids, _queues):
        return []

    with pytest.raises(InvalidArgumentError, match="a plain one is expected"):
        consumer(strategy=strategy)


def transactions(check):
    return TransactionProducer("127.0.0.1:9876", group="PG", check=check)


def sync_transactions(check):
    return SyncTransactionProducer("127.0.0.1:9876", group="PG", check=check)


@pytest.mark.parametrize(
    "check", [plain, lambda transaction: None, takes_none, takes_two, generator, Handler, partial(plain)]
)
def test_a_check_of_transactions_that_is_no_coroutine_function_of_one_is_refused(check):
    """It would decide nothing, ever: what nobody ends would be given up after its last check."""
    with pytest.raises(InvalidArgumentError, match=r"^check=.*async def check\(transaction\)"):
        transactions(check)


@pytest.mark.parametrize("check", [Handler(), takes_none, takes_two, Handler().__call__])
def test_a_check_of_a_blocking_producer_that_is_asynchronous_or_takes_other_arguments_is_refused(check):
    with pytest.raises(InvalidArgumentError, match=r"^check=.*'def check\(transaction\)"):
        sync_transactions(check)


def test_the_right_kinds_of_checks_are_taken():
    transactions(Handler())
    with sync_transactions(plain):
        pass
