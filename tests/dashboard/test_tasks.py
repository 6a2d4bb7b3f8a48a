"""The part of the queue page about tasks."""

import re
from uuid import uuid4

from hwqueue.client import Client
from hwqueue.types import NodeSpec
from tests.dashboard.conftest import Pages
from tests.dashboard.test_pages import HOSTILE, check


async def test_without_any_it_says_what_to_type(pages: Pages) -> None:
    assert "hwqueue task sync" in await pages.page("/queues")


async def test_tasks_with_their_defaults_and_whether_they_are_served(pages: Pages, sql: Client) -> None:
    sql.set_task("media/train", {"placement": {"resources": {"gpu": 1}}, "max_attempts": 1})
    sql.set_task("mail", {"labels": {"<em>": HOSTILE}})
    sql.set_task("plain")
    spec = NodeSpec(name="one", instance_id="1", tasks=["mail", "other"])
    sql.register_node(uuid4(), spec)
    text = await pages.page("/queues")
    check(text)
    assert "<em>" not in text
    rows = dict(re.findall(r'<tr id="task-([^"]+)">(.*?)</tr>', text, re.DOTALL))
    assert list(rows) == ["mail", "media/train", "plain"]
    assert "none has a handler" in rows["media/train"]
    assert "none has a handler" not in rows["mail"]
    assert "&#34;gpu&#34;: 1" in rows["media/train"]
    assert "max attempts <code>1</code>" in rows["media/train"]
    assert 'href="/leases?task=media%2Ftrain"' in rows["media/train"]
    assert "none</td>" in rows["plain"]
