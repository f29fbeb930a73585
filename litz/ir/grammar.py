"""The grammar of a program's text: one regular expression for each kind of statement.

In: a line, and the regular expression of the expected statement. Out: its parts, or a `Mistake`
that names what was expected. Example: `match(SIZE, "s0 in 2..64", "name in low..high")["low"]` is
`"2"`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from litz.ir.patterns import PATTERNS, Pattern

if TYPE_CHECKING:
    from litz.ir.expr import Expr


class Mistake(Exception):
    """What is wrong with a line. The reader, which knows the line's number, raises it again as a
    `ParseError`."""


QUOTED = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
CODE = re.compile(rf"""(?:{QUOTED}|[^'"#])*""")
WORD = re.compile(r"(\w+)(?=[\s:])")
COMBINED = re.compile(r"(?P<target>.*\]) (?P<mode>[a-z]+)= (?P<value>.*)")
BUFFER = re.compile(
    rf"(?P<name>{QUOTED}|\w+): (?P<dtype>\w+)\[(?P<shape>[^\]]*)\]"
    r"(?: strides \((?P<strides>.*)\))?(?: on (?P<device>\S+))?$"
)
SIZE = re.compile(
    r"(?P<name>\w+) in (?P<low>-?\d+)\.\.(?P<high>-?\d*)"
    r"(?: near (?P<hint>\d+))?(?: = (?P<made>.*))?$"
)
EXTERN = re.compile(
    rf"""(?P<results>.*?) = (?P<call>(?:{QUOTED}|[^'"])*?\))"""
    r"(?: mutates (?P<mutates>[^)]*?))?(?: binds (?P<binds>.*))?$"
)

ROLE = re.compile(r"(\w+)=(\[[\w, ]*\]|True)")
PATTERN = re.compile(rf"(?P<kind>\w+)\((?P<roles>(?:{ROLE.pattern}(?:, |(?=\))))*)\)$")


def match(pattern: re.Pattern[str], text: str, form: str) -> re.Match[str]:
    found = pattern.match(text)
    if found is None:
        raise Mistake(f"expected `{form}`")
    return found


def without_comment(line: str) -> str:
    code = match(CODE, line, "code")[0]
    if code != line and line[len(code)] != "#":
        raise Mistake("a quote is not closed")
    return code.strip()


def read_pattern(text: str, names: Mapping[str, Expr]) -> Pattern:
    """The tag of a nest: `gemm(rows=[i0], columns=[i1], depth=[r0])`."""
    found = match(PATTERN, text, "pattern(role=[axes])")
    kind = PATTERNS.get(found["kind"])
    if kind is None:
        raise Mistake(f"there is no pattern {found['kind']!r}")
    given = dict(ROLE.findall(found["roles"]))
    flipped = given.pop("flipped", "[]") == "True"
    roles = {f.name for f in fields(kind)} - {"flipped"}
    axes = {role: re.findall(r"\w+", said) for role, said in given.items()}
    wrong = [
        *(given.keys() - roles),
        *(a for said in axes.values() for a in said if a not in names),
    ]
    if wrong:
        raise Mistake(f"{kind.kind} has no role or axis {min(wrong)}")
    return kind(flipped, **{role: tuple(names[a] for a in said) for role, said in axes.items()})
