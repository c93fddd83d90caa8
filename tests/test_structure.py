# SPDX-License-Identifier: Apache-2.0
"""What the design page says of the sources, told from their text: which file imports which, and where things stand."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import os
import re
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from tvm_stitch.cost.choices import Choices
from tvm_stitch.device import GPUS
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
    """The modules, of those given, that a module imports: at its top, within functions, or for type checkers alone.

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
    """The files of modules, by their names below a folder of Python's path."""
    paths = {}
    for path in root.glob(pattern):
        parts = path.relative_to(root).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


def _graph(package: Path) -> dict[str, set[str]]:
    """Return the modules of a package, each with the modules that it imports."""
    return _imports_among(_modules(package.parent, f"{package.name}/**/*.py"))


def _imports_among(paths: dict[str, Path]) -> dict[str, set[str]]:
    """Which modules each of them imports."""
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
    """Each file of ``plan/strategies`` proposes mappings by itself; the planner compares their estimates."""
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
    """The files of a package that import a module, or what is below it, from anywhere."""
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
    """The names that a module in some folders imports from a package, each with its module.

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
    """Whether a value is a class, an enum among them, or an alias such as ``Pair = tuple[int, int]``."""
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
    """Whether a module has a class that is a mutator of TVM's, or decorated as one."""
    classes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    words = [
        ast.unparse(each).split(".")[-1] for node in classes for each in (*node.bases, *node.decorator_list)
    ]
    return not {"PyExprMutator", "ExprMutator", "mutator"}.isdisjoint(words)


def test_rules_rewrite_relax_functions() -> None:
    found = {name.removeprefix("tvm_stitch/") for name, text in _sources() if _has_mutator(text)}
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


def _sources() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "tvm_stitch").rglob("*.py")):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def test_tvms_are_told_apart_in_one_place() -> None:
    """Elsewhere one asks for a capability."""
    checks = {name for name, text in _sources() if _VERSION_CHECK.search(text)}
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
    texts = [text for name, text in _sources() if name != "tvm_stitch/compat/capabilities.py"]
    assert [flag for flag in flags if not any(re.search(rf"\b{flag}\b(?!\",)", text) for text in texts)] == []


