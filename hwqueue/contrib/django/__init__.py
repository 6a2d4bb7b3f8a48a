"""hwqueue in a Django project: `"hwqueue.contrib.django"` in INSTALLED_APPS.

`docs/use/web.md` begins with a project. What is here may be imported before Django's apps are
loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ParamSpec, TypeVar

from hwqueue.app import App
from hwqueue.extras import loader, needs

with needs("django"):
    from asgiref.sync import sync_to_async

from hwqueue.client import TaskSpawned
from hwqueue.contrib.django.connecting import client
from hwqueue.handler.task import Task

if TYPE_CHECKING:
    from hwqueue.contrib.django.loading import load_app as load_app

__all__ = ["app", "aspawn", "client", "load_app"]

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

app = App()
"""The app of the project, unless `HWQUEUE["APP"]` names another one."""


async def aspawn(task: Task[P, R_co], *args: P.args, **kwargs: P.kwargs) -> TaskSpawned[R_co]:
    """`task.spawn(client(), ...)` for an async view: in the thread that holds Django's connection.

    It commits by itself: Django has no transaction in async code. To spawn in one, write a function
    with `transaction.atomic()` and call it through `sync_to_async`.

    Raises: as `Task.spawn`.
    """

    def spawn() -> TaskSpawned[R_co]:
        return task.spawn(client(), *args, **kwargs)

    return await sync_to_async(spawn)()


# it needs Django's apps
__getattr__ = loader(__name__, "django", "hwqueue.contrib.django.loading", ("load_app",))
