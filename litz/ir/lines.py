"""The lines of a program's text: the form of each statement, as patterns.

In: a line, and the pattern of the statement it should be. Out: its parts, or a `Mistake` that says
what was expected. Example: `match(SIZE, "s0 in 2..64", "name in low..high")["low"]` is `"2"`.
"""

from __future__ import annotations

import re


class Mistake(Exception):
    """What is wrong with a line. Whoever knows the line's number makes a `ParseError` of it."""


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
