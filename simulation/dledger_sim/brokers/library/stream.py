"""Connection of a client process to a simulated node: bytes on the client's side, an `Origin` on the node's."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, decode_command, encode_command
from dledger_remoting.frame import FrameDecoder, split_frames
from dledger_remoting.hosts import HostAddress
from dledger_sim.brokers.connection import SimConnection
from dledger_sim.brokers.library.wires import Pipe
from dledger_sim.log.group import Life, SimGroup


class StreamConnection(SimConnection):
    """Connection that implements `dledger_sim.brokers.library.wires.Peer`. `deliver` gets the node's bytes.

    `is_alone` returns whether the client is cut off now.
    """

    def __init__(
        self,
        group: SimGroup,
        life: Life,
        random: Random,
        address: HostAddress,
        number: int,
        deliver: Callable[[bytes | None], None],
        is_alone: Callable[[], bool],
    ) -> None:
        super().__init__(group, life, random, address, number)

        def is_cut() -> bool:
            return is_alone() or life.node.name in group.unreachable

        self._inbox = b""
        self._to_node = Pipe(group.scheduler, random, self._schedule_at_node, self._read_piece, is_cut)
        self._to_client = Pipe(group.scheduler, random, group.scheduler.at, deliver, is_cut)

    def _schedule_at_node(self, moment: float, callback: Callable[[], None]) -> None:
        self._life.environment.call_at(self._find_turn_after(moment), callback)

    def feed(self, data: bytes) -> None:
        """Send bytes to the node."""
        self._to_node.send(data)

    def leave(self) -> None:
        """Hang up."""
        self._to_node.hang_up()

    def _read_piece(self, piece: bytes | None) -> None:
        if piece is None:
            self._is_open = False
            self._broker.on_closed(self)
            return
        if self._broker.is_deaf:
            return
        data = self._inbox + piece
        frames, end = split_frames(data, len(data))
        self._inbox = data[end:]
        if frames:
            self._note_requests(data[:end])
            self._broker.on_frames(self, data, frames)

    def _note_requests(self, data: bytes) -> None:
        decoder = FrameDecoder()
        decoder.receive_data(data)
        while (frame := decoder.next_frame()) is not None:
            command = decode_command(frame)
            if not command.is_response and not command.is_oneway:
                self._unanswered[command.opaque] = command.code

    # ---------------------------------------------------------------- the node's side

    def answer_frame(self, frame: bytes) -> None:
        """Answer a request with a frame."""
        self._count_settled()
        self._decoder.receive_data(frame)
        answered = self._decoder.next_frame()
        assert answered is not None
        self._unanswered.pop(decode_command(answered).opaque, None)
        self._to_client.send(frame)

    def push(self, code: int, ext: dict[str, str], body: bytes = b"", *, oneway: bool = True) -> int:
        """Send a request to the client, and return its number."""
        flag = FLAG_ONEWAY if oneway else 0
        command = RemotingCommand(
            code, opaque=next(self._numbers), flag=flag, ext=ext, body=body, serialize_type=self.serialize_type
        )
        self._to_client.send(encode_command(command))
        return command.opaque

    def _handle_death(self) -> None:
        self._is_open = False
        self._to_client.hang_up()
