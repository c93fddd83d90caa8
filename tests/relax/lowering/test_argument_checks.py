# SPDX-License-Identifier: Apache-2.0
"""Arguments of kernels checked by one function: what TVM's checks refuse is refused, and what they take is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from tvm import tirx
from tvm.script import ir as I
from tvm.script import tirx as T

from tvm_stitch import compat
from tvm_stitch.relax.lowering import argument_checks
from tvm_stitch.relax.lowering.kernels import NAME

LLVM = tvm.target.Target("llvm")


@I.ir_module
class Doubled:
    @T.prim_func(s_tir=True)
    def doubled(x: T.Buffer((4, 6), "float32"), y: T.Buffer((4, 6), "float32")):
        for i, j in T.grid(4, 6):
            with T.sblock("y"):
                a, b = T.axis.remap("SS", [i, j])
                y[a, b] = x[a, b] * T.float32(2)

    @T.prim_func(s_tir=True)
    def of_any_length(p: T.handle, q: T.handle):
        n = T.int64()
        x = T.match_buffer(p, (n, T.int64(2)), "int8")
        y = T.match_buffer(q, (n, T.int64(2)), "int8")
        for i, j in T.grid(n, T.int64(2)):
            with T.sblock("y"):
                a, b = T.axis.remap("SS", [i, j])
                y[a, b] = x[a, b] * T.int8(2)


def built(pipeline: str) -> Any:
    return tvm.compile(Doubled, target=LLVM, tir_pipeline=pipeline)


def given(x: torch.Tensor) -> Any:
    """Return a tensor with its own strides, compact or not."""
    return tvm_ffi.from_dlpack(x, require_contiguous=False)


def at_offset(x: np.ndarray, offset: int) -> Any:
    """Return a tensor that begins some bytes behind its data."""
    return tvm.runtime.tensor(x)._create_view((4, 6), "float32", offset)


def floats(*shape: int) -> torch.Tensor:
    return torch.arange(float(np.prod(shape)), dtype=torch.float32).reshape(shape)


TAKEN = {
    "compact": lambda: given(floats(4, 6)),
    "another library's": lambda: floats(4, 6),
}
REFUSED = {
    "a number": lambda: 3,
    "nothing": lambda: None,
    "text": lambda: "x",
    "a shape": lambda: tvm.runtime.ShapeTuple([4, 6]),
    "another dtype": lambda: given(floats(4, 6).double()),
    "another kind of number": lambda: given(floats(4, 6).to(torch.int32)),
    "fewer axes": lambda: given(floats(24)),
    "more axes": lambda: given(floats(4, 6, 1)),
    "another extent": lambda: given(floats(4, 5)),
    "transposed": lambda: given(floats(6, 4).t()),
    "rows apart": lambda: given(floats(4, 12)[:, :6]),
    "an offset": lambda: at_offset(np.zeros((8, 6), "float32"), 24),
}


@pytest.mark.parametrize("pipeline", ["default", NAME])
def test_what_fits_is_taken(pipeline: str) -> None:
    lib, out = built(pipeline), torch.zeros(4, 6)
    for make in (TAKEN["compact"], TAKEN["another library's"]):
        out.zero_()
        lib["doubled"](make(), out)
        assert torch.equal(out, floats(4, 6) * 2)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_a_symbolic_extent_is_any(rows: int) -> None:
    lib = built(NAME)
    x, out = floats(rows, 2).to(torch.int8), torch.zeros(rows, 2, dtype=torch.int8)
    lib["of_any_length"](given(x), out)
    assert torch.equal(out, x * 2)


def test_an_axis_of_one_may_have_any_stride() -> None:
    lib, out = built(NAME), torch.zeros(1, 2, dtype=torch.int8)
    x = torch.as_strided(torch.arange(9, dtype=torch.int8), (1, 2), (7, 1))
    lib["of_any_length"](given(x), out)
    assert out.tolist() == [[0, 2]]


@pytest.mark.parametrize("pipeline", ["default", NAME])
@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name: str, pipeline: str) -> None:
    lib, out = built(pipeline), torch.zeros(4, 6)
    with pytest.raises((TypeError, ValueError), match="argument #0"):
        lib["doubled"](REFUSED[name](), out)
    with pytest.raises((TypeError, ValueError), match="argument #1"):
        lib["doubled"](floats(4, 6), REFUSED[name]())
    assert not out.any()


def test_symbolic_extents_that_differ_are_refused() -> None:
    lib = built(NAME)
    x, y = (torch.zeros(rows, 2, dtype=torch.int8) for rows in (3, 4))
    with pytest.raises(ValueError, match=r"shape\[0\] on argument #1"):
        lib["of_any_length"](x, y)


def test_the_number_of_arguments_is_checked() -> None:
    with pytest.raises(TypeError, match="Expected 2 arguments"):
        built(NAME)["doubled"](floats(4, 6))


@pytest.mark.parametrize("name", ["another dtype", "another extent", "rows apart"])
def test_an_error_has_the_call_and_what_is_expected(name: str) -> None:
    with pytest.raises(TypeError, match=r"doubled\(x: Tensor\(\[4, 6\], float32\)") as caught:
        built(NAME)["doubled"](REFUSED[name](), torch.zeros(4, 6))
    assert str(caught.value).endswith(f"expected {argument_checks.FITTING}")


def lowered(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a module as TVM's own lowering leaves it."""
    default, _, _ = tirx.get_tir_pipeline("default")
    return default(tirx.transform.BindTarget(LLVM.with_host(LLVM))(mod))


