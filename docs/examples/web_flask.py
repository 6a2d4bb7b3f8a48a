"""Flask: spawn in the session's transaction, and commit before the answer is returned.

Run: HWQUEUE_DSN=$(hwqueue db url) python web_flask.py
"""

from uuid import UUID

from flask import Flask, request
from sqlalchemy import create_engine
from sqlalchemy.orm import scoped_session, sessionmaker
from web_orders import Base, Order, database, send_invoice

import hwqueue

engine = create_engine(database())
session = scoped_session(sessionmaker(engine))  # `db.session` of Flask-SQLAlchemy is one, too
web = Flask(__name__)


@web.post("/orders")
def place_order() -> dict[str, str]:
    order = Order(item=request.form["item"])
    session.add(order)
    session.flush()  # gives the order its id
    spawned = send_invoice.spawn(hwqueue.Client.on(session), order_id=order.order_id)
    session.commit()
    return {"lease_id": str(spawned.lease_id)}


@web.get("/leases/<uuid:lease_id>")
def state_of(lease_id: UUID) -> dict[str, str]:
    return {"state": hwqueue.Client.on(session).get_lease(lease_id).state.value}


@web.teardown_appcontext
def close(_: BaseException | None) -> None:
    session.remove()  # rolls back what was not committed


def main() -> None:
    Base.metadata.create_all(engine)
    with hwqueue.Client() as setup:
        setup.create_queue("invoices")
    browser = web.test_client()
    answer = browser.post("/orders", data={"item": "one lamp"}).get_json()
    print("/orders", browser.get(f"/leases/{answer['lease_id']}").get_json()["state"])
    engine.dispose()


if __name__ == "__main__":
    main()
