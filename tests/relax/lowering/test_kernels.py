# SPDX-License-Identifier: Apache-2.0
"""Kernels of this package lowered without passes that change nothing in them. TVM lowers its own functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.relax import op as R

import tvm_stitch
from stitch_testing.random.graphs import emulated_target
from stitch_testing.reference.relax import evaluate
from tests.graph.helpers import build, draw
from tvm_stitch import compat
from tvm_stitch.codegen import builder as B
from tvm_stitch.compute.cpu.emit import compute_func
from tvm_stitch.config import StitchConfig
from tvm_stitch.relax.lowering import argument_checks
from tvm_stitch.relax.lowering.argument_checks import with_shared_checks
from tvm_stitch.relax.lowering.kernels import HOST_LEVEL, NAME, with_quick_host
from tvm_stitch.relax.pipeline import default_schedules, planning_passes
from tvm_stitch.testing.workloads.case import Case
from tvm_stitch.testing.workloads.cases import cases

F32 = "float32"
LLVM = tvm.target.Target("llvm")
HOSTED, CUDA = LLVM.with_host(LLVM), emulated_target()
SPECS = [((30, 40), F32), ((40, 24), F32), ((24,), F32)]


@pytest.fixture
def no_cuda_compiler() -> Iterator[None]:
    """CUDA C is generated meanwhile, and not compiled."""
    name = "tvm_callback_cuda_compile"
    before = tvm.get_global_func(name, allow_missing=True)
    tvm_ffi.register_global_func(name, lambda *_: bytearray(b"left out"), override=True)
    yield
    if before is not None:
        tvm_ffi.register_global_func(name, before, override=True)


@tvm.instrument.pass_instrument
class Names:
    """Keeps for each pass the names of the functions that it was run on."""

    def __init__(self) -> None:
        self.seen: dict[str, list[set[str]]] = {}

    def run_before_pass(self, mod: tvm.IRModule, info: Any) -> None:
        self.seen.setdefault(info.name, []).append({g.name_hint for g in mod.get_global_vars()})


def lowered(mod: tvm.IRModule, name: str, target: Any = HOSTED) -> tvm.IRModule:
    """Lower the functions of a stitched module by TVM's pipeline or this package's, up to their split."""
    with target:
        passes = [*planning_passes(target, StitchConfig()), *default_schedules(target)]
        kernels = tvm.transform.Sequential(passes)(mod)
        return by_pipeline(
            {g: f for g, f in kernels.functions_items() if isinstance(f, tirx.PrimFunc)}, name, target
        )


def by_pipeline(funcs: dict[Any, Any], name: str, target: Any) -> tvm.IRModule:
    passes, _, _ = tirx.get_tir_pipeline(name)
    named = {g: f.with_attr("global_symbol", g.name_hint) for g, f in funcs.items()}
    return passes(tirx.transform.BindTarget(target)(tvm.IRModule(named)))


def device_sources(mod: tvm.IRModule) -> dict[str, str]:
    """CUDA C by kernel."""
    _, _, device = tirx.get_tir_pipeline("default")
    kernels = {
        g: f for g, f in mod.functions_items() if tvm.target.Target(f.attrs["target"]).kind.name == "cuda"
    }
    made = device()(tvm.IRModule(kernels))
    build = tvm.get_global_func("target.build.cuda")
    return {
        g.name_hint: str(build(tvm.IRModule({g: f}), CUDA).inspect_source())
        for g, f in made.functions_items()
    }


def product_norm() -> tvm.IRModule:
    def body(emit: Any, x: Any, w: Any, scale: Any) -> Any:
        y = emit(R.nn.gelu(emit(R.add(emit(R.matmul(x, w)), scale))))
        wide = emit(R.matmul(emit(R.astype(x, "float64")), emit(R.astype(w, "float64"))))  # TVM's
        return [emit(R.nn.layer_norm(y, scale, scale, axes=[-1])), wide]

    return build(body, *SPECS)


def instructions(mod: tvm.IRModule) -> list[str]:
    """Return LLVM's code of a lowered module for a CPU, without remarks and positions in sources."""
    _, host, _ = tirx.get_tir_pipeline("default")
    made = tvm.get_global_func("target.build.llvm")(host()(mod), LLVM).inspect_source("s")
    lines = (line.split("#")[0].strip() for line in str(made).splitlines())
    return [
        line
        for line in lines
        if line and not re.match(r"\.(loc|file|cfi|ident|section|p2align)|\.L\w*:", line)
    ]


