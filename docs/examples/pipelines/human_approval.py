"""Human approval: a refund above a limit waits for a person, for three days at most.

A handler waits without a slot, so ten thousand open questions cost no machine.
"""

from datetime import timedelta
from typing import Any
from uuid import UUID

from hwqueue import App, Client, LeaseContext, Step, Workflow
from hwqueue.workflow import result, run_input

app = App()


@app.task("refund.assess", queue="refunds")
def assess(paid: list[int], returned: list[int]) -> dict[str, int]:
    return {"amount": sum(paid[item] for item in returned)}


@app.task("refund.ask", queue="refunds")
def ask(context: LeaseContext, amount: int) -> dict[str, Any]:
    ticket = context.step("open_ticket", lambda: f"refund of {amount}?")
    try:
        answer = context.wait_for("decided", timeout=timedelta(days=3))
    except TimeoutError:
        answer = {"approved": False, "by": "nobody within 3 days"}
    return {"ticket": ticket, **answer}


@app.task("refund.pay", queue="refunds")
def pay(context: LeaseContext, amount: int) -> str:
    context.step("transfer", lambda: None)  # once, however often the handler runs
    return f"{amount} paid back"


@app.task("refund.refuse", queue="refunds")
def refuse(by: str) -> str:
    return f"refused by {by}"


amount = result("assess", "amount")
approved = result("ask", "approved")

pipeline = Workflow(
    name="human_approval",
    queue="refunds",
    tasks=[
        Step(
            "assess",
            assess,
            params={"paid": run_input("paid"), "returned": run_input("returned")},
        ),
        Step("pay_small", pay, params={"amount": amount}, run_if=amount <= 100),
        Step("ask", ask, params={"amount": amount}, run_if=amount > 100),
        Step("pay", pay, params={"amount": amount}, run_if=approved),
        Step("refuse", refuse, params={"by": result("ask", "by")}, run_if=approved.in_(False)),
    ],
)


def submit(client: Client, *returned: int) -> UUID:
    order = {"paid": [80, 15, 240], "returned": list(returned) or [0, 2]}
    return pipeline.submit(client, order).run_id


def decide(client: Client, run_id: UUID, approved: bool = True, by: str = "ann") -> None:
    """What the button of a page does. Twice the same click is one signal."""
    [step] = [one for one in client.list_workflow_steps(run_id) if one.step == "ask"]
    assert step.lease_id is not None
    answer = {"approved": approved, "by": by}
    client.signal_lease(step.lease_id, "decided", answer, key=f"{run_id}-{by}")
