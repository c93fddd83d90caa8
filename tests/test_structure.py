# SPDX-License-Identifier: Apache-2.0
"""The sources are as the design page says: which file imports which, and where mutators and checks of versions are."""

from __future__ import annotations

import ast
import functools
import importlib
import os
import re
import subprocess
import sys
import types
import typing
from pathlib import Path

import pytest

from tests.kept import package_sources
from tvm_stitch.plan import in_block

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = [
    ROOT / "tvm_stitch",
    ROOT / "python/tvm-relay-toolchain/src/tvm_relay_toolchain",
    ROOT / "python/cuda-emulator/src/cuda_emulator",
    ROOT / "python/stitch-testing/src/stitch_testing",
]


# -- imports -------------------------------------------------------------------------------------------------
def _imported(name: str, source: str, is_package: bool, modules: set[str]) -> set[str]:
    """Return the modules, of those given, that a module imports: at its top, within functions, or for type checkers.

    A module behind a package brings the package's own file with it, where the importer is not in that package itself.
    """
    found: set[str] = set()
    for node in _import_statements(source):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = name.split(".") if is_package else name.split(".")[:-1]
            base = base[: len(base) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            members = {f"{module}.{alias.name}" for alias in node.names}
            found |= members & modules if members <= modules else (members & modules) | {module}
    for full in list(found):
        parts = full.split(".")
        outer = {".".join(parts[:n]) for n in range(1, len(parts))}
        found |= {package for package in outer if not f"{name}.".startswith(f"{package}.")}
    return (found & modules) - {name}


@functools.cache
def _import_statements(source: str) -> list[ast.Import | ast.ImportFrom]:
    """Return the import statements anywhere in a source."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]


def _modules(root: Path, pattern: str) -> dict[str, Path]:
    """Return the files of modules, by their names below a folder of Python's path."""
    paths = {}
    for path in root.glob(pattern):
        parts = path.relative_to(root).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


def _graph(package: Path) -> dict[str, set[str]]:
    """Return the modules of a package, each with the modules that it imports."""
    return _imports_among(_modules(package.parent, f"{package.name}/**/*.py"))


def _imports_among(paths: dict[str, Path]) -> dict[str, set[str]]:
    """Return the modules that each of them imports."""
    return {
        name: _imported(name, path.read_text(encoding="utf-8"), path.name == "__init__.py", set(paths))
        for name, path in paths.items()
    }


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Modules that import each other, over any number of others."""
    below: dict[str, set[str]] = {}
    for start in graph:
        seen, waiting = set[str](), list(graph[start])
        while waiting:
            module = waiting.pop()
            if module not in seen:
                seen.add(module)
                waiting += graph[module]
        below[start] = seen
    found = {tuple(sorted(m for m in below[start] if start in below[m])) for start in graph}
    return [list(circle) for circle in sorted(found) if circle]


def test_no_files_import_each_other() -> None:
    """Neither within a package nor across packages, the command, scripts and tests."""
    paths = _modules(ROOT, "*.py") | _modules(ROOT, "tests/**/*.py") | _modules(ROOT / "scripts", "**/*.py")
    for package in PACKAGES:
        paths |= _modules(package.parent, f"{package.name}/**/*.py")
    graph = _imports_among(paths)
    assert graph["tvm_stitch_command"] >= {"tvm_stitch.support.interrupts", "tvm_stitch.cli"}
    assert {"stitch_testing.random.graphs", "_gpu"} <= graph["gpu_check"]
    for package in PACKAGES:
        own = {name for name in graph if name.startswith(package.name)}
        assert len(own) > 10 and sum(len(graph[name] & own) for name in own) > len(own)
    assert circles(graph) == []


def test_no_strategy_knows_another() -> None:
    """Each file of ``plan/strategies`` proposes mappings by itself. The planner compares their estimates."""
    name = "tvm_stitch.plan.strategies"
    known = {module: found for module, found in _graph(PACKAGES[0]).items() if module.startswith(f"{name}.")}
    assert len(known) >= 5
    assert {module: others for module, found in known.items() if (others := found & set(known))} == {}
    functions = [importlib.import_module(module).propose for module in known]
    assert sorted(map(id, in_block.STRATEGIES)) == sorted(map(id, functions)), "each is listed once"


def test_circles_are_found() -> None:
    modules = {"p", "p.a", "p.b", "p.q", "p.q.c", "p.d"}
    sources = {
        "p": "",
        "p.a": "def f():\n    from .b import g",
        "p.b": "from .q import c",
        "p.q": "from ..a import f",
        "p.q.c": "import os",
        "p.d": "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    from .a import f\nfrom . import b",
    }
    graph = {name: _imported(name, text, name in ("p", "p.q"), modules) for name, text in sources.items()}
    assert graph["p.b"] == {"p.q", "p.q.c"} and graph["p.d"] == {"p.a", "p.b"}
    assert circles(graph) == [["p.a", "p.b", "p.q"]]
    sources["p.a"] += "\n    from .d import h"
    graph = {name: _imported(name, text, name in ("p", "p.q"), modules) for name, text in sources.items()}
    assert circles(graph) == [["p.a", "p.b", "p.d", "p.q"]]


def _importers(package: Path, name: str) -> list[str]:
    """Return the files of a package that import a module, or what is below it, from anywhere."""
    found = []
    for path in sorted(package.rglob("*.py")):
        folders = path.relative_to(package.parent).parts[:-1]
        names: list[str] = []
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = folders[: len(folders) + 1 - node.level] if node.level else ()
                module = ".".join([*base, *([node.module] if node.module else [])])
                names += [f"{module}.{alias.name}" for alias in node.names]
        if any(f"{each}.".startswith(f"{name}.") for each in names):
            found.append(str(path.relative_to(package.parent)))
    return found


def test_each_distribution_knows_those_that_it_may() -> None:
    """The emulator knows TVM only. The package knows neither the emulator nor the tools for tests, which know both."""
    package, _, emulator, testing = PACKAGES
    assert _importers(emulator, "tvm") != [] and _importers(emulator, "tvm_stitch") == []
    assert _importers(package, "cuda_emulator") == _importers(package, "stitch_testing") == []
    assert _importers(testing, "cuda_emulator") and _importers(testing, "tvm_stitch")


def test_nothing_that_users_run_imports_the_workloads() -> None:
    users = _importers(PACKAGES[0], "tvm_stitch.testing")
    assert users and [f for f in users if not f.startswith("tvm_stitch/testing/")] == []


def test_the_wheel_has_no_workload_that_no_page_shows() -> None:
    """Modules of ``tvm_stitch/testing`` are on a page, or another of them imports them."""
    pages = "".join(
        p.read_text(encoding="utf-8") for p in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    )
    graph = {name: found for name, found in _graph(PACKAGES[0]).items() if ".testing.workloads." in name}
    shown = {name for name in graph if re.search(rf"from {re.escape(name)} import", pages)}
    assert {"tvm_stitch.testing.workloads.bert", "tvm_stitch.testing.workloads.cases"} < shown
    assert set(graph) - shown - set().union(*graph.values()) == set()


# -- what code generation knows of plans ---------------------------------------------------------------------
def _names_from(source: str, folders: tuple[str, ...], package: str) -> set[tuple[str, str]]:
    """Return the names that a module in some folders imports from a package, each with its module.

    A module of the package that is imported as a whole has an empty name.
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names if f"{alias.name}.".startswith(f"{package}.")}
        elif isinstance(node, ast.ImportFrom):
            base = folders[: len(folders) + 1 - node.level] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                if f"{module}.{alias.name}.".startswith(f"{package}."):
                    found.add((module, alias.name))
    return found


