"""Python values as JSON and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NewType, NotRequired, TypedDict
from uuid import UUID

import pydantic
import pydantic.dataclasses
import pytest
from typing_extensions import TypeAliasType

from hwqueue import convert
from hwqueue.convert import Misfit, jsonable, reader_of
from hwqueue.errors import BadArgument, ConfigError


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1


@dataclass
class Light:
    colour: Colour
    watts: float = 40.0


@dataclass
class Scene:
    name: str
    lights: list[Light] = field(default_factory=list)
    parent: Scene | None = None


class Options(TypedDict):
    size: int
    title: NotRequired[str]


class Camera(pydantic.BaseModel):
    at: datetime
    angle: float = pydantic.Field(alias="viewAngle", gt=0)


@pydantic.dataclasses.dataclass
class Lens:
    length: Annotated[int, pydantic.Field(ge=10)]


@dataclass
class Shot:
    camera: Camera
    lens: Lens


@dataclass
class Not:
    arg: Term
    kind: Literal["not"]


@dataclass
class Negative:
    arg: Term
    kind: Literal["negative"]


Term = Not | Negative | int
UserId = NewType("UserId", int)
AT = datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
ID = UUID("01a207df-0aa8-7bec-971e-c548c5cba79c")
NESTED = Scene("end", [Light(Colour.RED)], Scene("start"))


@pytest.mark.parametrize(
    ("kind", "value", "written"),
    [
        (Any, {"a": [1]}, {"a": [1]}),
        (None, None, None),
        (bool, True, True),
        (int, 3, 3),
        (float, 0.5, 0.5),
        (float, 1e16, 10**16),
        (str, "ü", "ü"),
        (list[int], [1, 2], [1, 2]),
        (Sequence[int], [1, 2], [1, 2]),
        (tuple[int, ...], (1, 2), [1, 2]),
        (tuple[int, str], (1, "a"), [1, "a"]),
        (tuple, (1, "a"), [1, "a"]),
        (dict[str, Light], {"a": Light(Colour.RED)}, {"a": {"colour": "red", "watts": 40.0}}),
        (Mapping[UUID, int], {ID: 1}, {str(ID): 1}),
        (dict[Colour, int], {Colour.RED: 1}, {"red": 1}),
        (int | None, None, None),
        (int | str, "1", "1"),
        (Literal["a", 3], 3, 3),
        (Colour, Colour.BLUE, "blue"),
        (Level, Level.LOW, 1),
        (datetime, AT, "2030-01-02T03:04:05.000678+00:00"),
        (date, date(2030, 1, 2), "2030-01-02"),
        (time, time(3, 4), "03:04:00"),
        (timedelta, timedelta(minutes=1.5), 90.0),
        (UUID, ID, str(ID)),
        (Decimal, Decimal("1.10"), "1.10"),
        (UserId, 7, 7),
        (TypeAliasType("Width", int), 7, 7),
        (Annotated[int, ["any note"]], 7, 7),
        (Options, {"size": 1}, {"size": 1}),
        (
            Scene,
            NESTED,
            {
                "name": "end",
                "lights": [{"colour": "red", "watts": 40.0}],
                "parent": {"name": "start", "lights": [], "parent": None},
            },
        ),
        (
            Shot,
            Shot(Camera(at=AT, viewAngle=1.5), Lens(50)),
            {"camera": {"at": "2030-01-02T03:04:05.000678Z", "viewAngle": 1.5}, "lens": {"length": 50}},
        ),
    ],
)
def test_values_go_to_json_and_back(kind: Any, value: Any, written: Any) -> None:
    there = jsonable(value, "params")
    assert json.loads(json.dumps(there)) == written
    back = reader_of(kind)(written)
    assert (back, type(back)) == (value, type(value))


@pytest.mark.parametrize(
    ("kind", "value", "where", "what"),
    [
        (int, "1", "", 'must be an integer, not "1"'),
        (int, True, "", "must be an integer, not true"),
        (int, 1.0, "", "must be an integer, not 1.0"),
        (float, "nan", "", 'must be a number, not "nan"'),
        (float, 10**400, "", "must be a number that a float holds"),
        (bool, 1, "", "must be true or false, not 1"),
        (str, None, "", "must be a string, not null"),
        (None, 1, "", "must be null, not 1"),
        (int | None, "a", "", 'must be an integer, not "a", or must be null, not "a"'),
        (list[int], [1, "2"], "[1]", 'must be an integer, not "2"'),
        (list[int], {"a": 1}, "", 'must be a list, not {"a": 1}'),
        (tuple[int, str], [1], "", "must have 2 elements, not 1"),
        (dict[str, int], {"a": "b"}, ".a", 'must be an integer, not "b"'),
        (dict[Colour, int], {"green": 1}, " (key 'green')", 'must be one of "red", "blue"'),
        (Literal["a", 3], "3", "", 'must be one of "a", 3, not "3"'),
        (Colour, "green", "", 'must be one of "red", "blue", not "green"'),
        (Level, True, "", "must be one of 1, not true"),
        (datetime, "soon", "", 'must be a time in ISO 8601, not "soon"'),
        (date, 3, "", "must be a date in ISO 8601, not 3"),
        (timedelta, 1e300, "", "must be a number of seconds, not 1e+300"),
        (UUID, "x", "", 'must be a UUID, not "x"'),
        (Decimal, "x", "", 'must be a decimal number, not "x"'),
        *((Decimal, text, "", "must be a decimal number") for text in ("NaN", "sNaN", "-Infinity")),
        *((Decimal, text, "", "must be a decimal number") for text in ("1e4301", "1e-4301")),
        (Light, [], "", "must be an object, not []"),
        (Light, {}, ".colour", "is missing"),
        (Light, {"colour": "red", "size": 1}, ".size", "is unknown: there are colour, watts"),
        (Options, {"title": "a"}, ".size", "is missing"),
        (
            Scene,
            {"name": "a", "lights": [{"colour": "red"}, {"colour": "green"}]},
            ".lights[1].colour",
            'must be one of "red", "blue", not "green"',
        ),
        (Scene, {"name": "a", "parent": {"name": 3}}, ".parent.name", "must be a string, not 3"),
        (Camera, {"at": "2030-01-02T03:04:05Z"}, ".viewAngle", "does not fit: Field required"),
        (
            Shot,
            {"camera": {"at": 0, "viewAngle": 1}, "lens": {"length": 3}},
            ".lens.length",
            "does not fit: Input should be greater than or equal to 10, got 3",
        ),
        (
            Annotated[int, pydantic.Field(gt=0)],
            -1,
            "",
            "does not fit: Input should be greater than 0, got -1",
        ),
    ],
)
def test_what_does_not_fit_is_said_with_its_path(kind: Any, value: Any, where: str, what: str) -> None:
    with pytest.raises(Misfit) as misfit:
        reader_of(kind)(value)
    assert misfit.value.where == where
    assert misfit.value.what.startswith(what)


@pytest.mark.parametrize(("leaf", "kind"), [(1, "negative"), ("x", "negative"), (1, "neither")], ids=str)
def test_a_union_that_contains_itself_reads_each_value_once(
    leaf: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    as_object = convert._OBJECT

    def counted(value: Any) -> Any:
        nonlocal looks
        looks += 1
        assert looks <= 2 * 199 + 2, "a member reads a value again"  # two members, and the leaf
        return as_object(value)

    monkeypatch.setattr(convert, "_OBJECT", counted)
    value: Any = leaf
    for level in range(199):
        value = {"arg": value, "kind": "not" if level else kind}
    if (leaf, kind) == (1, "negative"):
        assert isinstance(reader_of(Term)(value), Not)
    else:
        with pytest.raises(Misfit) as misfit:
            reader_of(Term)(value)
        assert misfit.value.where.startswith(".arg" * 198)
    assert looks >= 199


def test_the_rest_of_a_large_value_is_not_written_out() -> None:
    class Items(list[int]):
        def __iter__(self) -> Iterator[int]:
            for at in range(1000):
                assert at < 100, "all of it is written"
                yield at

    with pytest.raises(Misfit, match=r"must be an integer, not \[0, 1, 2, .*\.\.\.$"):
        reader_of(int)(Items([0]))


@pytest.mark.parametrize("kind", [set[int], object().__class__.__init__, Exception, list[bytes]])
def test_a_type_without_a_json_form_is_refused_at_once(kind: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be made from JSON"):
        reader_of(kind)


def test_json_is_not_copied_and_what_has_no_json_form_is_refused_with_its_path() -> None:
    value = {"a": [1, 2]}
    assert jsonable(value, "params") is value
    with pytest.raises(BadArgument, match=r"^params\.parent\.lights\[0\] is of type bytes, not JSON"):
        jsonable(Scene("a", parent=Scene("b", lights=[b"x"])), "params")  # type: ignore[list-item]
    scene = Scene("a")
    scene.parent = scene
    with pytest.raises(BadArgument, match="nested more than 200 deep"):
        jsonable(scene, "params")
