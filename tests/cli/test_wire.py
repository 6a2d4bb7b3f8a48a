"""`hwqueue wire`: blobs in every form that people have them in; no database is asked."""

import json
from base64 import b64encode
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hwqueue.cli.main import app
from tests.wire.vectors import ACCEPTED, VECTORS, Vector

pytestmark = pytest.mark.thorough

BLOB = bytes.fromhex("0910000903820600040000002a0902000101777700010a")
PARSED = {
    "affinity": [
        {
            "category": "topology",
            "strength": "preferred",
            "direction": "away",
            "target_type": "rack_id",
            "target": 42,
        }
    ],
    "cpu_isolation": "whole_core",
    "gpu_exclusivity": None,
    "unknown_tags": ["0x7777"],
}
TEXTS = [f"\\x{BLOB.hex()}", BLOB.hex().upper(), b64encode(BLOB).decode()]


def run(*args: str, stdin: bytes | None = None, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["wire", *args], input=stdin)
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_typed_piped_or_in_a_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "blob.txt"
    file.write_text(f"{text}\n")
    for result in (
        run("decode", text, "--json"),
        run("decode", str(file), "--json"),
        run("decode", "-", "--json", stdin=f"{text}\n".encode()),
        run("decode", "--json", stdin=text.encode()),
    ):
        assert json.loads(result.stdout) == PARSED


@pytest.mark.parametrize("vector", ACCEPTED, ids=str)
def test_raw_bytes_are_never_taken_for_text(vector: Vector, tmp_path: Path) -> None:
    file = tmp_path / "blob"
    file.write_bytes(vector.blob)
    for result in (run("decode", str(file), "--json"), run("decode", "-", "--json", stdin=vector.blob)):
        assert json.loads(result.stdout) == vector.parsed


def test_for_people_and_what_it_means() -> None:
    assert run("decode", TEXTS[0]).stdout.splitlines() == [
        "category  strength   direction  target_type  target",
        "topology  preferred  away       rack_id      42",
        "cpu_isolation    whole_core",
        "gpu_exclusivity  -",
        "skipped_tags     0x7777",
    ]
    empty = run("decode", "")
    assert empty.stderr == "no affinity\n"
    assert empty.stdout.splitlines()[0] == "cpu_isolation    -"
    assert json.loads(run("decode", TEXTS[0], "--placement").stdout) == {
        "prefer": [{"when": [{"away": True, "rack": [42]}], "weight": 100}],
        "isolation": {"cpu": "whole_core"},
    }


def test_a_bad_blob_tells_the_byte() -> None:
    result = run("decode", "09020001ff", code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("error: not a valid params blob: sentinel class at byte 4\nhint: ")
    error = json.loads(run("decode", "09020001ff", "--json", code=2).stderr)
    assert error["sqlstate"] == "QHW01"
    assert error["detail"] == {"reason": "sentinel_class", "offset": 4, "class": "0xff"}


@pytest.mark.parametrize("vector", [v for v in VECTORS if v.parsed is None], ids=str)
def test_every_bad_vector_ends_it(vector: Vector) -> None:
    run("decode", f"\\x{vector.blob.hex()}", code=2)


@pytest.mark.parametrize("text", ["0x0910", "091", "no-such-file", "\\xzz", "a" * 300 + "!", "\0"])
def test_what_is_no_blob(text: str) -> None:
    result = run("decode", text, code=2)
    assert "neither hex, nor base64, nor a file" in result.stderr


def test_encode_is_the_way_back(tmp_path: Path) -> None:
    """All but the tags that were skipped: those are for others."""
    file = tmp_path / "intent.json"
    file.write_text(json.dumps(PARSED))
    blob = BLOB[:-5]
    assert run("encode", str(file)).stdout == f"\\x{blob.hex()}\n"
    assert run("encode", "-", stdin=file.read_bytes()).stdout == f"\\x{blob.hex()}\n"
    in_base64 = run("encode", json.dumps(PARSED), "--form", "base64").stdout
    assert in_base64 == f"{b64encode(blob).decode()}\n"
    assert run("encode", str(file), "--form", "raw").stdout_bytes == blob
    found = json.loads(run("encode", str(file), "--json").stdout)
    assert found == {"wire": f"\\x{blob.hex()}", "bytes": len(blob)}


ENTRY = {"category": "trust", "strength": "required", "target_type": "trust_domain", "target": "d"}


@pytest.mark.parametrize(
    ("intent", "message"),
    [
        ([], "a JSON object is needed"),
        ({"cpu": "whole_core"}, "intent.cpu must be left out"),
        ({"cpu_isolation": "cores"}, "cpu_isolation must be one of best_effort, "),
        ({"affinity": [ENTRY | {"weight": 1}]}, "affinity[0].weight must be left out"),
        ({"affinity": [ENTRY | {"target": 7}]}, "affinity[0].target must be a trust_domain"),
        (
            {"affinity": [ENTRY | {"target_type": "rack_id", "target": 2**32}]},
            "affinity[0].target must be the number of a rack",
        ),
        ({"affinity": [ENTRY | {"direction": "away"}]}, "direction not allowed at byte 5"),
        ({"affinity": [ENTRY | {"target": "\ud800"}]}, "invalid utf8 at byte 9"),
    ],
)
def test_what_cannot_be_written(intent: object, message: str) -> None:
    assert message in run("encode", json.dumps(intent), code=2).stderr
