# SPDX-License-Identifier: Apache-2.0
"""Reads and writes of kernels, as a report counts them."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_stitch.relax.report.kernel_calls import Call, Calls, kernel_calls
from tvm_stitch.relax.rewriting.marked_names import marked
from tvm_stitch.report.data import Value


@I.ir_module
class OneTaken:
    @R.function(pure=False)
    def main(x: R.Tensor((8, 8), "float32")) -> R.Tensor((8, 8), "float32"):
        made = R.call_dps_packed(
            "a.library", (x,), out_ty=[R.Tensor((8, 8), "float32"), R.Tensor((1024,), "uint8")]
        )
        product: R.Tensor((8, 8), "float32") = made[0]
        return product


@I.ir_module
class ReadAsOne:
    @R.function(pure=False)
    def main(x: R.Tensor((8, 8), "float32")):
        made = R.call_dps_packed(
            "a.library", (x,), out_ty=[R.Tensor((8, 8), "float32"), R.Tensor((1024,), "uint8")]
        )
        product: R.Tensor((8, 8), "float32") = made[0]
        return (product, made)


@pytest.mark.parametrize(("mod", "results"), [(OneTaken, ["8, 8"]), (ReadAsOne, ["8, 8", "1024"])])
def test_a_workspace_is_no_result(mod: Any, results: list[str]) -> None:
    (call,) = kernel_calls(mod).calls
    assert [value.shape for value in call.results] == results


def test_a_kernel_writes_a_value_in_another_shape() -> None:
    """A pass has marked the result as a part of the value. Another kernel that writes the value itself counts more."""

    def call(result: str) -> Call:
        return Call("main", "a", False, False, results=[Value(result, "4", "float32", 16)])

    whole, part = marked("y", 1), marked(marked("y", 1), 2)
    assert Calls([call(part)]).written("main") == {whole: 0, part: 0}
    assert Calls([call(part), call(whole)]).written("main") == {whole: 1, part: 0}
    assert Calls([call(whole), call("lv")]).written("main") == {whole: 0, "lv": 1}
