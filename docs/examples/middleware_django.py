"""Close Django's old connections around each handler, as it does around each request.

Run: HWQUEUE_DSN=$(hwqueue db url) python middleware_django.py
"""

import os
from typing import Any

import django
import example_worker
from django.conf import settings
from django.db import close_old_connections, connection
from psycopg.conninfo import conninfo_to_dict

import hwqueue

app = hwqueue.App()


@app.middleware
def close_connections(call_next: Any, context: hwqueue.LeaseContext) -> Any:
    close_old_connections()
    try:
        return call_next(context)
    finally:
        close_old_connections()


@app.task("report", queue="reports")
def report(params: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        return cursor.fetchone()[0]


def database() -> dict[str, Any]:
    """The connection string as Django's settings."""
    options = dict(conninfo_to_dict(os.environ["HWQUEUE_DSN"]))
    named = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host"}
    return {
        "ENGINE": "django.db.backends.postgresql",
        **{name: options.pop(key, "") for name, key in named.items()},
        "PORT": str(options.pop("port", "")),
        "OPTIONS": options,
    }


if __name__ == "__main__":
    settings.configure(DATABASES={"default": database()})
    django.setup()
    leases = example_worker.run(app, report, 1, 2)
    print(len(leases), "leases,", len({lease.result for lease in leases}), "connections")
