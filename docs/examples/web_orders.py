"""What the examples for web frameworks share: a table of orders, and the task of an order."""

import os
from typing import Any

from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import hwqueue

tasks = hwqueue.App()


@tasks.task("send-invoice", queue="invoices")
def send_invoice(order_id: int) -> None:
    print("sending the invoice of order", order_id)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "example_web_order"

    order_id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


def database() -> URL:
    """HWQUEUE_DSN, URL or not, as SQLAlchemy takes it."""
    named = conninfo_to_dict(os.environ["HWQUEUE_DSN"])
    query = {key: str(value) for key, value in named.items() if value is not None}
    return URL.create("postgresql+psycopg", query=query)


def asyncpg_arguments() -> dict[str, Any]:
    """The same for asyncpg, which takes no `key=value` strings."""
    named = conninfo_to_dict(os.environ["HWQUEUE_DSN"])
    wanted = {key: named.get(key) for key in ("host", "port", "user", "password")}
    return wanted | {"database": named.get("dbname")}
