"""A process's own name may be published after it has started."""

import logging
import socket
import threading

import pytest

from dledger.errors import ConfigError
from dledger.net import names
from dledger.net.names import first_address

FOUND = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.7", 0))]


async def test_it_is_waited_for_until_it_is_published_and_that_is_said_once(monkeypatch, caplog):
    failures = [socket.gaierror(socket.EAI_NONAME, "Name or service not known")] * 3
    monkeypatch.setattr(names, "RETRY_S", 0.001)

    def look_up(host, *_, **__):
        assert host == "mq-0.mq"
        if failures:
            raise failures.pop()
        return FOUND

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert await first_address("advertised_host", "mq-0.mq", socket.AF_INET) == "127.0.0.7"
    assert failures == []
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "event=waits_for_name key=advertised_host host='mq-0.mq'" in line
    assert "it has no IPv4 address yet: Name or service not known" in line


async def test_a_dns_that_does_not_answer_holds_no_thread_that_the_end_of_the_process_waits_for(monkeypatch):
    answered, asked = threading.Event(), []

    def look_up(*_, **__):
        asked.append(threading.current_thread())
        answered.wait()
        return FOUND

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    answered.set()
    await first_address("host", "mq-0.mq")
    assert [thread.daemon for thread in asked] == [True]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_an_address_is_taken_as_it_is(host, monkeypatch):
    monkeypatch.delattr(socket, "getaddrinfo")
    assert await first_address("host", host, socket.AF_INET) == host


@pytest.mark.parametrize("host", ["::1", "300.1.1.1", "10.1", "http://mq", "a b", "a..b", ""])
async def test_what_never_will_be_an_ipv4_address_is_an_error_that_names_the_key(host):
    with pytest.raises(ConfigError, match="advertised_host = "):
        await first_address("advertised_host", host, socket.AF_INET)


async def test_an_ipv6_address_is_an_address():
    assert await first_address("host", "::1") == "::1"
