"""Order processing: stock is reserved until a payment arrives, for two days at most.

Waits and sleeps are steps without a lease: no worker knows of them, and they outlive deployments.
"""

from datetime import timedelta
from typing import Any
from uuid import UUID

from hwqueue import App, Client, Step, Workflow
from hwqueue.workflow import Sleep, Wait, ended, near, result, run_input

app = App()
PRICES = {"lamp": 30, "chair": 120}


@app.task("order.reserve", queue="orders")
def reserve(items: dict[str, int], voucher: int) -> dict[str, Any]:
    total = sum(PRICES[name] * count for name, count in items.items())
    return {"items": items, "total": total - voucher}


@app.task("order.pack", queue="orders")
def pack(items: dict[str, int], total: int, paid: int) -> dict[str, int]:
    return {"parcels": sum(items.values()), "pay_back": paid - total}


@app.task("order.put_back", queue="orders")
def put_back(items: dict[str, int], why: str) -> str:
    return f"{sum(items.values())} items are back: {why}"


@app.task("order.review", queue="orders")
def review(parcels: int) -> str:
    return f"how do you like your {parcels} parcels?"


items = {"items": result("reserve", "items")}
paid = result("paid", "amount")

pipeline = Workflow(
    name="order_processing",
    queue="orders",
    tasks=[
        Step(
            "reserve",
            reserve,
            params={"items": run_input("items"), "voucher": run_input("voucher", default=0)},
        ),
        Wait("paid", "payment", timedelta(days=2), on_timeout="skip", after="reserve"),
        Step(
            "pack",
            pack,
            params={**items, "total": result("reserve", "total"), "paid": paid},
            near=near("reserve", "label:region", mode="require"),  # where the stock is
        ),
        Step(
            "put_back",
            put_back,
            after=ended("paid"),
            params={**items, "why": "nobody has paid"},
            run_if=paid.does_not_exist(),
        ),
        Sleep("two_weeks", timedelta(days=14), after="pack"),
        Step("review", review, after="two_weeks", params={"parcels": result("pack", "parcels")}),
    ],
    result=result("pack", default=None),
)


def submit(client: Client, **options: Any) -> UUID:
    order = {"items": {"lamp": 2, "chair": 1}}
    return pipeline.submit(client, order, **options).run_id


def decide(client: Client, run_id: UUID, amount: int = 200) -> None:
    """What the bank's webhook does; it may call twice."""
    client.signal_workflow_run(run_id, "payment", {"amount": amount}, key=f"payment-{run_id}")