def _is_type(value: object) -> bool:
    """Return whether a value is a class, an enum among them, or an alias such as ``Pair = tuple[int, int]``."""
    return isinstance(value, (type, types.GenericAlias, types.UnionType)) or (
        typing.get_origin(value) is not None
    )


def test_codegen_imports_types_of_plan_only() -> None:
    """The plan holds every decision: code generation calls no planner and reads no constant of choice."""
    found: dict[str, list[str]] = {}
    count = 0
    for path in sorted((ROOT / "tvm_stitch/codegen").rglob("*.py")):
        folders = path.relative_to(ROOT).parts[:-1]
        for module, name in _names_from(path.read_text(encoding="utf-8"), folders, "tvm_stitch.plan"):
            count += 1
            if not _is_type(getattr(importlib.import_module(module), name, None)):
                found.setdefault(f"{module}.{name}", []).append(path.name)
        # Constants of choice reach code generation as fields and properties of the plan.
        for module, name in _names_from(path.read_text(encoding="utf-8"), folders, "tvm_stitch.cost"):
            found.setdefault(f"{module}.{name}", []).append(path.name)
    assert count > 40 and found == {}


def test_imported_names_are_found() -> None:
    text = "from ..plan import heuristics\nfrom ..plan.kernel import Stage as S\nimport a.plan.memory\nfrom . import x"
    found = _names_from(text, ("a", "codegen"), "a.plan")
    assert found == {("a.plan", "heuristics"), ("a.plan.kernel", "Stage"), ("a.plan.memory", "")}
    assert all(map(_is_type, [int, tuple[int, int], int | str]))
    assert not any(map(_is_type, [3, len, ast]))


