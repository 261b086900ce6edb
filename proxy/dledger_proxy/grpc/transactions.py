"""Transactions: EndTransaction, and the recovery of those that their producer does not end.

A transaction's id says where its message waits, so any proxy can end it. A broker that finds it too old asks a producer
of its topic. All producers are registered at the brokers, so the question comes to a proxy that has one.
"""

from __future__ import annotations

import logging
from typing import Final

from dledger_client.errors import RefusedError
from dledger_client.messages import MessageQueue, received_message
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import RemotingError
from dledger_remoting.headers import CheckTransactionHeader, EndTransactionHeader, decode_ext, encode_ext
from dledger_remoting.properties import INSTANCE_ID
from dledger_remoting.record import SYS_TRANSACTION_COMMIT, SYS_TRANSACTION_ROLLBACK, decode_record

from ..backends import Backends
from .answers import Refusal, ok
from .callers import Caller, topic_name
from .clients import Clients
from .definition import messaging_pb2 as pb
from .incoming import incoming
from .tokens import Transaction, decode_token, encode_token

_FLAGS: Final = {
    pb.COMMIT: SYS_TRANSACTION_COMMIT,
    pb.ROLLBACK: SYS_TRANSACTION_ROLLBACK,
    pb.TRANSACTION_RESOLUTION_UNSPECIFIED: 0,
}
"""Flags of decisions. A producer that does not know yet is asked again."""

logger = logging.getLogger(__name__)


class Transactions:
    """Ends transactions, and passes brokers' questions about them on."""

    def __init__(self, backends: Backends, clients: Clients) -> None:
        self._backends = backends
        self._clients = clients
        self.asked = 0
        """Number of questions that producers were given."""

    async def end(self, caller: Caller, request: pb.EndTransactionRequest) -> pb.EndTransactionResponse:
        """Commit a transaction or roll it back, once, even if the request is repeated."""
        topic, deadline = topic_name(request.topic), self._backends.deadline(caller.deadline)
        if request.resolution not in _FLAGS:
            raise Refusal(pb.BAD_REQUEST, f"resolution {request.resolution}: COMMIT or ROLLBACK is expected")
        try:
            place = decode_token(Transaction, request.transaction_id, topic, request.message_id)
        except ValueError as error:
            raise Refusal(pb.INVALID_TRANSACTION_ID, f"the transaction id cannot be used: {error}") from error
        await self._backends.know_group(place.broker_group, topic, deadline)
        header = EndTransactionHeader(
            producer_group=topic,
            tran_state_table_offset=place.queue_offset,
            commit_log_offset=place.position,
            commit_or_rollback=_FLAGS[request.resolution],
            from_transaction_check=request.source == pb.SOURCE_SERVER_CHECK,
            msg_id=request.message_id,
            transaction_id=request.message_id,
            topic=topic,
        )
        code = RequestCode.END_TRANSACTION
        try:
            await self._backends.ask(place.broker_group, code, {**encode_ext(header), **caller.ext}, deadline=deadline)
        except RefusedError as error:
            if error.code == ResponseCode.SYSTEM_ERROR:
                raise Refusal(pb.INVALID_TRANSACTION_ID, error.remark) from error
            raise
        return pb.EndTransactionResponse(status=ok())

    def check(self, command: RemotingCommand) -> None:
        """Give a broker's question about a transaction to a producer of its topic.

        Without any, the broker asks again later.
        """
        try:
            header = decode_ext(CheckTransactionHeader, command.ext)
            record = decode_record(command.body)
            message = received_message(record, MessageQueue(record.topic, header.bname, record.queue_id))
        except RemotingError as error:
            logger.warning("event=check_unreadable reason=%r", error.remark)
            return
        namespace = message.properties.get(INSTANCE_ID, "")
        name = record.topic.removeprefix(f"{namespace}%") if namespace else record.topic
        place = Transaction(header.bname, header.commit_log_offset, header.tran_state_table_offset)
        question = pb.TelemetryCommand(
            recover_orphaned_transaction_command=pb.RecoverOrphanedTransactionCommand(
                message=incoming(pb.Resource(resource_namespace=namespace, name=name), message),
                transaction_id=encode_token(place, record.topic, message.message_id),
            )
        )
        for client in self._clients.producers_of(record.topic):
            if any(channel.send(question) for channel in client.channels):
                self.asked += 1
                return
        logger.info("event=check_without_producer topic=%s message_id=%s", record.topic, message.message_id)