# -- constants of choice -------------------------------------------------------------------------------------
_NO_CHOICE = {
    "compute/cpu/amx/instruction.py": {
        "TILE_ROWS": "hardware",
        "ROW_BYTES": "hardware",
        "COLUMNS": "two registers of sums",
        "MOST_ROWS": "two registers of sums",
    },
    "plan/gpu/occupancy.py": {
        "MAX_REGISTERS": "what an instruction can name",
        "OPT_IN_BYTES": "of CUDA, and of TVM's runtime",
        "_REGISTER_UNIT": "hardware: how registers are given out",
        "_SUB_PARTITIONS": "hardware",
    },
    "plan/gpu/patches.py": {
        "PIECE_BYTES": "the most that an instruction copies",
        "_PIECES_OF_BANKS": "hardware",
    },
    "relax/rewriting/contents.py": {"MOST_REMEMBERED": "a bound of memory, which changes no result"},
    "plan/iteration/index_length.py": {
        "_DIVISION_COPIES": "of TVM's lowering: how often it writes the operands"
    },
    "plan/gpu/uncoalesced.py": {"_SECTOR_BYTES": "hardware: the least that memory moves"},
    "codegen/small_integers.py": {
        "_OFFSET": "the float whose lowest bits hold an integer",
        "_OFFSET_BITS": "its bits",
        "_EXACT": "integers that a type holds",
    },
    "plan/rows/weights.py": {"VECTOR_BYTES": "of a vector load"},
    "plan/rows/fields.py": {"LARGEST": "of bfloat16: its mantissa", "MOST_VISITS": "a bound of time"},
    "plan/gpu/tile.py": {"MOST_BLOCKS": "CUDA's greatest grid", "BARRIER_BYTES": "of an mbarrier"},
    "codegen/gpu/memory/cache_policy.py": {"WORD": "of a register"},
    "codegen/gpu/reduce.py": {"WARP": "hardware"},
    "codegen/gpu/launch_check.py": {
        "_CUDA": "TVM's number of a kind of device",
        "_MULTIPROCESSORS": "TVM's number of an attribute",
        "_DEVICE_ID": "TVM's number of a field",
    },
    "repairs/tir/negation.py": {"_LEAST": "the least int32"},
    "compute/attention.py": {"SMALLEST_SCALE": "smaller scales become 0 in float32"},
    "compute/cpu/attention.py": {"_LOWEST": "the lowest float32"},
    "compute/cpu/dot_instruction.py": {"LLVM_VERSION": "the first LLVM with the intrinsics"},
    "compute/cpu/tiles.py": {"CACHE_LINE": "hardware"},
    "compute/recurrent/cuda_plan.py": {
        "WARP": "hardware",
        "VECTOR": "of the kernel's CUDA source: the most floats that an instruction loads",
        "BARRIERS": "of the kernel's CUDA source: its memory before the states",
    },
    "compute/cuda/attention_few.py": {
        "LARGEST_HEAD": "of the kernel's CUDA source, in which a lane has at most two vectors of a row",
        "CLUSTERS": "the sizes of clusters that every device with clusters has",
        "LARGEST_UNITS_HEAD": "of the kernel's CUDA source: the registers of its threads",
        "_TILE": "of the instruction: the rows of a tile",
        "_RESIDENT": "of the kernel's CUDA source: the registers of its threads",
    },
    "compute/cuda/attention_library.py": {
        "LARGEST_HEAD": "of cuDNN",
        "FIRST_FOR_WIDE_HEADS": "the first device on which cuDNN 9.0 takes them",
    },
    "compute/cuda/attention.py": {
        "FIRST_CAPABILITY": "the first device with the instructions",
        "LARGEST_HEAD": "of the kernel's CUDA source, whose threads have registers for so many",
        "THREADS": "of the kernel's CUDA source",
        "TILE": "of the kernel's CUDA source",
        "SMALL_HEAD": "of the kernel's CUDA source, which has other tiles above it",
        "_ALIGNMENT_BYTES": "the most that an instruction copies",
    },
    "compute/cuda/convolution.py": {"FIRST_CAPABILITY": "the first device with the instructions"},
    "compute/cuda/convolution_plan.py": {
        "DEPTH": "of the kernel's CUDA source",
        "STAGES": "of the kernel's CUDA source",
        "PLACE_WORDS": "of the kernel's CUDA source",
        "REGISTERS": "of a thread of the kernel's CUDA source",
        "_LARGEST": "the largest int32",
    },
    "compute/cuda/positions.py": {"FIRST": "an axis"},
    "compute/cuda/splits.py": {"VECTOR": "the most that an instruction loads"},
    "compute/recurrent/cell.py": {"GATES": "of kinds of cells", "DEFAULTS": "ONNX Runtime's"},
    "relax/attention/operands.py": {"LEADING_AXES": "of the kernels' arguments"},
    "relax/constants/computed_weights.py": {"_FILLED": "the values of operators"},
    "relax/constants/evaluated.py": {"_MOST_AXES": "of NumPy's arrays"},
    "relax/constants/views.py": {"_INTEGERS": "bits of types"},
    "relax/constants/weights.py": {"VALUE": "numbers of arguments"},
    "relax/legalize/aligned_regions.py": {"MOST_SAMPLES": "a limit that no finite region reaches"},
    "relax/legalize/arg_reductions.py": {"LARGEST_INT32": "the largest int32"},
    "relax/legalize/box_scores.py": {"THRESHOLD": "between the ranks 0 and 1", "LOWEST": "below all scores"},
    "relax/legalize/grid_samples.py": {"ALPHA": "PyTorch's and ONNX's"},
    "relax/legalize/short_scans.py": {"SCANS": "identities of operators"},
    "relax/legalize/widening_casts.py": {"INJECTIVE": "TVM's number of a pattern"},
    "relax/library/calls.py": {"_BFLOAT16_FROM": "the first compute capability with bfloat16"},
    "relax/lowering/argument_checks.py": {
        "PACKED": "TVM's number of a calling convention",
        "MOST_AXES": "of the C++ that checks arguments",
        "ANY_EXTENT": "a mark of the C++ that checks arguments",
    },
    "relax/lowering/kernels.py": {"HOST_LEVEL": "of LLVM for the host's code, whatever the device"},
    "relax/lowering/serial_tasks.py": {"STACK_BYTES": "TVM's"},
    "relax/precision/half.py": {"_FOLLOWS": "TVM's number of a policy"},
    "relax/quantize/products.py": {"LARGEST_SUM": "the largest int32", "LARGEST_BYTE": "the largest uint8"},
    "relax/quantize/unsigned.py": {"SHIFT": "from int8 to uint8"},
    "relax/rewriting/operators.py": {"OPAQUE_PATTERN": "TVM's number of a pattern"},
    "relax/stitch/numbers.py": {"_LARGEST": "beyond TVM's literals", "_LEAST": "the least int32"},
}
"""Numbers that are facts of devices, of TVM or of formats, with what they are."""
_MATHEMATICS = "codegen/vector_math/"  # coefficients, and bit patterns of floats


