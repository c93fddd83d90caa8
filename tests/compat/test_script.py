# SPDX-License-Identifier: Apache-2.0
"""``Script.prim_func`` makes the functions of TVM's decorator, and reads no stack."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import tvm
from tvm.script import tirx as T

from tvm_stitch.compat.script import Script

COUNT = 4


def doubled() -> Any:
    """Return a PrimFunc, made when it is asked for."""

    @Script.prim_func(private=True, s_tir=True)
    def function(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")) -> None:
        for i in range(COUNT):
            b[i] = a[i] * T.float32(2)

    return function


@T.prim_func(private=True, s_tir=True)
def expected(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")) -> None:
    for i in range(COUNT):
        b[i] = a[i] * T.float32(2)


def test_the_function_is_that_of_tvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "stack", lambda *_: pytest.fail("the stack is read"))
    made = doubled()
    tvm.ir.assert_structural_equal(made, expected)
    assert "global_symbol" not in made.attrs
