# SPDX-License-Identifier: Apache-2.0
"""Folders are rooms: they stay small, and imports between them run one way, for type checkers too."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kept import kept_files

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tvm_stitch"
SIBLINGS = [
    ROOT / "python/cuda-emulator/src/cuda_emulator",
    ROOT / "python/stitch-testing/src/stitch_testing",
    ROOT / "python/tvm-relay-toolchain/src/tvm_relay_toolchain",
]
MOST_FILES = 16
MOST_AT_THE_TOP = 8
ROOMS = """
compat config support graph repairs repairs/relay repairs/tir target deploy cost/choices device context cost report plan
codegen scope compute records repairs/schedule rules driver execution
relax/rewriting relax/attention relax/precision relax/quantize relax/stitch relax/in_place relay repairs/imports
repairs/legalize relax/few_rows relax/constants relax/legalize relax/lowering relax/layout relax/library
relax/loops relax/fourier relax relax/report importers/symbolic importers/onnx importers/torch front
tvm_stitch cli testing
""".split()
"""Rooms from the lowest to the highest. A room imports only those before it."""


def room_of(path: Path) -> str:
    """Return the room of a file: its folder below the package. In some folders it is the folder below."""
    folders = path.relative_to(PACKAGE).parts[:-1]
    if not folders:
        return "tvm_stitch" if path.name == "__init__.py" else path.stem
    return "/".join(folders[:2]) if folders[0] in ("relax", "importers", "repairs", "cost") else folders[0]


def modules() -> dict[str, Path]:
    """Return the files of the package by module name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        names = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(names[:-1] if names[-1] == "__init__" else names)] = path
    return found


def imports(module: str, path: Path, known: set[str]) -> Iterator[str]:
    """Yield the modules of the package that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
            base = base[: len(base) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{source}.{alias.name}"
                yield from (name for name in (full if full in known else source,) if name in known)


def upward(arrows: set[tuple[str, str]], rooms: list[str]) -> list[tuple[str, str]]:
    """Return the arrows from a room to a higher one."""
    height = {room: i for i, room in enumerate(rooms)}
    return sorted((a, b) for a, b in arrows if height[a] < height[b])


def test_no_import_runs_up() -> None:
    known = modules()
    arrows = {(m, name) for m, path in known.items() for name in imports(m, path, set(known))}
    between = {(room_of(known[a]), room_of(known[b])) for a, b in arrows}
    between = {(a, b) for a, b in between if a != b}
    assert {room for pair in between for room in pair} == set(ROOMS)
    assert len(between) > 100
    assert upward(between, ROOMS) == []


def test_upward_imports_are_found() -> None:
    assert upward({("graph", "plan"), ("plan", "graph")}, ROOMS) == [("graph", "plan")]


@pytest.mark.parametrize("package", [PACKAGE, *SIBLINGS], ids=lambda path: path.name)
def test_rooms_are_small(package: Path) -> None:
    files = kept_files(package)
    counts = Counter(p.parent for p in files)
    assert len(files) > (300 if package == PACKAGE else 10)
    assert {str(f.relative_to(package)): n for f, n in counts.items() if n > MOST_FILES} == {}
    assert counts[PACKAGE] <= MOST_AT_THE_TOP
