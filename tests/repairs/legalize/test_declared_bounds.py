# SPDX-License-Identifier: Apache-2.0
"""Shapes are as simple as what a function declares of its symbolic variables makes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_stitch
from tests.graph.helpers import build, symbol
from tests.repairs import faults
from tvm_stitch.repairs.imports.kept_bounds import LEAST, MOST
from tvm_stitch.repairs.legalize.declared_bounds import DeclaredBounds

LLVM = tvm.target.Target("llvm")
TABLE = np.random.default_rng(0).standard_normal((16, 4)).astype("float32")


def sliced(bound: int | None, first: int = 0, strides: int = 1) -> tvm.IRModule:
    """Add a tensor of ``n`` rows and the first ``n`` rows of a table of 16, as importers write it."""
    n = symbol("n")

    def body(emit: Any, x: Any) -> list[Any]:
        rows = emit(R.strided_slice(relax.const(TABLE), [0], [first], [n], [strides]))
        return [R.add(x, emit(R.reshape(rows, rows.ty.shape)))]

    mod = build(body, ((n, 4), "float32"))
    return mod if bound is None else declared(mod, bound)


def declared(mod: tvm.IRModule, bound: int) -> tvm.IRModule:
    return tvm.IRModule({"main": mod["main"].with_attr(MOST, {"n": bound})})


@pytest.mark.parametrize("bound", [16, 12, 1])
def test_a_slice_that_stays_within_has_the_length_it_is_asked_for(bound: int) -> None:
    n = symbol("n")

    def body(emit: Any, x: Any) -> list[Any]:
        rows = emit(R.strided_slice(relax.const(TABLE), [0], [0], [n], [1], assume_inbound=True))
        return [R.add(x, emit(R.reshape(rows, [n, 4])))]

    after = declared(build(body, ((n, 4), "float32")), bound)
    tvm.ir.assert_structural_equal(DeclaredBounds()(sliced(bound)), after, True)


def inbound(mod: tvm.IRModule) -> list[bool]:
    """Return for each slice whether it is known to stay within."""
    values = relax.analysis.get_var2val(mod["main"]).values()
    slices = [v for v in values if getattr(getattr(v, "op", None), "name", "") == "relax.strided_slice"]
    return [bool(call.attrs.assume_inbound) for call in slices]


@pytest.mark.parametrize("mod", [sliced(None), sliced(17)], ids=["undeclared", "beyond"])
def test_what_may_be_cut_off_stays(mod: tvm.IRModule) -> None:
    tvm.ir.assert_structural_equal(DeclaredBounds()(mod), mod, True)


@pytest.mark.parametrize(
    ("mod", "within"),
    [(sliced(12, first=1), False), (sliced(12, first=-2), False), (sliced(12, strides=2), True)],
    ids=["from a place it may end before", "from behind", "with strides"],
)
def test_slices_of_other_kinds(mod: tvm.IRModule, within: bool) -> None:
    assert inbound(mod) == [False] and inbound(DeclaredBounds()(mod)) == [within]


def test_others_are_left_alone() -> None:
    n = symbol("n")
    mod = declared(build(lambda emit, x: [R.exp(x)], ((n, 4), "float32")), 12)
    assert DeclaredBounds()(mod)["main"].same_as(mod["main"])


def test_it_is_in_the_pipeline() -> None:
    vm = relax.VirtualMachine(tvm_stitch.compile(sliced(12), LLVM), tvm.cpu())
    for rows in (0, 1, 5, 12):
        x = np.ones((rows, 4), "float32")
        np.testing.assert_array_equal(vm["main"](tvm.runtime.tensor(x)).numpy(), x + TABLE[:rows])


def test_positions_of_a_sequence_of_symbolic_length() -> None:
    """As transformers write them: a slice of all positions, looked up, and added to what is as long."""
    torch = pytest.importorskip("torch")
    from tvm.relax.frontend.torch import from_exported_program

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("positions", torch.arange(16)[None])
            self.table, self.norm = torch.nn.Embedding(16, 4), torch.nn.LayerNorm(4)

        def forward(self, x: Any) -> Any:
            return self.norm(x + self.table(self.positions[:, : x.shape[1]]))

    model = Model().eval()
    length = torch.export.Dim("length", max=12)
    with torch.no_grad():
        program = torch.export.export(model, (torch.randn(2, 5, 4),), dynamic_shapes={"x": {1: length}})
    mod = from_exported_program(program, keep_params_as_input=False, unwrap_unit_return_tuple=True)
    vm = relax.VirtualMachine(tvm_stitch.compile(mod, LLVM), tvm.cpu())
    for size in (2, 5, 12):
        x = torch.randn(2, size, 4)
        wanted = model.double()(x.double()).detach().numpy()
        np.testing.assert_allclose(vm["main"](tvm.runtime.tensor(x.numpy())).numpy(), wanted, 1e-5, 1e-5)


def differences(emit: Any, x: Any) -> list[Any]:
    later = emit(R.strided_slice(x, [1], [1], [np.iinfo("int64").max], [1]))
    earlier = emit(R.strided_slice(x, [1], [0], [-1], [1]))
    return [emit(R.subtract(later, earlier))]


def test_differences_of_neighbours() -> None:
    def within(emit: Any, x: Any) -> list[Any]:
        n = x.ty.shape[1]
        later = emit(R.strided_slice(x, [1], [1], [n], [1], assume_inbound=True))
        earlier = emit(R.strided_slice(x, [1], [0], [n - 1], [1], assume_inbound=True))
        return [emit(R.subtract(later, earlier))]

    def declaring(body: Any, least: int) -> tvm.IRModule:
        mod = build(body, ((3, symbol("n")), "float32"))
        return tvm.IRModule({"main": mod["main"].with_attr(LEAST, {"n": least})})

    after = DeclaredBounds()(declaring(differences, 1))
    tvm.ir.assert_structural_equal(after, DeclaredBounds()(declaring(within, 1)), True)
    assert inbound(after) == [True, True]
    assert inbound(DeclaredBounds()(declaring(differences, 0))) == [False, False]
    vm = relax.VirtualMachine(tvm_stitch.compile(declaring(differences, 1), LLVM), tvm.cpu())
    for length in (1, 2, 9):
        x = np.random.default_rng(length).standard_normal((3, length)).astype("float32")
        np.testing.assert_allclose(vm["main"](tvm.runtime.tensor(x)).numpy(), np.diff(x, axis=1), rtol=1e-6)


def test_parts_of_a_symbolic_length_as_pytorch_exports_them() -> None:
    torch = pytest.importorskip("torch")
    from tvm.relax.frontend.torch import from_exported_program

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            first, last, inner = x[:, :2], x[:, -2:], x[:, 1:-1]
            return torch.diff(x, dim=1), first - last, inner * x[:, 2:] - x[:, :-2], x[:, 1::2], x[:, :-1:3]

    length = torch.export.Dim("length", min=5)
    program = torch.export.export(Model(), (torch.randn(2, 6),), dynamic_shapes={"x": {1: length}})
    vm = relax.VirtualMachine(tvm_stitch.compile(from_exported_program(program), LLVM), tvm.cpu())
    for size in (5, 6, 7, 33):
        x = torch.randn(2, size)
        for got, want in zip(vm["main"](tvm.runtime.tensor(x.numpy())), Model()(x), strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)


def test_fault() -> None:
    faults.needed(faults.raises(lambda: tvm.compile(sliced(12), LLVM)), "legalize/declared_bounds.py")


def test_repair() -> None:
    assert tvm_stitch.compile(sliced(12), LLVM)
    with faults.without("DeclaredBounds"):
        assert faults.raises(lambda: tvm_stitch.compile(sliced(12), LLVM))
