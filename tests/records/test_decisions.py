# SPDX-License-Identifier: Apache-2.0
"""Decisions are part of the module: passes hand them on, and going back takes them back."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import tvm
import tvm_ffi

from stitch_testing.random.graphs import emulated_target
from tests.relax.test_planted_failures import three_scopes
from tvm_stitch.context import CompileContext
from tvm_stitch.records.decisions import ATTRIBUTE, Decisions, decided, decisions_of, without_decisions
from tvm_stitch.relax import pipeline
from tvm_stitch.relax.pipeline import lowered

PACKAGE = Path(__file__).parents[2] / "tvm_stitch"


def test_a_module_without_any_has_none() -> None:
    mod = three_scopes()
    assert decisions_of(mod) == Decisions() and decided(mod, computed={}).same_as(mod)
    assert without_decisions(mod).same_as(mod)


def test_more_are_added_and_an_earlier_module_keeps_its_own() -> None:
    first = decided(three_scopes(), computed={"a": "one"}, left={"x": "why"})
    second = decided(first, computed={"b": "two", "a": "three"}, boundaries=[1])
    assert decisions_of(first).computed == {"a": "one"} and decisions_of(first).boundaries == ()
    assert list(decisions_of(second).computed.items()) == [("a", "three"), ("b", "two")]
    assert decisions_of(second).left == {"x": "why"} and len(decisions_of(second).boundaries) == 1
    assert ATTRIBUTE not in without_decisions(second).attrs


def test_refused_names_get_numbers_where_they_are_taken() -> None:
    excluded = {"s": (("f", "one"),), "t": (("f", "two"), ("g", "three"))}
    assert Decisions(excluded=excluded, left={"g": "four"}).refused() == {
        "f": "one",
        "f (2)": "two",
        "g": "three",
        "g (2)": "four",
    }


def test_tvm_prints_compares_hashes_and_saves_such_a_module() -> None:
    """Instruments of users may do any of that between passes."""
    mod = three_scopes()
    first, second = decided(mod, computed={"a": "b"}), decided(mod, computed={"c": "d"})
    assert tvm_ffi.structural_equal(first, second)
    assert tvm_ffi.structural_hash(first) == tvm_ffi.structural_hash(second)
    loaded = tvm.ir.load_json(tvm.ir.save_json(first))
    assert decisions_of(loaded) == Decisions() and tvm_ffi.structural_equal(without_decisions(loaded), mod)
    read = tvm.script.from_source(first.script(show_meta=True))
    assert decisions_of(read) == Decisions()


@pytest.mark.parametrize("kind", ["llvm", "cuda"])
def test_decisions_come_out_of_the_pipeline_and_not_into_the_code(kind: str) -> None:
    target = emulated_target() if kind == "cuda" else tvm.target.Target("llvm")
    made = lowered(three_scopes(), CompileContext(target))
    found = decisions_of(made)
    # A matmul with its epilogue is outlined too. On CUDA TVM schedules it, so it has no plan.
    assert len(found.outlined) >= 3 and len(found.plans) == {"cuda": 2, "llvm": 3}[kind]
    assert found.boundaries and found.flows and found.computed
    assert ATTRIBUTE not in (pipeline(target)(three_scopes()).attrs or {})


def test_no_pass_fills_a_dictionary_or_a_list_that_it_was_given() -> None:
    """No constructor of a pass takes a dictionary, a list or a set."""
    found, passes = [], 0
    for path in [*PACKAGE.glob("relax/**/*.py"), *PACKAGE.glob("relay/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ClassDef) or "module_pass" not in map(
                ast.unparse, node.decorator_list
            ):
                continue
            passes += 1
            for made in (f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"):
                for arg in made.args.args[1:] + made.args.kwonlyargs:
                    given = ast.unparse(arg.annotation) if arg.annotation is not None else ""
                    if given.startswith(("dict", "list", "set")):
                        found.append(f"{path.name}: {node.name}({arg.arg}: {given})")
    assert passes > 30 and found == []
