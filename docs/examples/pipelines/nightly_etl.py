"""Nightly ETL: three sources at once, a report of those that answered, somebody is told at the end.

One run for each night: cron on two machines may both submit it. The tables are loaded by a run of
another workflow, which others may run, too.
"""

from datetime import date
from typing import Any
from uuid import UUID

from hwqueue import App, Client, LeaseContext
from hwqueue.workflow import Nested, ended, result, run_input

app = App()
tables = app.workflow("load_tables", queue="etl", result=result("write"))
flow = app.workflow("nightly_etl", queue="etl", on_failure="continue", result=result("load"))

SOURCES = {
    "orders": "1;lamp;2\n2;chair;1\n3;lamp;5",
    "prices": "lamp;30\nchair;120",
    "returns": "lamp;1",
}
WAREHOUSE: dict[str, list[dict[str, Any]]] = {"reports": []}


def rows(source: str) -> list[list[str]]:
    if source not in SOURCES:
        raise ConnectionError(f"{source} does not answer")
    return [line.split(";") for line in SOURCES[source].splitlines()]


@flow.step(max_attempts=3)
def orders() -> dict[str, int]:
    sold: dict[str, int] = {}
    for _, product, count in rows("orders"):
        sold[product] = sold.get(product, 0) + int(count)
    return sold


@flow.step(max_attempts=3)
def prices() -> dict[str, int]:
    return {product: int(price) for product, price in rows("prices")}


@flow.step(max_attempts=3)
def returns() -> dict[str, int]:
    return {product: int(count) for product, count in rows("returns")}


load = flow.add(
    Nested(
        "load",
        "load_tables",
        {
            "orders": result(orders),
            "prices": result(prices),
            "returns": result(returns, default=None),
        },
        after=ended(returns),
    )
)


@tables.step(params=run_input())
def stage(orders: dict[str, int], prices: dict[str, int], returns: dict[str, int] | None) -> dict[str, Any]:
    """Without returns there is a report all the same, and it says so."""
    sold = {product: count - (returns or {}).get(product, 0) for product, count in orders.items()}
    income = sum(prices[product] * count for product, count in sold.items())
    return {"income": income, "without": [] if returns is not None else ["returns"]}


@tables.step(params=result(stage))
def write(report: dict[str, Any]) -> dict[str, Any]:
    WAREHOUSE["reports"].append(report)
    return report


@flow.step(final="ended", params={"night": run_input("night")})
def tell(context: LeaseContext, night: str) -> str:
    report = context.result(load)
    return f"{night}: " + (f"{report['income']} earned" if report else "no report")


pipeline = flow.workflow


def submit(client: Client, night: date = date(2030, 1, 31)) -> UUID:
    """The same night again is the same run, whether it has ended or not."""
    tables.workflow.define(client)  # at a deployment: the step "load" runs it by its name
    key = night.isoformat()
    return pipeline.submit(client, {"night": key}, idempotency_key=key).run_id
