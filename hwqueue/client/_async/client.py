"""The client: all methods, on a pool of its own or on a connection that the caller brings."""

from __future__ import annotations

from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from hwqueue import calls
from hwqueue.client._async.bulk import AsyncBulk
from hwqueue.client._async.checkpoints import AsyncCheckpoints
from hwqueue.client._async.claims import AsyncClaims
from hwqueue.client._async.events import AsyncEvents
from hwqueue.client._async.everywhere import AsyncEverywhere
from hwqueue.client._async.gangs import AsyncGangs
from hwqueue.client._async.leases import AsyncLeases
from hwqueue.client._async.limits import AsyncLimits
from hwqueue.client._async.nodes import AsyncNodes
from hwqueue.client._async.part import AsyncPart
from hwqueue.client._async.planner import AsyncPlanning
from hwqueue.client._async.queues import AsyncQueues
from hwqueue.client._async.runner import AsyncPoolRunner, runner_on
from hwqueue.client._async.schedules import AsyncSchedules
from hwqueue.client._async.tasks import AsyncTasks
from hwqueue.client._async.tenants import AsyncTenants
from hwqueue.client._async.tokens import AsyncTokens
from hwqueue.client._async.views import AsyncViews
from hwqueue.client._async.webhooks import AsyncWebhooks
from hwqueue.client._async.workflows import AsyncWorkflows
from hwqueue.types import SchemaVersion


class AsyncClient(
    AsyncQueues,
    AsyncTasks,
    AsyncWorkflows,
    AsyncLeases,
    AsyncGangs,
    AsyncEverywhere,
    AsyncBulk,
    AsyncClaims,
    AsyncCheckpoints,
    AsyncNodes,
    AsyncViews,
    AsyncTokens,
    AsyncEvents,
    AsyncWebhooks,
    AsyncSchedules,
    AsyncLimits,
    AsyncTenants,
    AsyncPlanning,
):
    """Everything the SQL functions do; the methods have their names.

    Args:
        conninfo: A DSN or URL as libpq takes it; None: that of `HWQUEUE_DSN`, else the `PG*`
            variables.
        pool_size: Most connections; the first is opened at once, the others when needed.
        prepare: Use server-side prepared statements. Not behind PgBouncer in transaction mode,
            unless it is 1.21 or newer with `max_prepared_statements` above 0.
        pool_timeout: How long a call waits for a free connection; then `psycopg_pool.PoolTimeout`.
        actor: Who does what is done with this client, as events say; None: the login. A call then
            takes four messages instead of one.

    Every call is a transaction of its own. When the connection is lost during a call its outcome is
    unknown, and nothing is retried for you: see docs/reference/errors.md. Besides the errors that a
    method names, all raise psycopg's own (`psycopg.OperationalError` for a lost connection) for
    what is not about the queue, and `SchemaTooOld` on a database without the schema.
    """

    def __init__(
        self,
        conninfo: str | None = None,
        *,
        pool_size: int = 4,
        prepare: bool = False,
        pool_timeout: timedelta = timedelta(seconds=30),
        actor: str | None = None,
    ) -> None:
        self._pool: AsyncPoolRunner | None = AsyncPoolRunner(
            conninfo, size=pool_size, prepare=prepare, timeout=pool_timeout
        )
        super().__init__(self._pool, actor)

    @classmethod
    def on(cls, connection: Any, *, actor: str | None = None) -> Self:
        """A client on your own connection, to spawn inside your transaction.

        It never commits, rolls back or opens a transaction; as after any error, the transaction is
        aborted when a call fails, unless it ran in a savepoint. Needs no `open` and no `close`.

        Args:
            connection: Of psycopg, of asyncpg (for `AsyncClient`) or of psycopg2 (for `Client`); a
                connection or session of SQLAlchemy on one of them, or a `scoped_session`; Django's
                `django.db.connection`, for `Client`. Outside a transaction (Django: outside
                `atomic`) each call commits by itself.
            actor: As in the constructor; said in your transaction, and so to its end. With
                SQLAlchemy not in autocommit.

        Raises: BadArgument, if it is none of these.
        """
        client = cls.__new__(cls)
        client._pool = None
        AsyncPart.__init__(client, runner_on(connection), actor)
        return client

    async def open(self) -> None:
        """Connect; the same as entering the `with` block. Does nothing when it is open already.

        Raises: psycopg.OperationalError, at once, when the server cannot be reached or refuses.
        """
        if self._pool is not None:
            await self._pool.open()

    async def close(self) -> None:
        """Close the pool; calls that wait for a connection fail."""
        if self._pool is not None:
            await self._pool.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def schema_version(self) -> SchemaVersion:
        """What is installed in the database.

        Raises: SchemaTooOld, if nothing is.
        SQL: schema_version. Safe inside your transaction: yes.
        """
        return await self._row(calls.SCHEMA_VERSION)

    async def check_schema(self) -> None:
        """Refuse to go on with a schema that this package does not fit; call it once at start.

        A newer schema is fine within one major version: what a release's clients call stays.

        Raises: SchemaTooOld (nothing installed, or an upgrade is due), SchemaTooNew.
        SQL: schema_version. Safe inside your transaction: yes.
        """
        # Not at the top: what belongs to upgrades takes long to import.
        from hwqueue.schema.state import refuse_incompatible  # noqa: PLC0415

        refuse_incompatible(await self.schema_version())
