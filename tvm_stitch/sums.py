# SPDX-License-Identifier: Apache-2.0
"""Symbolic sizes as text: sums of products such as ``"n * m * 4 + 16"``, in which equal terms are one.

What is no sum and no product, as ``n // 2``, is a factor like a name; it stands in brackets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

MOST_TERMS = 64
"""Terms of a product of sums that are written out."""

Factors = tuple[str, ...]


@dataclass
class Sum:
    """Terms by their factors in alphabetical order: the factors as they are written, and how often the term counts."""

    terms: dict[Factors, tuple[Factors, int]] = field(default_factory=dict)

    def add(self, factors: Iterable[str], count: int) -> None:
        """Add a term; one that comes to nothing is gone."""
        written = tuple(factors)
        key = tuple(sorted(written))
        first, before = self.terms.get(key, (written, 0))
        self.terms[key] = first, before + count
        if not before + count:
            del self.terms[key]

    def __iter__(self) -> Iterator[tuple[Factors, int]]:
        return iter(self.terms.values())

    def __str__(self) -> str:
        constant = self.terms.get((), ((), 0))[1]
        symbolic = [(factors, count) for factors, count in self if factors]
        alone = len(symbolic) == 1 and not constant
        text = ""
        for factors, count in [*symbolic, *([((), constant)] if constant or not symbolic else [])]:
            number = [str(abs(count))] if abs(count) != 1 or not factors else []
            bare = alone and len(factors) == 1 and count == 1
            term = " * ".join([*(factors if bare else map(_bracketed, factors)), *number])
            text += ("-" if count < 0 else "") + term if not text else f" {'-' if count < 0 else '+'} {term}"
        return text


def added(sums: Iterable[Sum], factor: int = 1) -> Sum:
    """The first of some sums, and ``factor`` times each of the others."""
    found = Sum()
    for i, each in enumerate(sums):
        for factors, count in each:
            found.add(factors, count * (factor if i else 1))
    return found


def multiplied(a: Sum, b: Sum) -> Sum | None:
    """The product written out; None where it has too many terms."""
    if len(a.terms) * len(b.terms) > MOST_TERMS:
        return None
    found = Sum()
    for left, count in a:
        for right, times in b:
            found.add((*left, *right), count * times)
    return found


def parsed(text: str) -> Sum:
    """The sum that a text of one is."""
    found = Sum()
    sign, term = -1 if text.startswith("-") else 1, list[str]()
    for word in [*_words(text.removeprefix("-")), "+"]:
        if word in "+-":
            _add_term(found, term, sign)
            sign, term = (1 if word == "+" else -1), []
        else:
            term.append(word)
    return found


def _add_term(found: Sum, words: list[str], sign: int) -> None:
    if words[1::2] != ["*"] * (len(words) // 2):  # such as n // 2
        found.add([" ".join(words)], sign)
        return
    factors, count = list[str](), sign
    for word in words[::2]:
        if word.isdigit():
            count *= int(word)
        else:
            factors.append(word[1:-1] if word[0] == "(" and _closes(word) else word)
    found.add(factors, count)


def _words(text: str) -> list[str]:
    """The text parted at its spaces, but not within brackets."""
    words, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == " " and not depth:
            words.append("")
        else:
            words[-1] += letter
    return words


def _closes(word: str) -> bool:
    """Is a word's first bracket closed by its last letter?"""
    depth = 0
    for i, letter in enumerate(word):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return i == len(word) - 1
    return False


def _bracketed(factor: str) -> str:
    return f"({factor})" if len(_words(factor)) > 1 else factor
