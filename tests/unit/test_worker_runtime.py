"""What the process of a worker does for itself."""

import gc

from hwqueue.worker.runtime import spare_collector


def test_what_is_imported_is_not_collected_again_and_again() -> None:
    gc.unfreeze()
    try:
        spare_collector()
        kept = gc.get_freeze_count()
        assert kept > 10_000
        assert len(gc.get_objects()) < kept / 10
    finally:
        gc.unfreeze()
