"""Data residency: a bank's raw data stays on its own machines in the EU, totals may leave.

The workflow says where everything runs; one step overrides that, another one is free of it.
"""

from typing import Any
from uuid import UUID

from hwqueue import App, Client, LeaseContext, Placement, WorkflowBuilder, label
from hwqueue.workflow import result, run_input

app = App()


@app.task("bank.ingest", queue="bank")
def ingest(accounts: dict[str, list[int]]) -> list[dict[str, Any]]:
    return [{"name": name, "balance": sum(moves)} for name, moves in accounts.items()]


@app.task("bank.anonymise", queue="bank")
def anonymise(context: LeaseContext) -> list[int]:
    return sorted(account["balance"] for account in context.result("ingest"))


@app.task("bank.totals", queue="bank")
def totals(balances: list[int]) -> dict[str, int]:
    return {"accounts": len(balances), "median": balances[len(balances) // 2]}


@app.task("bank.notify", queue="bank")
def notify(totals: dict[str, int]) -> str:
    return f"{totals['accounts']} accounts, median {totals['median']}"


own_machine = Placement().require(label("owner") == "bank").tolerate("owner", value="bank")

pipeline = (
    WorkflowBuilder("data_residency")
    .with_affinity(region="eu")
    .with_options(tenant="bank", queue="bank", result=result("notify"))
    .task("ingest", ingest, params=run_input(), placement=own_machine)
    .task("anonymise", anonymise, after="ingest", placement=own_machine)
    .task(
        "totals",
        totals,
        params={"balances": result("anonymise")},
        override_affinity={"region": "us"},
    )
    .task("notify", notify, params=result("totals"), replace_affinity=True)
    .build()
)


def submit(client: Client, **options: Any) -> UUID:
    accounts = {"ann": [100, -30], "bob": [500], "cy": [20, 20]}
    return pipeline.submit(client, accounts, **options).run_id
