"""The how-to about tests, docs/use/testing.md: its files make a project, and its tests pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shell_lines import tokens

PAGE = Path(__file__).parents[2] / "docs" / "use" / "testing.md"
pytest_plugins = ["pytester"]
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="no checkout")

MESSAGE = """
import pytest
from hwqueue.testing import assert_spawned, create_queues
from tasks import app, confirm

def test_message(hwqueue_client):
    create_queues(hwqueue_client, app)
    confirm.spawn(hwqueue_client, to="ann", lang="de")
    with pytest.raises(AssertionError) as told:
        assert_spawned(hwqueue_client, confirm, params={{"to": "bob"}})
    assert str(told.value) == {said!r}
"""


def test_the_examples(pytester: pytest.Pytester, server_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HWQUEUE_TEST_DSN", server_dsn)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")
    files = {}
    for token in tokens(PAGE):
        if token.type == "fence" and token.info == "python":
            files[token.content.partition("\n")[0].removeprefix("# ")] = token.content
        elif token.type == "fence" and token.info == "text":
            files["test_message.py"] = MESSAGE.format(said=token.content.rstrip("\n"))
    for name, content in files.items():
        (pytester.path / name).write_text(content, encoding="utf-8")
    tests = sum(content.count("\ndef test_") for content in files.values())
    assert tests >= 12
    # one of them is run twice, with the same order: the first is rolled back
    pytester.runpytest_subprocess("-n0").assert_outcomes(passed=tests + 1)
