"""Report what handlers raise to Sentry, under the task and the lease.

Run: HWQUEUE_DSN=$(hwqueue db url) python middleware_sentry.py
"""

from typing import Any

import example_worker
import sentry_sdk
from sentry_sdk.integrations.logging import ignore_logger
from sentry_sdk.transport import Transport

import hwqueue

app = hwqueue.App()

# Sentry makes an event of each error in a log, of the worker's "is dead" as well.
ignore_logger("hwqueue.worker")


@app.middleware
def report(call_next: Any, context: hwqueue.LeaseContext) -> Any:
    with sentry_sdk.isolation_scope() as scope:
        describe(scope, context)
        try:
            return call_next(context)
        except Exception as error:
            capture(error)
            raise


@app.middleware
async def report_async(call_next: Any, context: hwqueue.AsyncLeaseContext) -> Any:
    with sentry_sdk.isolation_scope() as scope:
        describe(scope, context)
        try:
            return await call_next(context)
        except Exception as error:
            capture(error)
            raise


def describe(scope: Any, context: Any) -> None:
    scope.set_transaction_name(context.task_name)
    scope.set_tags({"lease_id": str(context.lease_id), "attempt": context.attempt})
    scope.set_context("params", {"params": context.params})


def capture(error: Exception) -> None:
    if not isinstance(error, (hwqueue.Retry, hwqueue.Snooze)):  # raised on purpose
        sentry_sdk.capture_exception(error)


@app.task("mail", queue="mails", max_attempts=1)
def mail(params: Any) -> None:
    raise ConnectionError("smtp down")


@app.task("mail-async", queue="mails", max_attempts=1)
async def mail_async(params: Any) -> None:
    raise ConnectionError("smtp down, too")


class Printed(Transport):
    """Instead of a server of Sentry."""

    def capture_envelope(self, envelope: Any) -> None:
        if event := envelope.get_event():
            [error] = event["exception"]["values"]
            print(event["transaction"], event["tags"]["attempt"], error["type"], error["value"])


if __name__ == "__main__":
    sentry_sdk.init("https://key@sentry.invalid/1", transport=Printed)
    example_worker.run(app, mail, {"to": "ann"})
    example_worker.run(app, mail_async, {"to": "ann"})
