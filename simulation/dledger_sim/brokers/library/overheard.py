"""Listener on a client's connection: it reports the client's commits, and the locks that it gets and gives up."""

from __future__ import annotations

from typing import Protocol

from dledger_remoting.bodies import decode_body
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, decode_command
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.headers import UpdateConsumerOffsetHeader, decode_ext
from dledger_remoting.queue_locks import LockedQueuesBody, QueueLocksBody
from dledger_sim.brokers.expected import OffsetKey


class Listener(Protocol):
    """Receiver of all data that one process sends and receives."""

    def asked(self) -> None:
        """Note a request of the process."""

    def commits(self, key: OffsetKey, offset: int) -> None:
        """Note a commit that the process has written."""

    def refused(self, key: OffsetKey) -> None:
        """Note that one of its commits was refused for now."""

    def granted(self, key: OffsetKey, asked_at: float) -> None:
        """Note that the process was granted a lock, which it requested at `asked_at`."""

    def unlocks(self, key: OffsetKey) -> None:
        """Note that the process gives a lock up."""


class Overheard:
    """Observer of both directions of a connection."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._sent_frames = FrameDecoder()
        self._received_frames = FrameDecoder()
        self._commits: dict[int, OffsetKey] = {}
        """Queues of commits without an answer, by request number."""
        self._lock_requests: dict[int, tuple[str, float]] = {}
        """Groups for which locks were requested, with the time, by request number."""

    def says(self, data: bytes, now: float) -> None:
        """Observe bytes that the client writes."""
        self._sent_frames.receive_data(data)
        while (frame := self._sent_frames.next_frame()) is not None:
            command = decode_command(frame)
            if not command.is_response:
                self._listener.asked()
                self._observe_request(command, now)

    def _observe_request(self, command: RemotingCommand, now: float) -> None:
        if command.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            header = decode_ext(UpdateConsumerOffsetHeader, command.ext)
            key = self._commits[command.opaque] = (header.consumer_group, header.topic, header.queue_id)
            self._listener.commits(key, header.commit_offset)
        elif command.code == RequestCode.LOCK_BATCH_MQ:
            locks = decode_body(QueueLocksBody, command.body)
            self._lock_requests[command.opaque] = (locks.consumer_group, now)
        elif command.code == RequestCode.UNLOCK_BATCH_MQ:
            unlocks = decode_body(QueueLocksBody, command.body)
            for queue in unlocks.mq_set:
                self._listener.unlocks((unlocks.consumer_group, queue.topic, queue.queue_id))

    def hears(self, data: bytes) -> None:
        """Observe bytes that the client reads."""
        self._received_frames.receive_data(data)
        while (frame := self._received_frames.next_frame()) is not None:
            command = decode_command(frame)
            if command.is_response:
                self._observe_answer(command)

    def _observe_answer(self, command: RemotingCommand) -> None:
        committed = self._commits.pop(command.opaque, None)
        if committed is not None and command.code == ResponseCode.SYSTEM_BUSY:
            self._listener.refused(committed)
        group, asked_at = self._lock_requests.pop(command.opaque, ("", 0.0))
        if group and command.code == ResponseCode.SUCCESS:
            for queue in decode_body(LockedQueuesBody, command.body).queues:
                self._listener.granted((group, queue.topic, queue.queue_id), asked_at)
