"""Clients that send nothing count as gone, also if their streams stay open."""

from __future__ import annotations

import asyncio

import pytest
from conftest import consumer_settings

from dledger_proxy.grpc.callers import Caller
from dledger_proxy.grpc.clients import Channel, Clients
from dledger_proxy.registrations import Registration
from dledger_remoting.hosts import HostAddress
from dledger_remoting.speech import Speech

CALLER = Caller("client-1", Speech(HostAddress("127.0.0.1", 1)))


class KnownClients:
    """Stands for registrations at brokers: the clients that they list."""

    def __init__(self) -> None:
        self.listed: dict[str, Registration] = {}

    def put(self, client: Registration, _ext: object) -> None:
        self.listed[client.client_id] = client

    def speak(self, client_id: str, ext: object) -> None:
        pass

    def remove(self, client_id: str) -> None:
        self.listed.pop(client_id, None)


@pytest.fixture
async def known() -> KnownClients:
    return KnownClients()


@pytest.fixture
async def clients(known: KnownClients) -> Clients:
    return Clients(known, 10, lambda _: None)  # type: ignore[arg-type] - as far as clients use registrations


def later() -> float:
    return asyncio.get_running_loop().time() + 1


async def test_a_client_whose_stream_stays_open_without_heartbeats_is_not_listed_until_it_sends_again(clients, known):
    client = clients.open(CALLER, Channel())
    clients.settle(client, consumer_settings("orders", "readers"))
    clients.forget_unseen(asyncio.get_running_loop().time() - 1)
    assert "client-1" in known.listed
    clients.forget_unseen(later())
    assert known.listed == {}
    clients.forget_unseen(later())
    clients.seen(CALLER)
    assert known.listed == {"client-1": client.registration}


async def test_a_client_without_a_stream_and_without_heartbeats_is_forgotten(clients, known):
    channel = Channel()
    client = clients.open(CALLER, channel)
    clients.settle(client, consumer_settings("orders", "readers"))
    clients.forget_unseen(later())
    assert len(clients) == 1
    clients.close(client, channel)
    clients.forget_unseen(later())
    assert (len(clients), known.listed) == (0, {})
