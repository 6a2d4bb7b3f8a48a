"""The glossary has each word once, in order; what tests/words.toml says of prose holds."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
WORDS = tomllib.loads((ROOT / "tests" / "words.toml").read_text(encoding="utf-8"))
FIRST = "You spawn a lease (a job). A node claims it."


def groups() -> dict[str, list[tuple[str, str, str]]]:
    """The rows of each group: word, meaning, example."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for part in re.split(r"^## ", GLOSSARY.read_text(encoding="utf-8"), flags=re.M)[1:]:
        title, _, body = part.partition("\n")
        rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+?) \| (.+?) \|$", body, re.M)
        assert len(rows) == len(re.findall(r"^\| \*\*", body, re.M)), f"{title}: a row is no row"
        found[title] = rows
    return found


def test_it_begins_with_the_word_that_others_use_otherwise() -> None:
    text = " ".join(GLOSSARY.read_text(encoding="utf-8").split("\n", 2)[2].split())
    assert text.startswith(f"**{FIRST}")


def test_each_word_is_there_once_in_order_with_a_meaning_and_an_example() -> None:
    words = [word.lower() for rows in groups().values() for word, _, _ in rows]
    assert len(words) > 60
    assert sorted(words) == sorted(set(words))
    for title, rows in groups().items():
        own = [word.lower() for word, _, _ in rows]
        assert own == sorted(own), title
        for word, meaning, example in rows:
            assert len(meaning) > 10, word
            assert example.strip(), word
    # those that explanations rest on
    needed = {
        "affinity term", "bloat", "cache miss", "claim", "dead tuple", "head-of-line blocked",
        "leader election", "lease", "lock stripe", "low-water mark", "mvcc snapshot", "patience",
        "placement class", "queue head", "reap", "score group",
    }  # fmt: skip
    assert needed <= set(words)


def files(kind: str) -> list[Path]:
    """The files of a kind that are looked at."""
    found = {path for pattern in WORDS["where"][kind] for path in ROOT.glob(pattern)}
    left_out = {path for pattern in WORDS["where"]["generated"] for path in ROOT.glob(pattern)}
    return sorted(found - left_out)


def lines_of_text(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page outside fenced code."""
    fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def lines_of_python(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of docstrings, of strings that stand alone, and of comments."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str):
                for offset, line in enumerate(text.split("\n")):
                    yield node.lineno + offset, line
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def lines_of_sql(path: Path) -> Iterator[tuple[int, str]]:
    """The comments of a file of SQL, and what follows `comment on`."""
    commented = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        commented = commented or line.startswith("comment on ")
        if commented:
            yield number, line
        elif "--" in line:
            yield number, line.partition("--")[2]
        commented = commented and not line.rstrip().endswith(";")


def banned_in(text: str, *, lists: tuple[str, ...] = ("banned",)) -> list[str]:
    """The banned words of a text, as they are listed."""
    words = [word for name in lists for word in WORDS[name]]
    return [word for word in words if re.search(rf"\b(?:{word})\b", text, re.I)]


def test_banned_words_are_found() -> None:
    assert banned_in("It gives three rows.") == [r"gives(?! (up|way)\b)"]
    assert banned_in("Counted Anew, whoever asks, so many times") == ["anew", "so many", "whoever"]
    assert banned_in("It gives up; renewed, ever so slightly.") == []


# Names of Postgres, its tools and its providers that our code does not use.
POSTGRES = {
    "autovacuum_naptime", "azure_pg_admin", "deadlock_timeout", "default_transaction_isolation",
    "max_prepared_transactions", "max_slot_wal_keep_size", "max_wal_size", "n_dead_tup",
    "neon_superuser", "rds_superuser",
    "pg_cancel_backend", "pg_prepared_xacts", "pg_replication_slots", "pg_stat_statements",
    "pg_stat_user_tables", "pg_upgrade", "shared_buffers", "transaction_timeout", "wal_level", "wal_status",
}  # fmt: skip
READERS = {"text": lines_of_text, "python": lines_of_python, "sql": lines_of_sql}


@pytest.mark.parametrize("kind", READERS)
def test_banned_words_are_not_used(kind: str) -> None:
    read = READERS[kind]
    looked_at = files(kind)
    assert len(looked_at) > 20
    found = [
        f"{path.relative_to(ROOT)}:{number}: {word}: {line.strip()}"
        for path in looked_at
        if banned_in(path.read_text(encoding="utf-8"))  # to tell prose from code takes longer
        for number, line in read(path)
        for word in banned_in(line)
    ]
    assert not found, "see tests/words.toml for what to say instead:\n" + "\n".join(found)


def comments_of(kind: str, snapshot: str) -> dict[str, str]:
    """What the database says of its tables, or of its columns, by name."""
    found = re.findall(rf"^COMMENT ON {kind} hwqueue\.(\S+) IS '(.*)';$", snapshot, re.M)
    return {name: text.replace("''", "'") for name, text in found}


def comment_errors(snapshot: str) -> list[str]:
    """Tables without a comment, and comments of tables and columns in words of our own."""
    tables = set(re.findall(r"^CREATE TABLE hwqueue\.(\w+)", snapshot, re.M)) - {"alembic_version"}
    of_tables = comments_of("TABLE", snapshot)
    bare = {name for name in tables - set(of_tables) if not re.fullmatch(r"event_\d+", name)}
    return sorted(f"{name} has no comment" for name in bare) + [
        f"{name}: {word}: {text}"
        for name, text in (of_tables | comments_of("COLUMN", snapshot)).items()
        for word in banned_in(text, lists=("banned", "comments"))
    ]


def test_every_table_has_a_comment_and_comments_use_the_fields_words() -> None:
    snapshot = (ROOT / "sql" / "schema.snapshot.sql").read_text(encoding="utf-8")
    assert len(comments_of("TABLE", snapshot)) > 50
    assert len(comments_of("COLUMN", snapshot)) > 200
    assert not comment_errors(snapshot), "see [comments] in tests/words.toml"


def test_prose_is_wrapped() -> None:
    width = WORDS["width"]
    longer = {ROOT / name for name in width["longer"]}
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files("text")
        if path not in longer
        for number, line in lines_of_text(path)
        if len(line) > width["columns"] and not line.lstrip().startswith(("|", ">"))
    ]
    assert not found


def test_the_page_of_tables_has_each_once() -> None:
    snapshot = (ROOT / "sql" / "schema.snapshot.sql").read_text(encoding="utf-8")
    made = set(re.findall(r"^CREATE TABLE hwqueue\.(\w+)", snapshot, re.M))
    page = (ROOT / "docs" / "reference" / "tables.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \| \S", page, re.M)
    partitions = {name for name in made if re.fullmatch(r"event_\d+", name)}
    assert sorted(listed) == sorted(made - partitions - {"alembic_version"})


def statements_of(page: Path) -> list[str]:
    """Where a page names tables: all of it; its SQL if it also names files and options."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```sql\n(.*?)^```", text, re.M | re.S) if page.parent.name == "run" else [text]


