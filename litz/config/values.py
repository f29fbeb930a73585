"""Values of flags: checked against the flag's type, or parsed from an environment variable.

In: a `Flag` and a value, or a text. Out: the value, or an error that says what is wrong with it.
Types are exact, because `True` for an int or `1` for a bool is more often a slip than meant.
Example: `parse(FLAGS["cpp.simdlen"], "none")` is `None`.
"""

from __future__ import annotations

import math
import types
from typing import Any, Literal, Union, get_args, get_origin

from litz.config.flags import Flag
from litz.errors import FlagValueError, WrongFlagType

_BOOLS = {"0": False, "1": True, "false": False, "true": True}


def check(flag: Flag, value: Any, name: str = "") -> Any:
    """The value, if the flag takes it; `name` is the flag's name in the error."""
    name = name or flag.name
    if not any(_is(value, member) for member in _members(flag.type)):
        raise WrongFlagType(name, type_text(flag), value)
    if isinstance(value, list):  # a config must be hashable
        value = tuple(value)
    numbers = value if isinstance(value, tuple) else () if value is None else (value,)
    below = flag.low is not None and any(n < flag.low for n in numbers)
    above = flag.high is not None and any(n > flag.high for n in numbers)
    choices = _choices(flag)
    if below or above or (choices and value not in choices):
        raise FlagValueError(name, value, allowed_text(flag))
    return value


def parse(flag: Flag, text: str) -> Any:
    """The value of an environment variable's text."""
    for member in _members(flag.type):
        value = _read(member, text.strip())
        if value is not NotImplemented:
            return check(flag, value, flag.env)
    raise WrongFlagType(flag.env, type_text(flag), text)


def type_text(flag: Flag) -> str:
    """The type as a user would write it: `int | None`."""
    return " | ".join(_type_name(member) for member in _members(flag.type))


def allowed_text(flag: Flag) -> str:
    """The values of its type that a flag takes, as text; empty if it takes all."""
    choices = _choices(flag)
    if choices:
        return ", ".join(repr(choice) for choice in choices)
    if flag.low is not None and flag.high is not None:
        return f"{flag.low} to {flag.high}"
    return "" if flag.low is None else f"{flag.low} or more"


def _members(hint: Any) -> tuple[Any, ...]:
    """The types of a union; a `Literal` of texts is a str, whose texts are the choices."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return get_args(hint)
    return (str,) if origin is Literal else (hint,)


def _choices(flag: Flag) -> tuple[object, ...]:
    return get_args(flag.type) if get_origin(flag.type) is Literal else flag.allowed


def _is(value: Any, member: Any) -> bool:
    if get_origin(member) is tuple:
        return isinstance(value, (list, tuple)) and all(type(n) is int for n in value)
    if member is float:  # an int is accepted as a float
        return type(value) in (int, float)
    return type(value) is member if isinstance(member, type) else callable(value)


def _read(member: Any, text: str) -> Any:
    """The text as that type, or NotImplemented. A function has no text."""
    if get_origin(member) is tuple:
        parts = [_read(int, part.strip()) for part in text.split(",") if part.strip()]
        return NotImplemented if NotImplemented in parts else tuple(parts)
    if member is bool:
        return _BOOLS.get(text.lower(), NotImplemented)
    if member is int:
        return int(text) if text.lstrip("-").isdecimal() else NotImplemented
    if member is float:
        return _number(text)
    if member is type(None):
        return None if text.lower() == "none" else NotImplemented
    return text if member is str else NotImplemented


def _number(text: str) -> Any:
    try:
        found = float(text)
    except ValueError:
        return NotImplemented
    return found if math.isfinite(found) else NotImplemented


def _type_name(member: Any) -> str:
    if get_origin(member) is tuple:
        return "list of int"
    if not isinstance(member, type):
        return "a function"
    return "None" if member is type(None) else member.__name__
