"""Operations of the HTTP front: paths, requests and answers, by which the server routes and the document is made."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from dledger_base.extras import package_version
from dledger_base.openapi import Header, Interface, Operation

from . import bodies

_TRACE: Final = Header("traceparent", "W3C trace context. It becomes the property `traceparent` of each message")
_ALWAYS: Final = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
_WITH_BODY: Final = (
    *_ALWAYS,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.CONFLICT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
)

SEND: Final = Operation(
    name="send",
    method="POST",
    path="/v1/topics/{topic}/messages",
    summary="Store one message or several",
    description="Answers once a majority of the nodes has stored the messages.",
    parameters=bodies.SendParameters,
    body=bodies.SendRequest,
    answer=bodies.SendAnswer,
    headers=(
        Header(
            "Idempotency-Key",
            "Name of this request, at most 128 visible characters. A request that is repeated with the same key and "
            "body stores nothing again, for about two minutes",
        ),
        _TRACE,
    ),
    problems=_WITH_BODY,
)
RECALL: Final = Operation(
    name="recall",
    method="POST",
    path="/v1/topics/{topic}/recall",
    summary="Recall a message that is to be delivered later",
    description="It may be repeated. A message that is delivered, or about to be, is a conflict.",
    body=bodies.RecallRequest,
    answer=bodies.RecallAnswer,
    problems=_WITH_BODY,
)
RECEIVE: Final = Operation(
    name="receive",
    method="POST",
    path="/v1/topics/{topic}/receive",
    summary="Take messages for a group",
    description="Other members of the group do not get them until their invisible time is over.",
    body=bodies.ReceiveRequest,
    answer=bodies.ReceiveAnswer,
    problems=_WITH_BODY,
)
ACK: Final = Operation(
    name="ack",
    method="POST",
    path="/v1/topics/{topic}/ack",
    summary="Acknowledge messages",
    body=bodies.AckRequest,
    answer=bodies.SettleAnswer,
    problems=_WITH_BODY,
)
NACK: Final = Operation(
    name="nack",
    method="POST",
    path="/v1/topics/{topic}/nack",
    summary="Give messages back, to be delivered again",
    body=bodies.NackRequest,
    answer=bodies.SettleAnswer,
    problems=_WITH_BODY,
)
EXTEND: Final = Operation(
    name="extend",
    method="POST",
    path="/v1/topics/{topic}/extend",
    summary="Keep messages for longer",
    description="Each result has the receipt that replaces the given one.",
    body=bodies.ExtendRequest,
    answer=bodies.SettleAnswer,
    problems=_WITH_BODY,
)
TAIL: Final = Operation(
    name="tail",
    method="GET",
    path="/v1/topics/{topic}/tail",
    summary="Follow a topic as Server-Sent Events",
    description="Events `message` have a message each. The last event of a batch has an id, behind which a later tail "
    "goes on. An event `problem` ends the stream with a problem.",
    parameters=bodies.TailParameters,
    answer=bodies.MessageView,
    media_type="text/event-stream",
    headers=(Header("Last-Event-ID", "id of the last event that was handled; browsers send it by themselves"),),
    problems=_ALWAYS,
)
TOPICS: Final = Operation(
    name="topics",
    method="GET",
    path="/v1/topics",
    summary="List the topics",
    answer=bodies.TopicsAnswer,
    problems=_ALWAYS,
)
TOPIC: Final = Operation(
    name="topic",
    method="GET",
    path="/v1/topics/{topic}",
    summary="Show the queues of a topic",
    answer=bodies.TopicAnswer,
    problems=_ALWAYS,
)
OFFSETS: Final = Operation(
    name="offsets",
    method="GET",
    path="/v1/topics/{topic}/offsets",
    summary="Show a group's progress in a topic",
    parameters=bodies.OffsetsParameters,
    answer=bodies.OffsetsAnswer,
    problems=_ALWAYS,
)
DESCRIBE: Final = Operation(
    name="describe",
    method="GET",
    path="/v1/openapi.json",
    summary="Describe this interface",
    answer=dict[str, Any],
    problems=(HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.INTERNAL_SERVER_ERROR),
)

INTERFACE: Final = Interface(
    title="dledger-mq over HTTP",
    version=package_version(),
    description="Messages of a cluster for programs that speak HTTP and JSON.",
    operations=(SEND, RECALL, RECEIVE, ACK, NACK, EXTEND, TAIL, TOPICS, TOPIC, OFFSETS, DESCRIBE),
    problem=bodies.Problem,
    in_path={"topic": "name of the topic"},
    security={
        "account": {"type": "http", "scheme": "basic", "description": "an account of the cluster and its secret"}
    },
)
