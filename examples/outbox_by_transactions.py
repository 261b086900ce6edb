"""Outbox without a table: a transactional message for each order that SQLAlchemy has stored, and for no other.

The broker stores the message before the order, and shows it to consumers after the order is committed. If the process
dies in between, the broker asks a producer of the group, which looks for the order in the database.

python examples/outbox_by_transactions.py 127.0.0.1:9876 sqlite:///orders.db
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from dledger_client import (
    DeadlineError,
    Decision,
    OpenTransaction,
    SyncAdmin,
    SyncConsumer,
    SyncTransactionProducer,
)
from dledger_client.codecs import JsonCodec

TOPIC = "example-transaction-orders"
CHECK_AFTER_S = 5
"""Maximum time in seconds that placing an order may take. After that, a message without an order is rolled back."""


class Placed(msgspec.Struct):
    """Event that an order was placed."""

    number: int
    customer: str


CODEC = JsonCodec(Placed)


class Base(DeclarativeBase):
    """Tables of this example."""


class Order(Base):
    """An order, and the unique key of its message, by which a check finds it."""

    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    message_key: Mapped[str] = mapped_column(index=True)


class Shop:
    """Places orders, and answers the brokers' questions about them."""

    def __init__(self, name_server: str, engine: Engine) -> None:
        self._engine = engine
        self.producer = SyncTransactionProducer(
            name_server, group="example-transaction-shop", check=self.check, codec=CODEC
        )

    def check(self, transaction: OpenTransaction) -> Decision:
        """Return the fate of a message whose order was begun `CHECK_AFTER_S` ago, perhaps by another process."""
        with Session(self._engine) as session:
            found = session.query(Order).filter_by(message_key=transaction.unique_key).count()
        decision: Decision = "commit" if found else "rollback"
        print(f"asked about {CODEC.decode(transaction.body)}: {decision}", flush=True)
        return decision

    def place_order(self, number: int, customer: str) -> None:
        """Store an order, then show its message. Raises the error of the database if there is no order."""
        event = Placed(number, customer)
        transaction = self.producer.begin(TOPIC, event, key=str(number), check_after_s=CHECK_AFTER_S)
        with Session(self._engine) as session:
            try:
                session.add(Order(number=number, customer=customer, message_key=transaction.unique_key))
                session.flush()
            except Exception:
                self.producer.rollback(transaction)
                raise
            session.commit()  # if this raises, the order may be stored all the same: the check will know
        with suppress(DeadlineError):  # the brokers ask later
            self.producer.commit(transaction)


def main(name_server: str, database: str) -> None:
    """Place two orders, and let one fail because its number is taken."""
    engine = create_engine(database)
    Base.metadata.create_all(engine)
    with SyncAdmin(name_server) as admin:
        admin.create_topic(TOPIC, queues=1)
    shop = Shop(name_server, engine)
    with shop.producer:
        for number, customer in ((1, "anna"), (1, "bert"), (2, "anna")):
            try:
                shop.place_order(number, customer)
            except Exception as error:
                print(f"no order {number} for {customer}: {type(error).__name__}")
    with SyncConsumer(name_server, "example-transaction-readers", TOPIC, codec=CODEC) as consumer:
        for message in consumer:
            print(f"{message.value.customer} placed order {message.value.number}")
            message.ack()
            if message.value.number == 2:
                break


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        database_url = sys.argv[2] if len(sys.argv) > 2 else f"sqlite:///{Path(directory) / 'orders.db'}"
        main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876", database_url)
