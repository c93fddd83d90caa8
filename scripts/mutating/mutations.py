# SPDX-License-Identifier: Apache-2.0
"""Mutations and the tables that list them."""

from __future__ import annotations

import ast
import fnmatch
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The Python of each environment, from the checkout's root.
ENVIRONMENTS = {"relax": ".venv/bin/python", "relay": ".venv-relay/bin/python"}
_ALLOWED = {"name", "file", "old", "new", "tests", "environment", "occurrence", "equivalent"}


class TableError(ValueError):
    """A table of mutations is wrong. The text says where and why."""


@dataclass(frozen=True)
class Mutation:
    """One bug: in ``file`` the text ``old`` becomes ``new``, and ``tests`` should notice.

    old: occurs once in the file, or ``occurrence`` (from 0) selects one.
    environment: the one of ENVIRONMENTS in which the tests run.
    equivalent: the reason why no test can notice, if so. An equivalent mutation is listed and not run.
    """

    area: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    environment: str = "relax"
    occurrence: int | None = None
    equivalent: str = ""

    def apply(self, text: str) -> str:
        """Return the file's text with the bug. A ValueError says why if the bug does not apply."""
        count = text.count(self.old)
        if self.occurrence is None and count != 1:
            raise ValueError(f"the old text occurs {count} times in {self.file}")
        if self.occurrence is not None and not self.occurrence < count:
            raise ValueError(f"the old text occurs {count} times in {self.file}: no number {self.occurrence}")
        pieces = text.split(self.old)
        at = (self.occurrence or 0) + 1
        changed = self.old.join(pieces[:at]) + self.new + self.old.join(pieces[at:])
        if self.file.endswith(".py"):
            try:
                ast.parse(changed)
            except SyntaxError as error:
                raise ValueError(f"the new text is not Python: {error}") from error
        return changed


@dataclass(frozen=True)
class Outcome:
    """The result of a mutation (killed, timeout, survived, equivalent, does not apply or error) and its details."""

    mutation: Mutation
    result: str
    seconds: float = 0.0
    detail: str = ""

    @property
    def good(self) -> bool:
        """True if the result needs no action."""
        return self.result in ("killed", "timeout", "equivalent")


def _entry(area: str, raw: dict[str, Any]) -> Mutation:
    where = f"{area}: {raw.get('name', 'a mutation without a name')}"
    missing = {"name", "file", "old", "new"} - raw.keys()
    unknown = raw.keys() - _ALLOWED
    if missing or unknown:
        raise TableError(f"{where}: missing {sorted(missing)}, unknown {sorted(unknown)}")
    mutation = Mutation(area, **{**raw, "tests": tuple(raw.get("tests", ()))})
    if mutation.old == mutation.new or not mutation.old:
        raise TableError(f"{where}: the new text is the old one, or the old one is empty")
    if mutation.environment not in ENVIRONMENTS:
        raise TableError(
            f"{where}: environment {mutation.environment!r} is none of {', '.join(ENVIRONMENTS)}"
        )
    if not mutation.tests and not mutation.equivalent:
        raise TableError(f"{where}: it names no tests and does not say why it is equivalent")
    return mutation


def load(folder: Path) -> list[Mutation]:
    """Read the mutations of all tables of a folder. A table's name is their area.

    Raises:
        TableError: if a table cannot be read, an entry is not complete, or two have one name.
    """
    mutations: list[Mutation] = []
    for path in sorted(folder.glob("*.toml")):
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise TableError(f"{path.name}: {error}") from error
        mutations += [_entry(path.stem, entry) for entry in raw.get("mutation", [])]
    names = [m.name for m in mutations]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise TableError(f"several mutations are called {', '.join(twice)}")
    if not mutations:
        raise TableError(f"no mutations in {folder}")
    return mutations


def select(mutations: Sequence[Mutation], names: Sequence[str], areas: Sequence[str]) -> list[Mutation]:
    """Select mutations whose name matches a pattern and whose area is listed. An empty list means all.

    Raises:
        TableError: if a pattern or area matches nothing.
    """
    known = {m.area for m in mutations}
    unmatched = [n for n in names if not any(fnmatch.fnmatchcase(m.name, n) for m in mutations)]
    if unmatched or set(areas) - known:
        raise TableError(
            f"no mutation or area is called {', '.join([*unmatched, *sorted(set(areas) - known)])}"
        )
    return [
        m
        for m in mutations
        if (not areas or m.area in areas)
        and (not names or any(fnmatch.fnmatchcase(m.name, n) for n in names))
    ]


def listed(root: Path, mutations: Sequence[Mutation]) -> list[Outcome]:
    """List each mutation as "applies", "does not apply" or "equivalent"."""
    outcomes = []
    for m in mutations:
        try:
            m.apply((root / m.file).read_text(encoding="utf-8"))
            outcomes.append(Outcome(m, "equivalent" if m.equivalent else "applies", detail=m.equivalent))
        except (OSError, ValueError) as error:
            outcomes.append(Outcome(m, "does not apply", detail=str(error)))
    return outcomes