def assert_compiled_the_same(mod: tvm.IRModule) -> None:
    """But for common expressions, which LLVM finds itself, checks of arguments and splits, as TVM lowers it.

    Indices that TVM has looked through for splits differ in a few of its instructions.
    """
    config, splits = {"tirx.disable_cse_tir": True}, "s_tir.RenormalizeSplitPattern"
    with tvm.transform.PassContext(config=config):
        whole = instructions(with_shared_checks(lowered(mod, "default")))
    with tvm.transform.PassContext(config=config, disabled_pass=[splits]):
        ours, theirs = lowered(mod, NAME), lowered(mod, "default")
    found = instructions(ours)
    assert found == instructions(with_shared_checks(theirs))
    assert len(found) < 1.01 * len(whole)


@pytest.mark.parametrize("case", cases("test"), ids=lambda case: f"{case.name}{case.sizes}")
def test_the_kernels_are_the_same(case: Case) -> None:
    assert_compiled_the_same(case.build())


@pytest.mark.parametrize(("target", "named"), [(HOSTED, False), (CUDA, True)], ids=["llvm", "cuda"])
def test_common_expressions_are_named_for_nvidia_s_compiler(target: Any, named: bool) -> None:
    names = Names()
    with tvm.transform.PassContext(instruments=[names]):
        lowered(product_norm(), NAME, target)
    seen = set().union(*names.seen["tirx.CommonSubexprElim"])
    assert any("stitch" in name for name in seen) == named and "matmul1" in seen


@pytest.mark.parametrize("case", cases("test"), ids=lambda case: f"{case.name}{case.sizes}")
def test_the_cuda_c_is_the_same(case: Case, no_cuda_compiler: None) -> None:
    mod = case.build()
    ours, theirs = (device_sources(lowered(mod, name, CUDA)) for name in (NAME, "default"))
    assert all("__global__" in source for source in ours.values())
    assert {name: without_held(source) for name, source in ours.items()} == theirs


def without_held(source: str) -> str:
    """Drop loads that only keep a tile's memory. TVM's ``RemoveNoOp`` drops them too, and so do compilers."""
    return re.sub(r"\n *\(\(uint\*\)\w+\)\[0\];", "", source)


def test_a_device_function_with_another_function_s_name() -> None:
    """A stitched kernel's device function is ``a_kernel``, and so is a function of TVM's: both are there."""
    with CUDA:
        passes = [*planning_passes(CUDA, StitchConfig()), *default_schedules(CUDA)]
        mod = build(lambda emit, x: emit(R.nn.softmax(x)), ((30, 40), F32))
        kernels = tvm.transform.Sequential(passes)(mod)
        (func,) = (f for f in kernels.functions.values() if isinstance(f, tirx.PrimFunc))
    rest = func.without_attr("tvm_stitch.stitch_op")
    funcs = {tvm.ir.GlobalVar("a"): func, tvm.ir.GlobalVar("a_kernel"): rest}
    ours, theirs = (by_pipeline(funcs, name, CUDA) for name in (NAME, "default"))
    names = {g.name_hint for g in ours.get_global_vars()}
    assert (
        names == {argument_checks.NAME, *(g.name_hint for g in theirs.get_global_vars())} and len(names) == 5
    )


def test_a_host_is_optimized_less_unless_asked() -> None:
    quick = with_quick_host(CUDA)
    assert int(quick.host.attrs["opt-level"]) == HOST_LEVEL
    assert quick.kind.name == "cuda" and dict(quick.attrs) == dict(CUDA.attrs)
    asked = CUDA.with_host(tvm.target.Target({"kind": "llvm", "opt-level": 3}))
    assert with_quick_host(asked) is asked
    assert with_quick_host(LLVM) is LLVM


