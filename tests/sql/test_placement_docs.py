"""Every placement that the reference shows, recipes included, is one."""

import json
import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.sql.api import Api
from tests.sql.test_normalise_lease_exprs import normal

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "placement.md").read_text()
BLOCKS = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
RECIPES = re.findall(r"^\| .* \| `(\{.*?\})`.* \|$", PAGE.split("## Recipes")[1], re.MULTILINE)


def test_there_are_some() -> None:
    assert BLOCKS
    assert len(RECIPES) > 15


@pytest.mark.parametrize("text", BLOCKS + RECIPES)
def test_shown_placement(api: Api, text: str) -> None:
    shown: Any = json.loads(re.sub(r"\bID\b", f'"{uuid4()}"', text))
    assert normal(api, shown).keys() == shown.keys()


def test_the_limits_are_those_that_hold(api: Api) -> None:
    table = PAGE.split("## Limits")[1].split("\n## ")[0]
    shown = [int(number) for number in re.findall(r"^\| .* \| (\d+) \|$", table, re.MULTILINE)]
    limits = api.conn.execute("select * from hwqueue.placement_limits()").fetchone()
    assert limits is not None
    assert shown == [*limits, 65536]
