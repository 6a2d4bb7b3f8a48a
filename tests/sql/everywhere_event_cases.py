"""What makes each event of an everywhere task happen, as in event_cases."""

from tests.calls import Row
from tests.sql.event_cases import Case, Stage


def _told(stage: Stage) -> Row:
    """Spawn one and stop it, which tells of each once; what the event says."""
    queue = stage.api.queue()
    row = stage.api.row("spawn_everywhere", queue=queue, task="agent")
    stage.api.rows("reap")
    stage.api.value("stop_everywhere", everywhere=row["everywhere_id"])
    stage.api.value("stop_everywhere", everywhere=row["everywhere_id"], running="stop")
    for _ in range(3):
        stage.api.rows("reap")
    detail = {"everywhere_id": str(row["everywhere_id"]), "mode": "always"}
    return {"queue": queue, "lease_id": None, "node_id": None, "detail": detail}


EVERYWHERE_CASES: dict[str, Case] = dict.fromkeys(
    ("everywhere_spawned", "everywhere_stopping", "everywhere_stopped"), _told
)