def checks_of(func: Any) -> int:
    found = []
    tvm_ffi.structural_map(
        func.body, (tirx.AssertStmt, lambda each: found.append(each) or each), order="post"
    )
    return len(found)


def test_one_check_is_left_of_a_tensor() -> None:
    before = lowered(Doubled)
    after = argument_checks.with_shared_checks(before)
    # The number of arguments, that there are any, and both tensors.
    assert checks_of(after["doubled"]) == 2 + 2 < checks_of(before["doubled"])
    assert [
        gvar.name_hint for gvar in after.functions if gvar.name_hint not in ("doubled", "of_any_length")
    ] == [argument_checks.NAME]


@pytest.mark.parametrize("pipeline", ["default", NAME])
@pytest.mark.parametrize("number", [0, 1])
def test_tensors_on_several_devices_are_refused(number: int, pipeline: str) -> None:
    both = [tvm.runtime.tensor(np.zeros((4, 6), "float32"), tvm.cpu(int(i == number))) for i in range(2)]
    with pytest.raises((TypeError, ValueError), match="argument #1"):
        built(pipeline)["doubled"](*both)


def test_tensors_on_another_device_are_taken() -> None:
    x, y = (tvm.runtime.tensor(np.ones((4, 6), "float32"), tvm.cpu(1)) for _ in range(2))
    built(NAME)["doubled"](x, y)
    assert (y.numpy() == 2).all()


def test_no_branch_finds_a_tensor() -> None:
    def choices(mod: tvm.IRModule) -> int:
        found: list[Any] = []
        tvm_ffi.structural_walk(mod["doubled"].body, (tvm.ir.Call, found.append))
        return sum(compat.is_choice(call) for call in found)

    before = lowered(Doubled)
    assert (choices(before), choices(argument_checks.with_shared_checks(before))) == (2, 0)


@I.ir_module
class Unusual:
    @T.prim_func(s_tir=True)
    def apart(p: T.handle, y: T.Buffer((4,), "float32")):
        step = T.int32()
        x = T.match_buffer(p, (4,), "float32", strides=(step,))
        for i in T.grid(4):
            with T.sblock("y"):
                a = T.axis.remap("S", [i])
                y[a] = x[a]

    @T.prim_func(s_tir=True)
    def of_seven_axes(
        x: T.Buffer((1, 1, 1, 1, 1, 1, 2), "float32"), y: T.Buffer((1, 1, 1, 1, 1, 1, 2), "float32")
    ):
        for i in T.grid(2):
            with T.sblock("y"):
                a = T.axis.remap("S", [i])
                y[0, 0, 0, 0, 0, 0, a] = x[0, 0, 0, 0, 0, 0, a]


def test_what_the_function_does_not_check_keeps_its_checks() -> None:
    """A tensor that need not be compact, and one of more axes than are given to the function."""
    before = lowered(Unusual)
    after = argument_checks.with_shared_checks(before)
    assert 7 < checks_of(after["apart"]) < checks_of(before["apart"])
    assert after["of_seven_axes"].same_as(before["of_seven_axes"])
    lib, out = tvm.compile(Unusual, target=LLVM, tir_pipeline=NAME), torch.zeros(4)
    lib["apart"](given(floats(8)[::2]), out)
    assert out.tolist() == [0, 2, 4, 6]
