"""Connections never take the descriptors that are kept for files and peers."""

import asyncio
import errno
import os

import pytest

from dledger_base import accepting
from dledger_base.accepting import MAX_RESERVE, Port, Reserve, descriptors_for


@pytest.mark.parametrize(
    ("limit", "clients", "peers"), [(1 << 20, (1 << 20) - 2 * MAX_RESERVE, (1 << 20) - MAX_RESERVE), (200, 150, 175)]
)
def test_connections_may_use_the_descriptors_beyond_a_reserve(limit, clients, peers):
    assert (descriptors_for(Reserve.CLIENTS, limit), descriptors_for(Reserve.PEERS, limit)) == (clients, peers)


@pytest.mark.parametrize("has_room", [False, True])
async def test_a_reserved_descriptor_is_used_only_if_a_connection_makes_room(monkeypatch, has_room):
    taken = []

    class Guest(asyncio.Protocol):
        def connection_made(self, transport):
            taken.append(transport)
            transport.write(b"in")

    port = await Port.bind("127.0.0.1", 0, lambda host: Guest(), lambda: has_room)
    port.start_serving()
    async with asyncio.timeout(20):
        probe = os.dup(port.sockets[0].fileno())
        os.close(probe)
        monkeypatch.setattr(accepting, "descriptors_for", lambda kept: probe)
        reader, refused = await asyncio.open_connection(*port.address)
        if has_room:
            assert await reader.readexactly(2) == b"in"
        else:
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        refused.close()
        assert len(taken) == has_room
        monkeypatch.undo()
        reader, writer = await asyncio.open_connection(*port.address)
        assert await reader.readexactly(2) == b"in"
        writer.close()
        for transport in taken:
            transport.close()
    port.close()


class Troubled:
    """A listening socket whose next connection was ended by the network before it is accepted."""

    def __init__(self, listening):
        self._listening = listening
        self._errors = [OSError(errno.EPROTO, "Protocol error")]

    def __getattr__(self, name):
        return getattr(self._listening, name)

    def accept(self):
        if self._errors:
            raise self._errors.pop()
        return self._listening.accept()


async def test_what_the_network_did_to_a_connection_before_it_was_accepted_is_no_fault_of_the_port():
    faults = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))

    class Guest(asyncio.Protocol):
        def connection_made(self, transport):
            transport.write(b"in")
            transport.close()

    port = await Port.bind("127.0.0.1", 0, lambda host: Guest(), lambda: False)
    port.sockets = [Troubled(port.sockets[0])]
    port.start_serving()
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(*port.address)
        assert await reader.readexactly(2) == b"in"
        writer.close()
    port.close()
    assert faults == []
