"""One worker from start to stop: registers the node, runs the loops, hands back what is left."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Coroutine
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg

from hwqueue import tracing
from hwqueue.app import App
from hwqueue.errors import ConfigError, HwqueueError
from hwqueue.extras import needs
from hwqueue.stopping import calling, until_told
from hwqueue.text import exact_duration
from hwqueue.worker.heartbeat import HeartbeatLoop
from hwqueue.worker.kept_records import keeping_records
from hwqueue.worker.listen import Announced, Wanted, listen, listen_over_http
from hwqueue.worker.loop import ClaimLoop
from hwqueue.worker.node import describe_node
from hwqueue.worker.process import environment_of_gpus
from hwqueue.worker.runner import Runner, StopReason
from hwqueue.worker.session import NODE_LOST, NodeClient, NodeSession
from hwqueue.worker.settings import WorkerSettings, worker_conninfo
from hwqueue.worker.signals import Shutdown
from hwqueue.worker.upkeep import (
    advance_after_steps,
    hear_deaths,
    plan_regularly,
    prune_regularly,
    reap_regularly,
    send_run_spans,
)

_log = logging.getLogger("hwqueue.worker")

_LAST_MOMENT_SECONDS = 1.0
_LAST_CALL_SECONDS = 3.0
_STOP_HOOKS_SECONDS = 5.0
_UNREAPED = timedelta(seconds=10)  # between looks for deaths and spans where nothing is reaped


def spare_collector() -> None:
    """Take what is in memory now out of all later garbage collections of this process.

    What an app has imported lives as long as its worker. To look at it again and again was a tenth
    of what quick handlers cost. What handlers leave behind is collected as before.

    `run` calls it, a `Worker` does not: what its program drops later would not be freed where it
    refers to itself. A program that is there for its worker calls this once, after its imports.
    """
    gc.collect()
    gc.freeze()


def run(app: App, settings: WorkerSettings, *, supervised: bool = False) -> int:
    """Run a worker in this process until SIGTERM or SIGINT, and give its exit code.

    The first signal stops claiming and waits `shutdown_timeout` for running handlers, then
    cancels them and hands their leases back; a second one stops now.

    Args:
        supervised: Whether orders of a supervisor come on standard input, too.

    Returns:
        0 after a graceful stop; 1 when it was stopped now; 5 (`SUPERSEDED`) when another worker or
        login took over the node, so that a supervisor need not start this one again.

    Raises:
        HwqueueError, psycopg.Error: The worker could not start.

    When a thread of a handler or a hook, or a database call, outlives the worker, the process ends
    here instead of returning: nothing else ends a thread, and a claim in flight must not be
    cancelled.
    """
    spare_collector()
    with until_told(), asyncio.Runner() as runner:
        worker = Worker(app, settings)
        code = runner.run(worker.run(handle_signals=True, supervised=supervised))
        if worker.has_leftovers:
            _log.warning("ending the process with handlers, hooks or calls still under way")
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return code


class Worker:
    """A worker inside a running event loop; `run` is for a process of its own.

    Args:
        app: The handlers.
        settings: See `WorkerSettings`.

    Attributes:
        has_leftovers: After `run`: whether handlers, hooks or database calls are under way.
    """

    def __init__(self, app: App, settings: WorkerSettings) -> None:
        if not app.tasks:
            raise ConfigError("the app has no tasks: a worker for it would claim nothing")
        self._app = app
        named = sorted({task.defaults.queue for task in app.tasks.values()})
        self._settings = replace(settings, queues=settings.queues or tuple(named))
        self._shutdown = Shutdown()
        self.has_leftovers = False
        self._in_hooks = False

    def stop(self) -> None:
        """Stop gracefully; called again, stop now. Only from the worker's event loop."""
        self._shutdown.request()

    async def run(self, *, handle_signals: bool = False, supervised: bool = False) -> int:
        """Work until stopped; once. Returns and raises as the function `run`."""
        with ExitStack() as told:
            told.enter_context(keeping_records(self._app.keep_logs))
            if handle_signals:
                # a terminal and systemd signal the supervisor, too, and it alone knows of a second
                # time
                ask = self._shutdown.drain if supervised else self._shutdown.request
                told.enter_context(calling(ask))
            if supervised:
                told.enter_context(self._shutdown.on_orders(sys.stdin.fileno()))
            await self._run()
        return self._shutdown.exit_code

    async def _run(self) -> None:
        """Describe the node, work, and leave."""
        shutdown, settings = self._shutdown, self._settings
        node = await describe_node(settings, self._app.tasks)
        if shutdown.draining.is_set():
            return
        if node.is_divided:
            os.environ.update(environment_of_gpus(node.gpu_names))
        loose = [name for name, task in self._app.tasks.items() if task.is_async and not task.process]
        if settings.isolates_cores and loose:
            _log.warning("not pinned to the cores of their leases: %s", ", ".join(loose))
        client = _client_for(settings)
        session = NodeSession(client, settings, node.spec, self._app, shutdown)
        runner = Runner(self._app, settings, session, now=shutdown.now, gpu_names=node.gpu_names)
        session.put_off = runner.put_off
        try:
            if await self._open(session):
                await self._work(session, runner)
            if session.epoch and settings.deregister_on_stop and shutdown.exit_code == 0:
                await self._leave(session)
        finally:
            await session.reports.finish()
            await self._call_stop_hooks()
            runner.close()
            await session.close()
            self.has_leftovers = bool(runner.has_leftovers or session.in_flight or self._in_hooks)

    async def _begin(self, session: NodeSession) -> None:
        """Call the hooks first: a node that is registered must heartbeat."""
        self._in_hooks = True
        await self._app.call_hooks("start")
        self._in_hooks = False
        await session.open()

    async def _call_stop_hooks(self) -> None:
        try:
            async with asyncio.timeout(_STOP_HOOKS_SECONDS):
                await self._app.call_hooks("stop")
        except TimeoutError:
            _log.warning("a hook of on_stop runs longer than %g s; it is left", _STOP_HOOKS_SECONDS)
            self._in_hooks = True

    async def _open(self, session: NodeSession) -> bool:
        """Start hooks, connect, register; False when a stop was asked for before that was done."""
        opening = asyncio.ensure_future(self._begin(session))
        told = asyncio.ensure_future(self._shutdown.draining.wait())
        await asyncio.wait({opening, told}, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if not opening.done():
            self._shutdown.finish()
            opening.cancel()
            return False
        await opening
        return True

    async def _work(self, session: NodeSession, runner: Runner) -> None:
        """Run the loops until drained or told to stop now, then hand back what is left."""
        heartbeat = HeartbeatLoop(session, runner, self._longest_heartbeat_wait())
        poll_seconds = self._settings.poll_interval.total_seconds()
        loop = ClaimLoop(session, runner, heartbeat, self._shutdown, poll_seconds, Announced(runner.wake.set))
        parts = (
            loop.run(),
            heartbeat.run(),
            self._enforce_deadline(runner),
            self._listen(session, loop),
            session.progress.run(),
            session.logs.run(),
            advance_after_steps(session),
            *self._upkeep(session),
        )
        tasks = [asyncio.ensure_future(part) for part in parts]
        claiming = tasks[0]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if runner.running or not claiming.done():
            self._shutdown.finish()
            await self._hand_back(session, runner, claiming)
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception) and not isinstance(ended, NODE_LOST):
                raise ended

    def _upkeep(self, session: NodeSession) -> list[Coroutine[Any, Any, None]]:
        """What the worker does for all, as far as it is wanted."""
        reap, prune = self._settings.reap_interval, self._settings.prune_interval
        parts = []
        if reap is not None:
            parts.append(reap_regularly(session, reap))
            if not self._settings.url:  # what others' schedules do is not for every machine to say
                parts.append(plan_regularly(session, reap))
        if prune is not None:
            parts.append(prune_regularly(session, prune))
        if self._app.has_hooks("dead"):
            parts.append(hear_deaths(session, self._app, reap or _UNREAPED))
        if tracing.is_on() and not self._settings.url:
            parts.append(send_run_spans(session, reap or _UNREAPED))
        return parts

    async def _enforce_deadline(self, runner: Runner) -> None:
        """After a stop was asked for: give handlers their time, cancel them, then stop now."""
        shutdown = self._shutdown
        await shutdown.draining.wait()
        runner.stop_waiting(StopReason.SHUTDOWN)
        runner.wake.set()
        await shutdown.sleep(self._settings.shutdown_timeout.total_seconds())
        if runner.running:
            _log.warning("cancelling %d handlers that still run", len(runner.running))
        runner.stop_all(StopReason.SHUTDOWN)
        await shutdown.sleep(self._settings.cancel_grace.total_seconds())
        shutdown.finish()

    async def _hand_back(self, session: NodeSession, runner: Runner, claiming: asyncio.Future[None]) -> None:
        """Stop every handler at once; release the leases of those that do not end."""
        runner.stop_all(StopReason.LOST if self._shutdown.superseded else StopReason.SHUTDOWN)
        if claiming.done():
            await runner.wait(_LAST_MOMENT_SECONDS)
        else:  # it settles what ends now, and is done when nothing runs any more
            await asyncio.wait({claiming}, timeout=_LAST_MOMENT_SECONDS)
            claiming.cancel()
        left = runner.abandon()
        if not left or self._shutdown.superseded:
            return
        try:
            async with asyncio.timeout(_LAST_CALL_SECONDS):
                await session.settle_and_claim(left, 0)
        except (TimeoutError, HwqueueError, psycopg.Error) as error:
            _log.error("%d leases come back by their timeout only: %r", len(left), error)

    async def _leave(self, session: NodeSession) -> None:
        """Deregister the node after a graceful stop; a failure here is none of the worker's."""
        try:
            async with asyncio.timeout(_LAST_CALL_SECONDS):
                left = await session.leave()
        except (TimeoutError, HwqueueError, psycopg.Error) as error:
            _log.warning("node %s stays registered: %r", session.node_id, error)
            return
        what = "is deregistered" if left else "stays registered: claims or operators keep it"
        _log.info("node %s %s", session.node_id, what)

    async def _listen(self, session: NodeSession, loop: ClaimLoop) -> None:
        """Wake the claim loop and the heartbeat by LISTEN, where there is a connection for it."""
        settings = self._settings
        if settings.listen == "off":
            _log.info("not listening: polling every %s", exact_duration(settings.poll_interval))
            await asyncio.Event().wait()
            return
        wanted = Wanted(settings.queues, session.node_id, on_work=loop.hear, on_stop=loop.heartbeat.ask)
        if settings.url is not None:
            await listen_over_http(session.announced, wanted)
        else:
            conninfo = worker_conninfo(settings.dsn if settings.listen == "auto" else settings.listen)
            await listen(conninfo, wanted)

    def _longest_heartbeat_wait(self) -> timedelta:
        settings = self._settings
        if settings.claim_timeout is None:
            return settings.heartbeat_interval
        return min(settings.heartbeat_interval, settings.claim_timeout / 4)


def _client_for(settings: WorkerSettings) -> NodeClient:
    """What makes the calls of the node: on the database, or over HTTP. Raises: ConfigError."""
    if settings.url is None or settings.token_file is None:
        return NodeClient(worker_conninfo(settings.dsn))
    with needs("http"):
        from hwqueue.worker.gateway import Gateway, GatewayClient  # noqa: PLC0415

    return GatewayClient(Gateway(settings.url, settings.token_file, settings.effective_node_id))
