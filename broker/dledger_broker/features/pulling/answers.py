"""Answers to pulls: messages, or no messages, or the offset at which the reader has to continue."""

from __future__ import annotations

from typing import Final

from dledger_broker.clients.readers import Readers
from dledger_broker.features.pulling.placement import Placement
from dledger_broker.features.quotas.gate import QuotaGate
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import TopicState
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.views.reading import GetResult, ReadStatus
from dledger_remoting.codes import ResponseCode
from dledger_remoting.headers import PullResponseHeader, encode_ext
from dledger_remoting.hotpath import PullFields, pull_response_head
from dledger_remoting.record import physical_offset_of

CODES: Final = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
"""Code for each outcome of reading a queue."""

TOPIC_MADE_AGAIN: Final = "TOPIC_MADE_AGAIN"
"""Remark of an answer to a pull whose offset belongs to an earlier creation of its topic."""


class PullAnswers:
    """Writer of answers, which counts the messages that they deliver."""

    def __init__(
        self,
        machine: BrokerMachine,
        counters: BrokerCounters,
        requests: Requests,
        placement: Placement,
        readers: Readers,
        quotas: QuotaGate,
    ) -> None:
        self._machine = machine
        self._counters = counters
        self._requests = requests
        self._placement = placement
        self._readers = readers
        self._quotas = quotas

    def read(self, request: Request, fields: PullFields, result: GetResult, parts: list[bytes]) -> None:
        if result.status is ReadStatus.FOUND:
            self.found(request, fields, result, parts)
        else:
            self.nothing(request, fields, CODES[result.status], result.next_begin, result)

    def found(self, request: Request, fields: PullFields, result: GetResult, parts: list[bytes]) -> None:
        self._counters.count_delivery(fields.consumer_group, fields.topic, result.message_count, result.size)
        self._quotas.charge(request, fields.topic, result.message_count, result.size)
        if request.is_oneway:
            request.origin.settle()
            return
        behind_bytes = self._machine.applied_position - physical_offset_of(parts[0])
        head = pull_response_head(
            request.opaque,
            ResponseCode.SUCCESS,
            result.next_begin,
            result.min_offset,
            result.max_offset,
            self._placement.next_id(fields.topic, fields.queue_id, behind_bytes),
            body_bytes=result.size,
            remark=ReadStatus.FOUND,
            serialize_type=request.serialize_type,
        )
        request.origin.answer((head, *parts))

    def nothing(self, request: Request, fields: PullFields, code: int, next_begin: int, result: GetResult) -> None:
        self._counters.reads_missed += 1
        if request.is_oneway:
            request.origin.settle()
            return
        behind_bytes = None if code == ResponseCode.PULL_RETRY_IMMEDIATELY else 0
        request.origin.answer_frame(
            pull_response_head(
                request.opaque,
                code,
                next_begin,
                result.min_offset,
                result.max_offset,
                self._placement.next_id(fields.topic, fields.queue_id, behind_bytes),
                remark=result.status,
                serialize_type=request.serialize_type,
            )
        )

    def made_again(self, request: Request, fields: PullFields, topic: TopicState) -> None:
        """Answer with 21: the offset belongs to an earlier creation of the topic, so all messages are new to the
        client.

        A node that lags may still know the earlier creation, so the pull goes to the leader first.
        """
        if not request.confirmed:
            self._requests.confirm(request)
            return
        queue, created = topic.queue(fields.queue_id), topic.created_position
        self._readers.forget(fields.consumer_group, fields.topic, fields.queue_id)
        self._counters.reads_missed += 1
        header = PullResponseHeader(0, queue.min_offset, queue.min_offset, queue.max_offset, created)
        request.respond(ResponseCode.PULL_OFFSET_MOVED, TOPIC_MADE_AGAIN, encode_ext(header))

    def reset(self, request: Request, fields: PullFields, offset: int) -> None:
        """Answer with 21: the group continues at `offset`, instead of the offset that the pull named."""
        topic = self._machine.topic(fields.topic)
        queue = None if topic is None else topic.queue(fields.queue_id)
        low, high = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        result = GetResult(ReadStatus.OFFSET_RESET, offset, low, high, [])
        self.nothing(request, fields, ResponseCode.PULL_OFFSET_MOVED, offset, result)
