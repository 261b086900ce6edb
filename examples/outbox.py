"""Transactional outbox beside SQLAlchemy: a message for each order that is in the database, and for no other.

An order and its message are rows of one transaction of the database. A relay sends the messages later, in their order.
If it dies after a send and before the database knows, it sends that message again. The brokers then store nothing
again, because the second send has the same unique key.

python examples/outbox.py 127.0.0.1:9876 sqlite:///orders.db
"""

from __future__ import annotations

import sys
import uuid

import msgspec
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from dledger_client import SyncAdmin, SyncConsumer, SyncProducer
from dledger_client.codecs import JsonCodec

TOPIC = "example-outbox-orders"
BATCH = 100


class Placed(msgspec.Struct):
    """Event that an order was placed."""

    number: int
    customer: str


CODEC = JsonCodec(Placed)


class Base(DeclarativeBase):
    """Tables of this example."""


class Order(Base):
    """An order."""

    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]


class Outgoing(Base):
    """A message that waits for the relay. `unique_key` stays the same however often it is sent."""

    __tablename__ = "outbox"
    place: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    unique_key: Mapped[str] = mapped_column(default=lambda: uuid.uuid4().hex)
    ordering_key: Mapped[str]
    body: Mapped[bytes]


def place_order(session: Session, number: int, customer: str) -> None:
    """Add an order and its message to a transaction of the database."""
    session.add(Order(number=number, customer=customer))
    session.add(Outgoing(ordering_key=customer, body=CODEC.encode(Placed(number, customer))))


def relay(engine: Engine, producer: SyncProducer) -> int:
    """Send the messages in the outbox, and return their number. Only one relay may run at a time."""
    sent = 0
    with Session(engine) as session:
        for row in session.scalars(select(Outgoing).order_by(Outgoing.place).limit(BATCH)).all():
            key, ordering_key = row.unique_key, row.ordering_key
            producer.send(TOPIC, row.body, unique_key=key, ordering_key=ordering_key, idempotent=True)
            session.delete(row)
            session.commit()
            sent += 1
    return sent


def main(name_server: str, database: str) -> None:
    """Place two orders, let one fail, and relay their messages."""
    engine = create_engine(database)
    Base.metadata.create_all(engine)
    with SyncAdmin(name_server) as admin:
        admin.create_topic(TOPIC, queues=4)
    with Session(engine) as session:
        place_order(session, 1, "anna")
        session.commit()
        place_order(session, 2, "anna")
        session.rollback()
        place_order(session, 3, "anna")
        session.commit()

    with SyncProducer(name_server, group="example-outbox") as producer:
        print(f"the relay sent {relay(engine, producer)} messages, then {relay(engine, producer)}")
    with SyncConsumer(name_server, "example-outbox-readers", TOPIC, codec=CODEC) as consumer:
        for message in consumer:
            print(f"{message.value.customer} placed order {message.value.number}")
            message.ack()
            if message.value.number == 3:
                break


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876", sys.argv[2] if len(sys.argv) > 2 else "sqlite://")
