"""An app that was one of Celery's: seven tasks, one of them every night, and two chords.

Run: HWQUEUE_DSN=$(hwqueue db url) python moved_from_celery.py
"""

import asyncio
import os
from datetime import timedelta

import psycopg

import hwqueue
from hwqueue.types import RetryPolicy
from hwqueue.worker import Worker, WorkerSettings
from hwqueue.workflow import item, result, results, run_input

app = hwqueue.App()
LATER = RetryPolicy(kind="exponential", base=timedelta(seconds=1), max=timedelta(minutes=10))


# @celery.task(autoretry_for=(ConnectionError,), retry_backoff=True, max_retries=4)
@app.task("send_mail", queue="mails", retry_on=ConnectionError, retry=LATER, max_attempts=5)
def send_mail(address: str) -> str:
    return f"sent to {address}"


# beat_schedule = {"report": {"task": "report", "schedule": crontab(hour=2, minute=0)}}
@app.task("report", queue="mails", schedule=hwqueue.cron("0 2 * * *", zone="Europe/Berlin"))
def report() -> None: ...


# chord(thumbnail.s(name, 320) for name in names)(album.s())
flow = app.workflow("album", queue="pictures", result=result("album"))


@flow.step(params={"folder": run_input("folder")})
def names(folder: str) -> list[str]:
    return [f"{folder}/{number}.png" for number in range(3)]


@flow.step(over=result(names), params={"name": item()}, max_parallel=2)
def thumbnail(name: str) -> str:
    return f"320/{name}"


@flow.step(after=thumbnail)
def album(context: hwqueue.LeaseContext) -> list[str]:
    return [done.result for done in context.results(thumbnail)]


@app.task("fetch_page", queue="pictures")
def fetch_page(url: str) -> int:
    return len(url)


@app.task("build_index", queue="pictures")
def build_index(sizes: list[int], title: str) -> str:
    return f"{title}: {sum(sizes)}"


# chord(fetch_page.s(url) for url in urls)(build_index.s("films"))
index = (
    hwqueue.WorkflowBuilder("index")
    .map("pages", fetch_page, over=run_input("urls"), params={"url": item()})
    .task("build", build_index, params={"sizes": results("pages"), "title": run_input("title")})
    .with_options(result=result("build"))
    .build()
)


async def main() -> None:
    dsn = os.environ["HWQUEUE_DSN"]
    async with hwqueue.AsyncClient(dsn) as client:
        for queue in ("mails", "pictures"):
            await client.create_queue(queue)
        await flow.workflow.define(client)
        await index.define(client)
        await app.sync_schedules(client, origin="shop")

        # transaction.on_commit(lambda: send_mail.delay("bob@example.org"))
        async with await psycopg.AsyncConnection.connect(dsn) as connection:  # commits at its end
            await send_mail.spawn(hwqueue.AsyncClient.on(connection), "bob@example.org")

        # send_mail.apply_async(("ada@example.org",), countdown=1).get(timeout=30)
        mail = await send_mail.with_options(delay=timedelta(seconds=1)).spawn(client, "ada@example.org")
        run = await flow.workflow.submit(client, {"folder": "trip"})
        films = await index.submit(client, {"urls": ["a.html", "bc.html"], "title": "films"})

        worker = Worker(app, WorkerSettings(dsn=dsn, queues=("mails", "pictures")))
        working = asyncio.create_task(worker.run())
        print((await mail.wait(timeout=timedelta(seconds=30))).result)
        print((await client.wait_for_run(run.run_id, timeout=timedelta(seconds=30))).result)
        print((await client.wait_for_run(films.run_id, timeout=timedelta(seconds=30))).result)
        [nightly] = await client.list_schedules()
        print(nightly.name, nightly.spec["cron"])
        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main())
