"""Codes of events: those in the functions and those on the page are the same."""

import re
from pathlib import Path

from hwqueue.schema import files
from hwqueue.schema.files import SQL_DIR
from hwqueue.types import EVENT_CODES

PAGE = Path(__file__).parents[2] / "docs" / "run" / "events.md"
INSTALLATION = Path(files.__file__).parent / "sql" / "write_info.sql"
# the first argument: one code, or one of several
_CASE = r"(?:case when .*? then )?'(\w+)'(?:\s+when .*? then '(\w+)')?(?: else '(\w+)')?"
WRITTEN = re.compile(rf"\bnote_(?:e\w+|leases|policy)\(\s*{_CASE}")


# a code that is made of a prefix and a state, and the states that a gang can be in
OF_A_STATE = re.compile(r"hwqueue\.gang_states\(\).*?select array\[([^]]+)\]", re.DOTALL)


def codes_in_sql() -> set[str]:
    """Every code that some function writes."""
    texts = [path.read_text(encoding="utf-8") for path in (*SQL_DIR.rglob("*/*.sql"), INSTALLATION)]
    codes = {code for text in texts for pair in WRITTEN.findall(text) for code in pair if code}
    prefixes = {code for code in codes if code.endswith("_")}
    assert prefixes == {"gang_"}
    listed = OF_A_STATE.search((SQL_DIR / "gangs" / "spawn.sql").read_text(encoding="utf-8"))
    assert listed is not None
    states = re.findall(r"'(\w+)'", listed[1])
    return codes - prefixes | {f"gang_{state}" for state in states}


def test_the_page_lists_every_code() -> None:
    assert len(codes_in_sql()) > 25
    listed = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(codes_in_sql())
    assert sorted(EVENT_CODES) == sorted(codes_in_sql())
