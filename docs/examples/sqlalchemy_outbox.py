"""Spawn a lease in the transaction that writes the row it is about: both exist, or neither does.

Run: HWQUEUE_DSN=$(hwqueue db url) python sqlalchemy_outbox.py
"""

import os

from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL, create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import hwqueue

app = hwqueue.App()


@app.task("send-invoice", queue="invoices")
def send_invoice(order_id: int) -> None:
    print("sending the invoice of order", order_id)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "example_order"

    order_id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


def place_order(session: Session, item: str) -> None:
    """Write an order and spawn the lease that sends its invoice; the caller commits."""
    if not item:
        raise ValueError("an order needs an item")
    order = Order(item=item)
    session.add(order)
    session.flush()  # gives the order its id
    client = hwqueue.Client.on(session)
    send_invoice.spawn(client, order_id=order.order_id)


def main() -> None:
    dsn = os.environ["HWQUEUE_DSN"]
    engine = create_engine(URL.create("postgresql+psycopg", query=_query(dsn)))
    Base.metadata.create_all(engine)
    with hwqueue.Client(dsn) as client:
        client.create_queue("invoices")

        with Session(engine) as session, session.begin():
            place_order(session, "one lamp")

        with Session(engine) as session:
            place_order(session, "a mistake")
            session.rollback()  # the lease goes with the order

        with Session(engine) as session:
            orders = session.scalar(select(func.count()).select_from(Order))
        leases = client.list_leases(queue="invoices")
        print(f"{orders} order, {len(leases)} lease")
    engine.dispose()


def _query(dsn: str) -> dict[str, str]:
    """The connection string, URL or not, in the form SQLAlchemy passes on to the driver."""
    return {key: str(value) for key, value in conninfo_to_dict(dsn).items() if value is not None}


if __name__ == "__main__":
    main()
