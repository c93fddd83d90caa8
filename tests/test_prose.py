# SPDX-License-Identifier: Apache-2.0
"""Docstrings and comments keep the rules of plain English that a program can check."""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent

COVERED = (
    *(f"tvm_stitch/{path.name}" for path in sorted((ROOT / "tvm_stitch").glob("*.py"))),
    *(f"tvm_stitch/{path.parent.name}" for path in sorted((ROOT / "tvm_stitch").glob("*/__init__.py"))),
    "tvm_stitch_command.py",
    "python/cuda-emulator/src",
    "python/stitch-testing/src",
    "python/tvm-relay-toolchain/src",
    "scripts",
    "examples",
    "tests",
)
"""Files and folders that keep the rules. Those that follow them later are added here."""

MOST_WORDS = 25
"""Words of a sentence. A name in backticks counts as one word."""

NOUN_CLAUSE = re.compile(
    r"(What|Where|Which|Whether|How|Why|Who|Whose|Whatever|Wherever|Whichever|Whoever)\b(?!.*\?$)"
)
"""Beginnings of clauses that stand for a noun. A sentence names the thing instead."""

DIALECT = re.compile(
    r"\b(of ours|of yours|such a one|(?:is|are) told|stands|what it has|as \w+ has it|for itself|beside)\b",
    re.I,
)

NO_VERB = re.compile(
    r"(The|A|An|True|False|All|Every|Each|Its|Those|These|This|It|One|Two|Name|Names|Bytes|None|No|Both|Of|In|As|By"
    r"|For|From|With|If|To|Seconds|Is|Are|Has|Any)\b"
)
"""Words with which the docstring of a function does not begin: its first word is a verb.

The docstring of a test or a fixture may state a fact instead.
"""

_SECTION = re.compile(r"(Args|Returns|Raises|Yields|Attributes):$")
_ITEM = re.compile(r"[-*|] |\d+[.)] |[\w`*, ()]+: ")
_NOT_PROSE = re.compile(r"(SPDX|type: |noqa|ruff|-- |mypy:|pragma|fmt:)")


class Text(NamedTuple):
    """A docstring or comment.

    ``is_function`` marks the docstring of a function that is no property, test, method of a test or fixture.
    """

    line: int
    text: str
    is_function: bool


def texts(source: str) -> Iterator[Text]:
    """Yield the docstrings of modules, classes, functions and attributes, and the comments of a file."""
    tree = ast.parse(source)
    tests = [
        node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name.startswith("Test")
    ]
    methods = {statement for node in tests for statement in node.body}
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            continue
        is_function = isinstance(node, ast.FunctionDef) and node not in methods and not _states_a_fact(node)
        for number, statement in enumerate(node.body):
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                if isinstance(value := statement.value.value, str):
                    yield Text(statement.lineno, inspect.cleandoc(value), is_function and number == 0)
    yield from _comments(source)


def _states_a_fact(node: ast.FunctionDef) -> bool:
    """Return whether a function is a property, a test or a fixture."""
    decorators = " ".join(map(ast.unparse, node.decorator_list))
    return node.name.startswith("test_") or "property" in decorators or "fixture" in decorators


def _comments(source: str) -> Iterator[Text]:
    """Yield comments. Those on consecutive lines of their own are one text."""
    lines = source.splitlines()
    block: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.removeprefix("#").removeprefix(":").removeprefix(" ")
        if token.type != tokenize.COMMENT or _NOT_PROSE.match(text):
            continue
        row = token.start[0]
        alone = lines[row - 1].lstrip().startswith("#")
        if block and not (alone and block[-1][0] == row - 1 and lines[row - 2].lstrip().startswith("#")):
            yield Text(block[0][0], "\n".join(line for _, line in block), False)
            block = []
        block.append((row, text))
    if block:
        yield Text(block[0][0], "\n".join(line for _, line in block), False)


