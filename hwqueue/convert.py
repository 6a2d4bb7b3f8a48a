"""Python values as JSON and back: what the arguments and results of typed tasks may be.

Both directions know the scalars of JSON, lists, tuples, dicts, TypedDicts, dataclasses, enums,
times, `timedelta` (as seconds), `UUID` and `Decimal` (as text). They are written and read the same
whether or not pydantic is installed; models of pydantic are read and written by pydantic itself.

Reading is strict: `"1"` is no integer, and a key that a dataclass does not have is refused.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import MISSING, fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin
from uuid import UUID

from hwqueue.client._json import MAX_DEPTH, check_json
from hwqueue.errors import BadArgument, ConfigError

Reader = Callable[[Any], Any]

_MOST_DECIMAL_PLACES = 4300  # before or after the point; Python reads no longer integers either


class Misfit(Exception):
    """A JSON value is not of the wanted type.

    Attributes:
        where: Path of it from the value that was read, such as `.lights[2]`; may be empty.
        what: What is wrong with it, a sentence without its subject.
    """

    def __init__(self, what: str, where: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where

    def under(self, step: str) -> Misfit:
        """The same, seen from one level further out."""
        return Misfit(self.what, step + self.where)


def jsonable(value: Any, path: str) -> Any:
    """The value as JSON; itself, if it is JSON already.

    Raises: BadArgument, with the path of what has no JSON form.
    """
    try:
        check_json(value, path)
    except BadArgument:
        value = _to_json(value, 0)
        check_json(value, path)
    return value


def _to_json(value: Any, depth: int) -> Any:  # noqa: PLR0911
    """What is not known stays as it is, and so does what is nested too deep."""
    if depth > MAX_DEPTH:
        return value
    if isinstance(value, Enum):
        return _to_json(value.value, depth)
    kind: Any = type(value)
    if _is_of_pydantic(kind):
        return _writer(kind).dump_python(value, mode="json", by_alias=True)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.init]
        return {name: _to_json(getattr(value, name), depth + 1) for name in names}
    if isinstance(value, Mapping):
        return {_to_json(key, depth): _to_json(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(each, depth + 1) for each in value]
    if isinstance(value, date | time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value) if isinstance(value, UUID | Decimal) else value


def reader_of(annotation: Any) -> Reader:
    """A function that makes a value of the annotated type from JSON, or raises `Misfit`.

    Raises: ConfigError, for a type that has no JSON form here.
    """
    return _reader(annotation, {})


def _reader(annotation: Any, known: dict[Any, Reader]) -> Reader:  # noqa: PLR0911
    """`known`: the readers that are being made; dataclasses and unions may contain themselves."""
    if get_origin(annotation) is Annotated:  # first: its notes need have no hash
        return _annotated_reader(annotation, known)
    if annotation is Any or annotation is object or isinstance(annotation, TypeVar):
        return _as_it_is
    if annotation in known:
        return known[annotation]
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if hasattr(annotation, "__supertype__"):  # of NewType
        return _reader(annotation.__supertype__, known)
    if type(annotation).__name__ == "TypeAliasType":  # of a `type` statement
        return _reader(annotation.__value__, known)
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if origin is Literal:
        return _choice_reader({each: each for each in arguments})
    if origin in (Union, types.UnionType):
        return _union_of(arguments, known)
    if isinstance(origin, type):
        return _class_reader(annotation, origin, arguments, known)
    raise _unreadable(annotation)


def _class_reader(
    annotation: Any, origin: type, arguments: tuple[Any, ...], known: dict[Any, Reader]
) -> Reader:
    if _is_of_pydantic(origin):
        return _pydantic_reader(annotation)
    if issubclass(origin, Enum):
        return _choice_reader({_to_json(member.value, 0): member for member in origin})
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        return _tuple_reader([_reader(each, known) for each in arguments])
    if origin in (list, tuple, Sequence):
        make = tuple if origin is tuple else list
        return _list_reader(make, _reader(arguments[0], known) if arguments else _as_it_is)
    if typing.is_typeddict(origin) or is_dataclass(origin):
        return _object_reader(annotation, origin, known)
    if is_mapping(origin):
        keys, values = arguments or (Any, Any)
        return _dict_reader(_reader(keys, known), _reader(values, known))
    raise _unreadable(annotation)


def is_mapping(annotation: Any) -> bool:
    """Whether a type is `dict`, `Mapping` or a TypedDict."""
    origin = get_origin(annotation) or annotation
    return isinstance(origin, type) and (
        typing.is_typeddict(origin) or (issubclass(origin, Mapping) and not is_dataclass(origin))
    )


def is_record(annotation: Any) -> bool:
    """Whether a type is a dataclass or a model of pydantic."""
    origin = get_origin(annotation) or annotation
    return isinstance(origin, type) and (is_dataclass(origin) or _is_of_pydantic(origin))


def _unreadable(annotation: Any) -> ConfigError:
    shown = str(annotation) if get_args(annotation) else getattr(annotation, "__name__", annotation)
    return ConfigError(
        f"{shown} cannot be made from JSON",
        hint="take JSON, a dataclass, an enum, a time, a UUID, a Decimal or a pydantic model",
    )


_SHOWN = json.JSONEncoder(default=str)


def _as_it_is(value: Any) -> Any:
    return value


def _shown(value: Any) -> str:
    """The beginning of it; the rest is not written, however large it is."""
    text = ""
    for piece in _SHOWN.iterencode(value):
        text += piece
        if len(text) > 60:
            return f"{text[:60]}..."
    return text


def _of_type(what: str, *allowed: type) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            raise Misfit(f"must be {what}, not {_shown(value)}")
        return value

    return read


def _float(value: Any) -> float:
    try:
        return float(_NUMBER(value))
    except OverflowError:
        raise Misfit(f"must be a number that a float holds, not {_shown(value)}") from None


def _of_text(what: str, parse: Callable[[str], Any], *allowed: type) -> Reader:
    check = _of_type(what, str, *allowed)

    def read(value: Any) -> Any:
        try:
            return parse(str(check(value)))
        except (ValueError, InvalidOperation):
            raise Misfit(f"must be {what}, not {_shown(value)}") from None

    return read


def _decimal(text: str) -> Decimal:
    """Finite, and not so large or small that `int` or a format would write out megabytes."""
    number = Decimal(text)
    if not number.is_finite() or abs(number.adjusted()) > _MOST_DECIMAL_PLACES:
        raise ValueError
    return number


def _timedelta(value: Any) -> timedelta:
    try:
        return timedelta(seconds=_NUMBER(value))
    except (OverflowError, ValueError):
        raise Misfit(f"must be a number of seconds, not {_shown(value)}") from None


_NUMBER = _of_type("a number", int, float)
_NULL = _of_type("null", type(None))
_SCALARS: dict[Any, Reader] = {
    None: _NULL,
    type(None): _NULL,
    bool: _of_type("true or false", bool),
    int: _of_type("an integer", int),
    float: _float,
    str: _of_type("a string", str),
    datetime: _of_text("a time in ISO 8601", datetime.fromisoformat),
    date: _of_text("a date in ISO 8601", date.fromisoformat),
    time: _of_text("a time of day in ISO 8601", time.fromisoformat),
    timedelta: _timedelta,
    UUID: _of_text("a UUID", UUID),
    Decimal: _of_text("a decimal number", _decimal, int, float),
}


def _choice_reader(choices: Mapping[Any, Any]) -> Reader:
    by_text = {json.dumps(each, sort_keys=True): member for each, member in choices.items()}
    allowed = ", ".join(by_text)

    def read(value: Any) -> Any:
        try:
            return by_text[json.dumps(value, sort_keys=True)]
        except (KeyError, TypeError):
            raise Misfit(f"must be one of {allowed}, not {_shown(value)}") from None

    return read


_outcomes: ContextVar[dict[tuple[int, int], Any] | None] = ContextVar("outcomes", default=None)
"""What unions have read within the outermost one, by union and value: the result, or a `Misfit`."""


def _union_of(arguments: tuple[Any, ...], known: dict[Any, Reader]) -> Reader:
    """One reader for all unions of these members in this order, so that they share outcomes."""
    if (Union, arguments) not in known:
        members: list[Reader] = []
        known[Union, arguments] = _union_reader(members)
        members.extend(_reader(each, known) for each in arguments)
    return known[Union, arguments]


def _union_reader(members: Sequence[Reader]) -> Reader:
    """The first member that fits.

    A union whose members contain it reads each value once. Otherwise each level of a value would be
    read once for each member of the level above, which is exponential in the depth.
    """

    def read(value: Any) -> Any:
        outcomes = _outcomes.get()
        if outcomes is None:
            token = _outcomes.set({})
            try:
                return read(value)
            finally:
                _outcomes.reset(token)
        key = id(members), id(value)
        if key in outcomes:
            outcome = outcomes[key]
            if isinstance(outcome, Misfit):
                raise outcome.under("")
            return outcome
        found: list[Misfit] = []
        for member in members:
            try:
                outcomes[key] = member(value)
            except Misfit as misfit:
                found.append(misfit)
            else:
                return outcomes[key]
        # what came furthest
        deepest = max(found, key=lambda one: len(one.where))
        all_of_them = Misfit(", or ".join(one.what for one in found))
        outcomes[key] = deepest if deepest.where else all_of_them
        raise outcomes[key].under("")

    return read


def _list_reader(make: Callable[[list[Any]], Any], member: Reader) -> Reader:
    def read(value: Any) -> Any:
        return make([_member(member, each, f"[{at}]") for at, each in enumerate(_LIST(value))])

    return read


def _tuple_reader(members: Sequence[Reader]) -> Reader:
    def read(value: Any) -> Any:
        if len(_LIST(value)) != len(members):
            raise Misfit(f"must have {len(members)} elements, not {len(value)}")
        pairs = enumerate(zip(members, value, strict=True))
        return tuple(_member(member, each, f"[{at}]") for at, (member, each) in pairs)

    return read


def _dict_reader(key: Reader, member: Reader) -> Reader:
    def read(value: Any) -> Any:
        items = _OBJECT(value).items()
        return {_member(key, k, f" (key {k!r})"): _member(member, v, f".{k}") for k, v in items}

    return read


def _member(read: Reader, value: Any, step: str) -> Any:
    try:
        return read(value)
    except Misfit as misfit:
        raise misfit.under(step) from None


_LIST = _of_type("a list", list, tuple)
_OBJECT = _of_type("an object", Mapping)


def _object_reader(annotation: Any, origin: Any, known: dict[Any, Reader]) -> Reader:
    """Of a dataclass or TypedDict."""
    members: dict[str, Reader] = {}
    hints = typing.get_type_hints(origin, include_extras=True)
    if is_dataclass(origin):
        own = [field for field in fields(origin) if field.init]
        names = {field.name for field in own}
        required = {
            field.name for field in own if field.default is MISSING and field.default_factory is MISSING
        }
    else:
        names = set(hints)
        required = {name for name in names if _is_required(origin, name, hints[name])}

    def read(value: Any) -> Any:
        return origin(**read_members(value, members, required))

    known[annotation] = read
    members.update({name: _reader(_bare(hints[name]), known) for name in hints if name in names})
    return read


def _is_required(kind: Any, name: str, hint: Any) -> bool:
    """Of a TypedDict, which does not know it itself when its annotations are text."""
    if get_origin(hint) is typing.NotRequired:
        return False
    return get_origin(hint) is typing.Required or name in kind.__required_keys__


def _bare(annotation: Any) -> Any:
    """Without the `Required` or `NotRequired` of a TypedDict."""
    wraps = get_origin(annotation) in (typing.Required, typing.NotRequired)
    return get_args(annotation)[0] if wraps else annotation


def read_members(
    value: Any, members: Mapping[str, Reader], required: set[str], rest: Reader | None = None
) -> dict[str, Any]:
    """The members of a JSON object, each by its reader; what is not given is left out.

    Args:
        rest: Reads members of other names; None: there may be none.

    Raises: Misfit.
    """
    given = _OBJECT(value)
    if missing := [name for name in members if name in required and name not in given]:
        raise Misfit("is missing", f".{missing[0]}")
    read = {}
    for name, each in given.items():
        if (reader := members.get(name, rest)) is None:
            raise Misfit(f"is unknown: there are {', '.join(members) or 'none'}", f".{name}")
        read[name] = _member(reader, each, f".{name}")
    return read


def _annotated_reader(annotation: Any, known: dict[Any, Reader]) -> Reader:
    """Constraints in an `Annotated` are pydantic's to hold, where it is installed."""
    held, *notes = get_args(annotation)
    if any(type(note).__module__.startswith(("pydantic", "annotated_types")) for note in notes):
        return _pydantic_reader(annotation)
    return _reader(held, known)


