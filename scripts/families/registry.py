# SPDX-License-Identifier: Apache-2.0
"""All architectures by name, and those that can be built here."""

from __future__ import annotations

import importlib.util

from . import decoders, diffusion, graphs, language, runtime, scenes, speech, states, vision
from .spec import Architecture

ARCHITECTURES: dict[str, Architecture] = {
    each.name: each
    for family in (language, decoders, states, vision, scenes, speech, diffusion, graphs, runtime)
    for each in family.ARCHITECTURES
}


def chosen(names: str, families: str = "") -> list[Architecture]:
    """Return the architectures of some names and families, given with commas. All if there are none.

    Args:
        names: names, each of which may end in ``*``.
        families: families.

    Raises:
        ValueError: if a name or a family is unknown.
    """
    architectures = list(ARCHITECTURES.values())
    if families:
        wanted = families.split(",")
        if unknown := [each for each in wanted if each not in {a.family for a in architectures}]:
            raise ValueError(
                f"there is no family {unknown[0]}; there are {', '.join(sorted({a.family for a in architectures}))}"
            )
        architectures = [each for each in architectures if each.family in wanted]
    if names:
        patterns = names.split(",")
        if unknown := [p for p in patterns if not any(_matches(each.name, p) for each in architectures)]:
            raise ValueError(f"there is no architecture {unknown[0]}; --list prints them")
        architectures = [each for each in architectures if any(_matches(each.name, p) for p in patterns)]
    return architectures


def absent(architecture: Architecture) -> bool:
    """Return whether the package of an architecture is not installed."""
    return importlib.util.find_spec(architecture.maker) is None


def _matches(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
