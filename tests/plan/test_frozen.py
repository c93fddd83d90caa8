# SPDX-License-Identifier: Apache-2.0
"""Plans are made once: their classes are frozen, and nothing writes into them."""

from __future__ import annotations

import ast
import dataclasses
import importlib

from tests.kept import ROOT, package_sources


def _assigned(text: str) -> list[str]:
    """Attributes that a module assigns through anything but ``self``, or sets behind a frozen class's back."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            written = ast.unparse(node)
            found += [] if written.startswith("self.") else [written]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "object.__setattr__"):
            found.append(ast.unparse(node))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "vars":
            found.append(ast.unparse(node))
    return found


def test_plans_are_frozen() -> None:
    """Every class of data in ``plan`` is immutable. Classes that search keep their own state."""
    found = []
    for path in sorted((ROOT / "tvm_stitch/plan").rglob("*.py")):
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for value in vars(module).values():
            if (
                isinstance(value, type)
                and dataclasses.is_dataclass(value)
                and value.__module__ == module.__name__
            ):
                found.append(value)
    assert {"KernelPlan", "Stage", "Crossing", "Grid", "Partition", "Slice", "RowMapping", "CpuMapping", "LoopNest",
            "RowLoop", "Alignment", "StageLayout",
            "SharedBuffer", "ClusterSlots", "SharedMemory"} <= {each.__name__ for each in found}  # fmt: skip
    assert [each.__name__ for each in found if not each.__dataclass_params__.frozen] == []


def test_nothing_writes_into_a_plan() -> None:
    for name, text in package_sources():
        short = name.removeprefix("tvm_stitch/")
        if short.startswith(("plan/", "codegen/", "cost/")):
            assert _assigned(text) == [], name


def test_assignments_are_found() -> None:
    text = (
        "a.b = 1\nself.c = 2\nx, y.z = 3, 4\nd.e += 1\nsetattr(f, 'g', 5)\nvars(h).update(i)\nself.j.k = 6\n"
    )
    written = ["a.b", "d.e", "setattr(f, 'g', 5)", "vars(h)", "y.z"]
    assert sorted(_assigned(text)) == written