def _is_of_pydantic(kind: Any) -> bool:
    """Whether a class is a model or a dataclass of pydantic."""
    return "__pydantic_core_schema__" in vars(kind) or "__pydantic_validator__" in vars(kind)


def _adapter(annotation: Any) -> Any:
    try:
        from pydantic import TypeAdapter  # noqa: PLC0415 - only where its types are used
    except ModuleNotFoundError:
        raise ConfigError(
            f"{annotation} has constraints that need pydantic", hint="pip install pydantic"
        ) from None
    return TypeAdapter(annotation)


_writer = cache(_adapter)


def _pydantic_reader(annotation: Any) -> Reader:
    adapter = _adapter(annotation)

    def read(value: Any) -> Any:
        try:
            return adapter.validate_json(json.dumps(value))
        except ValueError as error:  # a ValidationError is one
            raise _first_misfit(error) from None

    return read


def _first_misfit(error: ValueError) -> Misfit:
    errors = getattr(error, "errors", None)
    if errors is None:
        return Misfit(f"does not fit: {error}")
    first = errors(include_url=False, include_context=False)[0]
    steps = [f"[{one}]" if isinstance(one, int) else f".{one}" for one in first["loc"]]
    message = str(first["msg"])
    return Misfit(f"does not fit: {message}, got {_shown(first['input'])}", "".join(steps))