def sentences(text: str) -> list[str]:
    """Return the sentences of a text. Paragraphs and items end one.

    Literal blocks are left out: those after ``::``, and paragraphs that are indented deeper than the one before.
    """
    text = re.sub(r"``.+?``|`[^`]+`", "CODE", text, flags=re.S)
    text = re.sub(r'"[^"\n]{1,60}"', "QUOTE", text)
    found: list[str] = []
    paragraph: list[str] = []
    item_indent = literal_indent = last_indent = None

    def flush() -> None:
        joined = " ".join(paragraph)
        found.extend(s for s in re.split(r"(?<=[.!?:])['\")]?\s+(?=[A-Z\"'(\[])", joined) if s.strip())
        paragraph.clear()

    after_blank = False
    for line in text.splitlines():
        stripped, indent = line.strip(), len(line) - len(line.lstrip())
        if not stripped:
            after_blank = True
            if paragraph and paragraph[-1].endswith("::"):
                literal_indent = last_indent
            flush()
            item_indent = None
            continue
        if literal_indent is not None:
            if indent > literal_indent:
                continue
            literal_indent = None
        elif after_blank and last_indent is not None and indent > last_indent:
            literal_indent = last_indent
            continue
        after_blank, last_indent = False, indent
        begins_item = _ITEM.match(stripped) and (item_indent is None or indent <= item_indent)
        if begins_item or re.match("[-*|] ", stripped) or _SECTION.match(stripped):
            flush()
            item_indent = indent
        item_indent = indent if item_indent is None else item_indent
        if _SECTION.match(stripped):
            item_indent = None
        else:
            paragraph.append(stripped)
    flush()
    return found


def problems(text: Text) -> list[str]:
    """Return the rules that a text breaks, with the place."""
    broken = []
    for sentence in sentences(text.text):
        count = len(re.findall(r"[\w'/-][\w'./-]*", sentence))
        if NOUN_CLAUSE.match(sentence):
            broken.append(f"a sentence begins with a clause: {sentence[:60]}")
        if count > MOST_WORDS:
            broken.append(f"a sentence of {count} words: {sentence[:60]}")
        if word := DIALECT.search(sentence):
            broken.append(f"{word[0]!r}: {sentence[:60]}")
        if ";" in sentence:
            broken.append(f"a semicolon: {sentence[:60]}")
    if text.is_function and NO_VERB.match(text.text):
        broken.append(f"no verb at the beginning: {text.text[:60]}")
    return [f"line {text.line}: {rule}" for rule in broken]


@pytest.mark.parametrize("covered", COVERED)
def test_docstrings_and_comments_are_plain(covered: str) -> None:
    path = ROOT / covered
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    assert files
    broken = {
        str(file.relative_to(ROOT)): rules
        for file in files
        if (rules := [rule for text in texts(file.read_text()) for rule in problems(text)])
    }
    assert not broken


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ('"""What a kernel reads."""', "a clause"),
        ('"""Return it. Where there is none, it is 0."""', "a clause"),
        ('"""' + "word " * 26 + '."""', "26 words"),
        ('"""Return the row; or nothing."""', "a semicolon"),
        ('"""Return the row beside it."""', "'beside'"),
        ('def f():\n    """The row."""', "no verb"),
        ("x = 1  # what is left; of ours", "a semicolon"),
        ("# Such a one\n# is told.\nx = 1", "'Such a one'"),
    ],
)
def test_broken_rules_are_found(source: str, rule: str) -> None:
    broken = [found for text in texts(source) for found in problems(text)]
    assert any(rule in found for found in broken), broken


def test_plain_texts_pass() -> None:
    source = '''
"""Return the tiles of a kernel.

The formula is::

    a; b; c = what is left, which is no sentence

A command is indented.

    python command.py; python other.py {filler}, {filler}

It prints a line.

Args:
    rows: number of rows, {filler}.
    columns: number of columns, {filler}.
"""


class Tile:
    """A tile."""

    @property
    def rows(self):
        """The rows. Is ``a; b`` code?"""


def test_rows(rows):
    """The rows are equal."""


class TestTile:
    """A tile."""

    def rows(self):
        """The rows of all tests."""


@pytest.fixture
def rows():
    """The rows of a test."""
'''
    filler = "which is a description of more than a dozen words in all"
    assert not [rule for text in texts(source.replace("{filler}", filler)) for rule in problems(text)]
