"""Tests of code that uses the queue: run what was spawned, assert what was, on a real database.

There is no fake queue: it would be a second truth. With the pytest plugin each test has a database
of its own (docs/use/testing.md); the functions here work on any that has the schema.

Functions that take a client take both kinds. With an `AsyncClient`, await the result.
"""

from hwqueue.extras import needs
from hwqueue.testing.clock import Clock, install_clock

with needs("test"):
    from hwqueue.testing.context import make_async_context, make_claim, make_context
    from hwqueue.testing.inline import inline
    from hwqueue.testing.nodes import Fleet, MadeUpNode
    from hwqueue.testing.running import create_queues, drain, run_one
    from hwqueue.testing.runs import Drained, Run
    from hwqueue.testing.spawns import assert_not_spawned, assert_spawned, claim_one, spawned

__all__ = [
    "Clock",
    "Drained",
    "Fleet",
    "MadeUpNode",
    "Run",
    "assert_not_spawned",
    "assert_spawned",
    "claim_one",
    "create_queues",
    "drain",
    "inline",
    "install_clock",
    "make_async_context",
    "make_claim",
    "make_context",
    "run_one",
    "spawned",
]