def test_explanations_name_what_is_there() -> None:
    """Names in backticks, `like_this`, are in the code: a renamed table is renamed here, too."""
    sources = [
        *ROOT.glob("sql/**/*.sql"),
        *ROOT.glob("migrations/**/*.sql"),
        *ROOT.glob("hwqueue/**/*.py"),
        *ROOT.glob("lab/**/*.py"),
        *ROOT.glob("deploy/*.sql"),
        *ROOT.glob("docker/*.sql"),
    ]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    known = set(re.findall(r"\w+", text)) | POSTGRES
    # of tests the names of files only: a name that is left over in one would hide that it is gone
    known |= {path.stem for path in (*sources, *ROOT.glob("tests/**/*.py"))}
    pages = [
        ROOT / "hwqueue" / "README.md",
        ROOT / "sql" / "README.md",
        *ROOT.glob("docs/explanation/*.md"),
        *ROOT.glob("docs/run/*.md"),
        *ROOT.glob("lab/*.md"),
    ]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {name}"
        for path in pages
        for number, line in lines_of_text(path)
        for name in re.findall(r"`(?:hwqueue\.)?([a-z]+(?:_[a-z0-9]+)+)`", line)
        if name not in known
    ]
    assert not found
    tables = set(re.findall(r"hwqueue\.(\w+)", (ROOT / "sql" / "schema.snapshot.sql").read_text()))
    queried = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in pages
        for text in statements_of(path)
        for name in re.findall(r"\bhwqueue\.(\w+)", text)
        if name not in tables | {"actor", "recent_due_scan", "tenant"} and not name.startswith(("py", "test"))
    ]
    assert not queried


def test_comments_of_sql_name_what_is_there() -> None:
    """A name with an underscore, in a comment or in `comment on`, is a name in the code."""
    sources = files("sql")
    code = [path.read_text(encoding="utf-8") for path in ROOT.glob("hwqueue/**/*.py")]
    said: list[tuple[str, str]] = []
    for path in sources:
        comments = dict(lines_of_sql(path))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            comment = comments.get(number, "")
            code.append(line.removesuffix(comment))
            said.append((f"{path.relative_to(ROOT)}:{number}", comment))
    known = set(re.findall(r"\w+", "\n".join(code))) | POSTGRES
    named = (*sources, *ROOT.glob("tests/**/*.py"), *ROOT.glob("docs/**/*.md"))
    known |= {path.stem for path in named}
    assert len(said) > 1000
    found = [
        f"{where}: {name}"
        for where, comment in said
        for name in re.findall(r"\b[a-z]+(?:_[a-z0-9]+)+\b", comment)
        if name not in known
    ]
    assert not found
