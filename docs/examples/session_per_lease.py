"""A database session for each lease; its rows and the end of the lease are one transaction.

Run: HWQUEUE_DSN=$(hwqueue db url) python session_per_lease.py
"""

import os
from contextvars import ContextVar
from typing import Any

import example_worker
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL, create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import hwqueue

app = hwqueue.App()
parts = conninfo_to_dict(os.environ["HWQUEUE_DSN"])
query = {key: str(value) for key, value in parts.items() if value is not None}
engine = create_engine(URL.create("postgresql+psycopg", query=query))
current_session: ContextVar[Session] = ContextVar("current_session")


@app.middleware
def in_one_transaction(call_next: Any, context: hwqueue.LeaseContext) -> Any:
    """Commit what the handler wrote together with the end of its lease, or nothing."""
    with Session(engine) as session, session.begin():
        before = current_session.set(session)
        try:
            result = call_next(context)
        finally:
            current_session.reset(before)
        session.flush()
        client = hwqueue.Client.on(session)
        client.complete_lease(context.lease_id, context.claim_token, result=result)
    return result


class Base(DeclarativeBase):
    pass


class Invoice(Base):
    __tablename__ = "example_invoice"

    invoice_id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


@app.task("invoice", queue="accounts", max_attempts=1)
def invoice(item: Any) -> str:
    current_session.get().add(Invoice(item=item))
    if item == "a mistake":
        raise ValueError("nobody ordered this")
    return f"invoice of {item}"


if __name__ == "__main__":
    Base.metadata.create_all(engine)
    for lease in example_worker.run(app, invoice, "one lamp", "a mistake"):
        print(lease.state.value, lease.result)
    with Session(engine) as session:
        print(session.scalar(select(func.count()).select_from(Invoice)), "invoice")
    engine.dispose()