def _numbers(text: str) -> dict[str, int]:
    """Names in capitals that a module binds to numbers, or to collections of them, and in which line."""
    found = {}
    for node in ast.parse(text).body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
        constants = [n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant)]
        called = any(isinstance(n, (ast.Call, ast.Lambda)) for n in ast.walk(node.value))
        if called or not any(type(value) in (int, float) for value in constants):
            continue
        found |= {name: node.lineno for name in names if re.fullmatch(r"_?[A-Z][A-Z0-9_]*", name)}
    return found


_CHOICES = "cost/choices/"
_LAYERS = ("plan/", "scope/", "codegen/", "cost/", "compute/", "relax/", "relay/templates/", "repairs/tir/")


def test_constants_of_choice_are_fields_of_choices() -> None:
    found: dict[str, dict[str, int]] = {}
    for name, text in _sources():
        short = name.removeprefix("tvm_stitch/")
        if short.startswith(_LAYERS):
            if not short.startswith(_MATHEMATICS) and (numbers := _numbers(text)):
                found[short] = numbers
    assert {name: set(numbers) for name, numbers in found.items()} == {
        name: set(reasons) for name, reasons in _NO_CHOICE.items()
    }


def test_every_constant_of_choice_is_used_and_documented() -> None:
    """Neighbouring fields may share the documentation behind them."""
    sources = dict(_sources())
    used = "".join(text for name, text in sources.items() if f"/{_CHOICES}" not in name)
    names: list[str] = []
    for name, text in sources.items():
        if f"/{_CHOICES}" not in name:
            continue
        for made in [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]:
            fields = [node for node in made.body if isinstance(node, ast.AnnAssign)]
            names += [ast.unparse(node.target) for node in fields]
            for node, following in zip(made.body, [*made.body[1:], None]):
                shares = isinstance(node, ast.AnnAssign) and isinstance(following, ast.AnnAssign)
                documented = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
                assert not isinstance(node, ast.AnnAssign) or shares or documented, ast.unparse(node)
    assert set(names) == {field.name for field in dataclasses.fields(Choices)} and len(names) > 140
    within = "".join(text for name, text in sources.items() if f"/{_CHOICES}" in name)
    unused = [name for name in names if not re.search(rf"choices\.{name}\b", used)]
    assert [name for name in unused if len(re.findall(rf"(?<!`)\b{name}\b", within)) < 2] == []


def test_choices_are_frozen_numbers_of_a_device() -> None:
    h200 = GPUS["h200"]
    assert hash(Choices()) == hash(h200.choices) and Choices() == h200.choices
    changed = h200.with_choices(split_gain=0.5)
    assert changed.choices.split_gain == 0.5 != h200.choices.split_gain
    assert dataclasses.replace(changed, choices=h200.choices) == h200


def test_numbers_are_found() -> None:
    text = "A = 3\n_B: int = -4\nC, D = 1, 2.5\nE = {(1, 2): 0.5}\nF = 'x'\nG = f(3)\nh = 7\nI = True\nJ = A * 2\n"
    assert _numbers(text) == {"A": 1, "_B": 2, "C": 3, "D": 3, "E": 4, "J": 9}


# -- plans are made once -------------------------------------------------------------------------------------
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
    """Every class of data in ``plan`` is; what searches keeps its own state."""
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
    for name, text in _sources():
        short = name.removeprefix("tvm_stitch/")
        if short.startswith(("plan/", "codegen/", "cost/")):
            assert _assigned(text) == [], name


def test_assignments_are_found() -> None:
    text = (
        "a.b = 1\nself.c = 2\nx, y.z = 3, 4\nd.e += 1\nsetattr(f, 'g', 5)\nvars(h).update(i)\nself.j.k = 6\n"
    )
    written = ["a.b", "d.e", "setattr(f, 'g', 5)", "vars(h)", "y.z"]
    assert sorted(_assigned(text)) == written


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
