# SPDX-License-Identifier: Apache-2.0
"""Every repair says what it repairs, has a test that shows the fault, and imports no layer above its own."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
REPAIRS = ROOT / "tvm_stitch" / "repairs"
FOLDERS = ("imports", "legalize", "relay", "schedule", "tir")
FILES = sorted(p for folder in FOLDERS for p in (REPAIRS / folder).glob("*.py") if p.name != "__init__.py")
FIELDS = ("Fault", "Seen in", "Input", "Upstream")
MAY_IMPORT = {
    "tir": {"compat", "graph", "repairs.tir"},
    "relay": {"compat", "repairs.relay"},
    "schedule": {"compat", "graph", "support", "codegen", "repairs", "repairs.schedule", "repairs.tir"},
    "imports": {"compat", "graph", "support", "relax.rewriting", "repairs.imports"},
    "legalize": {
        "compat",
        "graph",
        "support",
        "relax.rewriting",
        "repairs",
        "repairs.imports",
        "repairs.legalize",
    },
}
"""By folder, the packages of tvm_stitch that its repairs may import. ``repairs`` are its two shared modules."""


def name_of(path: Path) -> str:
    return str(path.relative_to(REPAIRS))


def fields(docstring: str) -> dict[str, str]:
    """Return the fields at the end of a docstring. A line that continues a field is indented."""
    found: dict[str, str] = {}
    for line in docstring.splitlines():
        if match := re.match(rf"({'|'.join(FIELDS)}): (.+)", line):
            found[match[1]] = match[2]
        elif found and line.startswith("    "):
            found[list(found)[-1]] += " " + line.strip()
    return found


def test_fields_are_read() -> None:
    text = "Repair it.\n\nFault: It is\n    wrong.\nSeen in: TVM 1\nInput: x: y\nUpstream: none known\n"
    assert fields(text) == dict(zip(FIELDS, ("It is wrong.", "TVM 1", "x: y", "none known")))


def test_repairs_are_found() -> None:
    assert len(FILES) > 30
    assert {p.name for p in REPAIRS.iterdir() if p.is_dir() and p.name != "__pycache__"} == set(FOLDERS)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_repair_says_what_it_repairs(path: Path) -> None:
    found = fields(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")
    assert tuple(found) == FIELDS
    assert len(re.findall(r"[.:] [A-Z]", found["Fault"])) <= 1 and found["Fault"].endswith("."), (
        "two sentences"
    )
    assert re.search(r"(TVM|ptxas of CUDA) \d+\.\d+", found["Seen in"])
    assert found["Upstream"] == "none known" or re.fullmatch(
        r"https://github\.com/\S+/(issues|pull)/\d+", found["Upstream"]
    )


def functions(path: Path) -> dict[str, str]:
    """Return the source of each function of a test module, by its name."""
    text = path.read_text(encoding="utf-8")
    defined = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return {node.name: ast.get_source_segment(text, node) or "" for node in defined}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_repair_has_both_tests(path: Path) -> None:
    """``test_fault`` shows the fault in TVM itself. ``test_repair`` fails without the repair."""
    folder = "relay/repairs" if path.parent.name == "relay" else f"repairs/{path.parent.name}"
    found = functions(ROOT / "tests" / folder / f"test_{path.name}")
    assert "needed(" in found["test_fault"] and name_of(path) in found["test_fault"]
    assert found["test_repair"].count("assert ") >= 2, "with the repair, and without"


def imported(path: Path) -> set[str]:
    """Return the imports of a module from tvm_stitch, by package. ``tvm.relax`` is among them if it imports that."""
    parts = path.relative_to(ROOT / "tvm_stitch").parts[:-1]
    packages = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = parts[: len(parts) + 1 - node.level]
            for alias in node.names:
                full = (
                    [*base, *(node.module or "").split("."), alias.name]
                    if node.module
                    else [*base, alias.name]
                )
                deep = full[0] in ("repairs", "relax") and (ROOT / "tvm_stitch" / full[0] / full[1]).is_dir()
                packages.add(".".join(full[: 2 if deep else 1]))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [f"{getattr(node, 'module', '')}.{alias.name}." for alias in node.names]
            packages |= {"tvm.relax"} if any("tvm.relax." in name for name in names) else set()
    return packages


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_repairs_import_no_layer_above(path: Path) -> None:
    allowed = MAY_IMPORT[path.parent.name] | (
        {"tvm.relax"} if path.parent.name in ("imports", "legalize") else set()
    )
    assert imported(path) - allowed == set()


@pytest.mark.parametrize("layer", ["compat", "graph", "plan", "cost", "scope", "codegen"])
def test_lower_layers_import_repairs_of_kernels_alone(layer: str) -> None:
    found = set().union(*(imported(path) for path in (ROOT / "tvm_stitch" / layer).rglob("*.py")))
    repairs = {package for package in found if package.startswith("repairs")}
    assert repairs == ({"repairs.tir", "repairs.relay"} if layer == "codegen" else set())


def test_imports_are_found() -> None:
    assert imported(REPAIRS / "legalize/keep_zeros.py") == {"support", "relax.rewriting", "tvm.relax"}
    assert {"codegen", "repairs.tir", "repairs"} <= imported(REPAIRS / "schedule/sound_arithmetic.py")