def test_products_are_the_same_and_only_they_are_spared() -> None:
    mod, names = product_norm(), Names()
    assert_compiled_the_same(mod)
    with tvm.transform.PassContext(instruments=[names]):
        lowered(mod, NAME)
    whole = names.seen["s_tir.CompactBufferAllocation"][-1]
    assert [name for name in whole if "matmul" in name] == ["matmul1"]
    assert not any("stitch" in name or "tiled" in name for name in whole)
    others = set().union(*names.seen["tirx.VectorizeLoop"])
    assert "matmul1" in others and any("stitch" in name for name in others)


def copied(shape: list[int], dtype: str) -> Any:
    """Build a kernel like those of products, which copies a buffer."""
    source, to = (tirx.decl_buffer(shape, dtype, name) for name in ("source", "to"))
    with B.kernel() as body, B.loop("serial", shape[0]) as i:
        place = [i] * len(shape)
        B.store(to, compat.load(source, place), place)
    return compute_func([source, to], body[0])


@pytest.mark.parametrize(
    ("shape", "dtype", "spared"), [([8], F32, True), ([8], "bool", False), ([8, 8], F32, False)]
)
def test_what_has_one_dimension_is_not_flattened(shape: list[int], dtype: str, spared: bool) -> None:
    """Booleans are bytes in memory: it is the same pass of TVM's that makes them so."""
    names = Names()
    with tvm.transform.PassContext(instruments=[names]):
        by_pipeline({tvm.ir.GlobalVar("copied"): copied(shape, dtype)}, NAME, HOSTED)
    assert ("tirx.FlattenBuffer" not in names.seen) == spared and "tirx.VectorizeLoop" in names.seen


def test_products_are_not_flattened() -> None:
    names = Names()
    with tvm.transform.PassContext(instruments=[names]):
        lowered(product_norm(), NAME)
    seen = set().union(*names.seen["tirx.FlattenBuffer"])
    assert any("stitch" in name for name in seen) and not any("tiled" in name for name in seen)


def test_a_model_is_lowered_so_and_right() -> None:
    mod, inputs, names = product_norm(), draw(SPECS), Names()
    with tvm.transform.PassContext(instruments=[names]):
        executable = tvm_stitch.compile(mod, LLVM)
    assert "LowerKernels" in names.seen
    found = tvm.relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, inputs))
    for got, want in zip(found, evaluate(mod, inputs), strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=2e-5, atol=2e-5)


def test_another_pipeline_may_be_given() -> None:
    names = Names()
    with tvm.transform.PassContext(instruments=[names]):
        tvm_stitch.compile(product_norm(), LLVM, tir_pipeline="default")
    assert "LowerKernels" not in names.seen and "s_tir.CompactBufferAllocation" in names.seen


def test_a_function_without_a_target_is_lowered_for_any() -> None:
    """The calls around the build say nothing of it. TVM's own build binds targets before it lowers."""
    with CUDA:
        passes = [*planning_passes(CUDA, StitchConfig()), *default_schedules(CUDA)]
        kernels = tvm.transform.Sequential(passes)(
            build(lambda emit, x: emit(R.nn.softmax(x)), ((30, 40), F32))
        )
    (gvar,) = (g for g, f in kernels.functions_items() if isinstance(f, tirx.PrimFunc))
    func = kernels[gvar].with_attr("global_symbol", gvar.name_hint)
    assert "target" not in func.attrs
    lower, _, _ = tirx.get_tir_pipeline(NAME)
    names = Names()
    with LLVM, tvm.transform.PassContext(instruments=[names]), pytest.raises(Exception, match="target"):
        lower(tvm.IRModule({gvar: func}))
    assert names.seen["tirx.CommonSubexprElim"] == [{gvar.name_hint}]
