"""What the process of a worker does for itself, and a worker in a program does not."""

import gc

from hwqueue.worker import Worker, WorkerSettings, spare_collector
from tests.unit.test_worker_runner import app


def test_what_is_imported_is_not_collected_again_and_again() -> None:
    gc.unfreeze()
    try:
        spare_collector()
        kept = gc.get_freeze_count()
        assert kept > 10_000
        assert len(gc.get_objects()) < kept / 10
    finally:
        gc.unfreeze()


async def test_a_worker_in_a_program_leaves_collections_to_it() -> None:
    frozen = gc.get_freeze_count()
    worker = Worker(app, WorkerSettings(dsn="", detect=False))
    worker.stop()
    await worker.run()
    assert gc.get_freeze_count() <= frozen