# -- one way to rewrite --------------------------------------------------------------------------------------
_OWN_MUTATORS = {
    "relax/layout/permutations.py": "binds a result in another order of axes, and the result itself only if it is read",
    "relax/precision/crossings.py": "binds values behind a value under its old name, also behind a match_cast",
    "relax/precision/half.py": "keeps casts as long as they are visible, over blocks and out of branches",
    "relax/stitch/lift_workspace.py": "refuses each other use of a function, as a value or an argument",
    "relax/stitch/stitch_ops.py": "puts the bindings of whole blocks into another order",
    "repairs/legalize/declared_bounds.py": "simplifies shapes, which are no values of variables",
    "repairs/legalize/empty.py": "replaces constants wherever they are read",
    "repairs/legalize/fuse_rest.py": "makes and removes match_casts",
}
"""Files outside ``relax/rewriting`` with a mutator of their own, and why rules do not do."""


def _has_mutator(text: str) -> bool:
    """Return whether a module has a class that is a mutator of TVM's, or decorated as one."""
    classes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    words = [
        ast.unparse(each).split(".")[-1] for node in classes for each in (*node.bases, *node.decorator_list)
    ]
    return not {"PyExprMutator", "ExprMutator", "mutator"}.isdisjoint(words)


def test_rules_rewrite_relax_functions() -> None:
    found = {name.removeprefix("tvm_stitch/") for name, text in package_sources() if _has_mutator(text)}
    assert "relax/rewriting/rules.py" in found
    assert {n for n in found if not n.startswith(("relax/rewriting/", "relay/"))} == set(_OWN_MUTATORS)


@pytest.mark.parametrize(
    "text",
    [
        "class A(relax.PyExprMutator): ...",
        "@expr_functor.mutator\nclass A(B): ...",
        "def f():\n  class A(PyExprMutator): ...",
    ],
)
def test_mutators_are_found(text: str) -> None:
    assert _has_mutator(text) and not _has_mutator("class A(PyExprVisitor): ...")


# -- versions of TVM -----------------------------------------------------------------------------------------
_VERSION_CHECK = re.compile(
    r"HAS_RELAX_TIRX|HAS_TIRX|hasattr\(\s*tvm\b|tvm\.__version__\s*(?:[<>=!.\[]|\bin\b)"
    r"|[\"']tvm\._ffi|find_spec\(\s*[\"']tvm\.(?:tirx|tir|relax|relay)"
)
_MAY_CHECK = {
    "tvm_stitch/compat/": "the place of these checks",
    "tvm_stitch/support/interrupts.py": "asked in a signal handler, where TVM may be half imported",
}


def test_tvms_are_told_apart_in_one_place() -> None:
    """Elsewhere one asks for a capability."""
    checks = {name for name, text in package_sources() if _VERSION_CHECK.search(text)}
    assert [name for name in checks if not name.startswith(tuple(_MAY_CHECK))] == []
    assert [place for place in _MAY_CHECK if not any(name.startswith(place) for name in checks)] == []


def test_capabilities_are_asked_for() -> None:
    """A flag that nobody asks for is left from a TVM that is no longer supported."""
    flags = {
        node.target.id
        for node in ast.parse((ROOT / "tvm_stitch/compat/capabilities.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert len(flags) > 5
    texts = [text for name, text in package_sources() if name != "tvm_stitch/compat/capabilities.py"]
    assert [flag for flag in flags if not any(re.search(rf"\b{flag}\b(?!\",)", text) for text in texts)] == []


# -- start-up ------------------------------------------------------------------------------------------------
def test_the_package_and_its_command_line_start_without_tvm() -> None:
    """TVM takes seconds to import: help, usage errors and options need none of it."""
    code = (
        "import sys, tvm_stitch, tvm_stitch.cli as cli\n"
        "cli.main(['--help'])\n"
        "tvm_stitch.StitchConfig(), tvm_stitch.Report('llvm')\n"
        "sys.exit('tvm' in sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "compile" in done.stdout, done.stderr
