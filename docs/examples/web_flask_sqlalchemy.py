"""Flask-SQLAlchemy: spawn in the transaction of `db.session`, and commit before the answer.

Run: HWQUEUE_DSN=$(hwqueue db url) python web_flask_sqlalchemy.py
"""

from uuid import UUID

from flask import Flask, request
from flask_sqlalchemy import SQLAlchemy
from web_orders import Base, Order, database, send_invoice

import hwqueue

web = Flask(__name__)
web.config["SQLALCHEMY_DATABASE_URI"] = database()  # postgresql+psycopg, or +psycopg2
db = SQLAlchemy(web, model_class=Base)


@web.post("/orders")
def place_order() -> dict[str, str]:
    order = Order(item=request.form["item"])
    db.session.add(order)
    db.session.flush()  # gives the order its id
    spawned = send_invoice.spawn(hwqueue.Client.on(db.session), order_id=order.order_id)
    db.session.commit()
    return {"lease_id": str(spawned.lease_id)}


@web.get("/leases/<uuid:lease_id>")
def state_of(lease_id: UUID) -> dict[str, str]:
    return {"state": hwqueue.Client.on(db.session).get_lease(lease_id).state.value}


def main() -> None:
    with web.app_context():
        Base.metadata.create_all(db.engine)
    with hwqueue.Client() as setup:
        setup.create_queue("invoices")
    browser = web.test_client()
    answer = browser.post("/orders", data={"item": "one lamp"}).get_json()
    print("/orders", browser.get(f"/leases/{answer['lease_id']}").get_json()["state"])
    with web.app_context():
        db.engine.dispose()


if __name__ == "__main__":
    main()
