"""A FastStream service: bills orders, tries again what failed, answers questions, and stops when all is done.

python examples/faststream_service.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from faststream import FastStream
from faststream.exceptions import NackMessage
from pydantic import BaseModel

from dledger_client import Sql
from dledger_faststream import DledgerBroker, DledgerMessage, DledgerResponse, DledgerRouter

ORDERS = {"book": 20, "lamp": 300, "sofa": 900}

router = DledgerRouter("example-shop-")


class Order(BaseModel):
    """An order of one thing. Its price is a header of its message."""

    name: str


class Invoice(BaseModel):
    """The invoice of an order."""

    name: str
    total: int


@router.subscriber("orders", group="example-billing", filter=Sql("price >= 100"), max_workers=4)
@router.publisher("invoices", tags="invoice")
async def bill(order: Order, message: DledgerMessage) -> DledgerResponse:
    """Bill an order; the result goes to the topic of the publisher. A lamp fails at first, and comes again."""
    if order.name == "lamp" and message.raw_message.reconsume_times == 0:
        raise NackMessage(delay_s=0.0)
    invoice = Invoice(name=order.name, total=int(message.headers["price"]))
    return DledgerResponse(invoice, key=f"invoice-{order.name}")


@router.subscriber("prices", group="example-pricing")
async def price(order: Order) -> int:
    """Answer a request: the result is the reply."""
    return ORDERS[order.name]


async def main(name_server: str) -> None:
    """Run the service until two invoices have come."""
    broker = DledgerBroker(name_server, routers=[router], logger=None)
    app = FastStream(broker, logger=None)
    invoices: list[Invoice] = []

    @broker.subscriber("example-shop-invoices", group="example-accounting", filter="invoice", batch=True)
    async def account(batch: list[Invoice]) -> None:
        invoices.extend(batch)
        if len(invoices) == 2:
            app.exit()

    @app.after_startup
    async def order() -> None:
        for name in ORDERS:
            reply = await broker.request(Order(name=name), "example-shop-prices")
            total = await reply.decode()
            await broker.publish(Order(name=name), "example-shop-orders", headers={"price": str(total)})

    await app.run()
    for invoice in sorted(invoices, key=lambda invoice: invoice.name):
        print(f"{invoice.name}: {invoice.total}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
