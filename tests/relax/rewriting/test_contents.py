# SPDX-License-Identifier: Apache-2.0
"""The contents of a function are read once for a function, and only while they are remembered."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.graph.helpers import build
from tvm_stitch.relax.rewriting import contents
from tvm_stitch.relax.rewriting.contents import contents_of, remembering
from tvm_stitch.relax.rewriting.operators import operators_in

X = ((4,), "float32")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The functions that were read."""
    found: list[Any] = []
    read = contents._read

    def noted(func: Any) -> Any:
        found.append(func)
        return read(func)

    monkeypatch.setattr(contents, "_read", noted)
    return found


def made(*names: str) -> tvm.IRModule:
    def body(emit: Any, x: Any) -> list[Any]:
        for name in names:
            x = emit(getattr(R, name)(x))
        return [x]

    return build(body, X)


def test_values_by_operator() -> None:
    found = contents_of(made("exp", "sin", "exp")["main"])
    assert {name: len(values) for name, values in found.items() if name} == {"relax.exp": 2, "relax.sin": 1}
    assert all(isinstance(value, relax.Call) for name in ("relax.exp", "relax.sin") for value in found[name])


def test_a_function_is_read_once_while_it_is_remembered(reads: list[Any]) -> None:
    mod = made("exp")
    with remembering():
        for _ in range(3):
            assert "relax.exp" in operators_in(mod)
        assert len(reads) == 1
        assert "relax.sin" in operators_in(made("sin"))
        assert "relax.exp" in operators_in(mod)
        assert len(reads) == 2


def test_nothing_is_kept_outside(reads: list[Any]) -> None:
    mod = made("exp")
    with remembering():
        operators_in(mod)
    operators_in(mod)
    operators_in(mod)
    assert len(reads) == 3


def test_few_functions_are_kept(reads: list[Any]) -> None:
    mods = [made(name) for name in ("exp", "sin", "cos", "tan", "log")]
    assert len(mods) > contents.MOST_REMEMBERED
    with remembering():
        for mod in [*mods, mods[-1], mods[0]]:
            operators_in(mod)
    assert len(reads) == len(mods) + 1
