# SPDX-License-Identifier: Apache-2.0
"""Attention that cuDNN may compute is one call, which carries this package's kernel and says where all operands lie."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import op as R

import tvm_stitch
from stitch_testing.workloads.attention import Case, inputs, module, reference
from tests.graph.helpers import build, symbol
from tvm_stitch.compute.cuda import library
from tvm_stitch.config import StitchConfig
from tvm_stitch.records.decisions import decisions_of, without_decisions
from tvm_stitch.relax.attention.fused import FusedAttention
from tvm_stitch.relax.lowering.needs import needs
from tvm_stitch.target import resolve_target

CUDA = resolve_target({"kind": "cuda", "arch": "sm_90"})
NAME = "tests.cudnn_attention.attention"
LONG = Case(2, 4, 70, 260, 16)
WAY = "our kernel or cuDNN, the faster one when it runs"


def rows(tensor: Any, told: list[int], shape: tuple[int, ...]) -> np.ndarray:
    """Return the operand <batch, head, row, element> that an offset and three distances describe."""
    flat = tensor.numpy().reshape(-1).astype("float64")
    steps = [*told[1:], 1]
    at = told[0] + sum(np.arange(n)[(...,) + (None,) * (3 - i)] * steps[i] for i, n in enumerate(shape))
    return np.asarray(flat[at])


def attention(*args: Any) -> None:
    """Compute such a call as cuDNN does, in float64."""
    *tensors, kernel, of_kernel, numbers, mode, out, workspace = args
    words = str(mode).split()
    assert str(kernel) == "kernel" and workspace.dtype == "uint8"
    assert ("masked" in words) == (len(tensors) == 4)
    b, h, g, m, n, d, offset = (int(x) for x in numbers[:7])
    told = [[int(x) for x in numbers[i : i + 4]] for i in range(7, len(numbers), 4)]
    heads = (h, g, g)
    q, k, v = (
        rows(tensors[i], told[i], (b, heads[i], m if i == 0 else n, d)) for i in range(3)
    )  # fmt: skip
    (scale,) = (float.fromhex(word[6:]) for word in words if word.startswith("scale="))
    scores = scale * q @ k.repeat(h // g, 1).transpose(0, 1, 3, 2)
    if len(tensors) == 4:
        scores = scores + rows(tensors[3], told[4], (b, h, m, n))
    if "causal" in words:
        scores[..., np.arange(n) > np.arange(m)[:, None] + offset] = -np.inf
    weights = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e30))
    found = (
        weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30) @ v.repeat(h // g, 1)
    )  # 0 if all is hidden
    flat = out.numpy().reshape(-1)
    steps = [*told[3][1:], 1]
    at = sum(np.arange(e)[(...,) + (None,) * (3 - i)] * steps[i] for i, e in enumerate((b, h, m, d)))
    flat[told[3][0] + at] = found
    out.copyfrom(flat.reshape(out.shape))


tvm.register_global_func(NAME, attention, override=True)


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.CUDNN_ATTENTION, "function", NAME)
    monkeypatch.setattr(library.CUDNN_ATTENTION, "missing", lambda: None)
    monkeypatch.setattr(library.CUDNN_ATTENTION, "opened", True)


def rewritten(mod: tvm.IRModule, **options: Any) -> tuple[tvm.IRModule, list[str]]:
    made = FusedAttention(CUDA, StitchConfig(**options))(mod)
    return without_decisions(made), list(decisions_of(made).computed.values())


def calls(mod: tvm.IRModule) -> list[relax.Call]:
    found: list[relax.Call] = []

    def visit(e: Any) -> None:
        if getattr(getattr(e, "op", None), "name", "") == "relax.call_dps_packed":
            found.append(e)

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


def run(mod: tvm.IRModule, *arrays: np.ndarray) -> np.ndarray:
    """Run the Relax function, with a name where it passes the kernel, on the CPU."""
    kernels = [gvar for gvar, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)]
    named = {gvar.name_hint for gvar in kernels}

    def told(gvar: tvm.ir.GlobalVar) -> Any:
        return tvm.ir.StringImm("kernel") if gvar.name_hint in named else gvar

    main = tvm_ffi.structural_map(mod["main"], (tvm.ir.GlobalVar, told), order="post")
    executable = tvm.compile(tvm.IRModule({"main": main}), "llvm")
    return relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, arrays)).numpy()


@pytest.mark.parametrize(
    "case",
    [
        LONG,
        replace(LONG, mask=(2, 4, 70, 260), safe=True),
        replace(LONG, mask=(2, 1, 1, 260), mask_dtype="float32", safe=True),
        replace(LONG, mask=(1, 4, 70, 260), flat=True, safe=True),
        replace(LONG, size=256),
    ],
    ids=str,
)
def test_attention_means_the_same(case: Case) -> None:
    made, told = rewritten(module(case))
    (call,) = calls(made)
    assert [how.split(":")[0] for how in told] == [WAY]
    assert "timed" in str(call.args[1].fields[-1].value).split()
    arrays = inputs(case, np.random.default_rng())
    np.testing.assert_allclose(
        run(made, *arrays).astype("float64"), reference(case, arrays), rtol=0, atol=2e-3
    )


def test_symbolic_lengths() -> None:
    n = symbol("n")
    made, _ = rewritten(module(replace(LONG, queries=n, keys=n)))
    (call,) = calls(made)
    assert "timed" not in str(call.args[1].fields[-1].value).split()
    case = replace(LONG, queries=33, keys=33)
    arrays = inputs(case, np.random.default_rng())
    np.testing.assert_allclose(
        run(made, *arrays).astype("float64"), reference(case, arrays), rtol=0, atol=2e-3
    )


@pytest.mark.parametrize("causal", ["TopLeft", "BottomRight"])
def test_slices_of_one_product_and_a_causal_mask(causal: str) -> None:
    b, s, h, d = 2, 260, 4, 16

    def body(emit: Any, qkv: Any) -> Any:
        parts = emit(R.split(qkv, 3, -1))
        q, k, v = (emit(R.reshape(emit(relax.TupleGetItem(parts, i)), [b, s, h, d])) for i in range(3))
        q = emit(R.strided_slice(q, [1], [0], [200]))
        return emit(R.nn.attention(q, k, v, scale=0.25, causal_mask=causal))

    made, _ = rewritten(build(body, ((b, s, 3 * h * d), "float16")))
    (call,) = calls(made)
    assert len({str(value) for value in list(call.args[1].fields)[:3]}) == 1  # the product itself
    x = np.random.default_rng().standard_normal((b, s, 3 * h * d)).astype("float16")
    q, k, v = np.moveaxis(x.astype("float64").reshape(b, s, 3, h, d), 2, 0)
    offset = 0 if causal == "TopLeft" else s - 200
    mask = np.where(np.arange(s) > np.arange(200)[:, None] + offset, -np.inf, 0.0)
    case = Case(b, h, 200, s, d, mask=mask.shape)
    wanted = reference(replace(case), [q[:, :200], k, v, mask])
    np.testing.assert_allclose(run(made, x).astype("float64"), wanted, rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    ("case", "options"),
    [
        (replace(LONG, keys=200), {}),
        (replace(LONG, queries=8), {}),
        (replace(LONG, size=20), {}),
        (replace(LONG, dtype="float32"), {}),
        (replace(LONG, mask=(2, 1, 1, 260)), {}),
        (LONG, {"compute": "auto, attention=templates"}),
    ],
    ids=str,
)
def test_the_kernel_alone(case: Case, options: dict[str, Any]) -> None:
    made, told = rewritten(module(case), **options)
    assert calls(made) == [] and [how.split(":")[0] for how in told] == ["our kernel"]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_wide_heads_need_the_library(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's kernel of few queries replaces cuDNN if that is missing when the model runs, not when it is
    compiled.
    """
    monkeypatch.setattr(library.CUDNN_ATTENTION, "opened", arch == "sm_80")
    monkeypatch.setattr(library.CUDNN_ATTENTION, "missing", lambda: "cuDNN is not here")
    target = resolve_target({"kind": "cuda", "arch": arch})
    made = FusedAttention(target, StitchConfig())(module(replace(LONG, size=256)))
    assert calls(made) == [] and "heads of 256 elements" in str(dict(decisions_of(made).computed))


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.CUDNN_ATTENTION, "opened", False)
    monkeypatch.setattr(library.CUDNN_ATTENTION, "missing", lambda: "cuDNN is not here")
    assert rewritten(module(LONG))[1][0].split(":")[0] == "our kernel"


def test_a_compiled_model_has_the_kernel_and_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.CUDNN_ATTENTION, "function", "tvm_stitch.cudnn_attention.attention")
    lowered = tvm_stitch.relax.pipeline(CUDA)(module(LONG))
    kernels = [gvar.name_hint for gvar, func in lowered.functions_items() if isinstance(func, tirx.PrimFunc)]
    assert kernels == ["attention"] and len((lowered.attrs or {})["external_mods"]) == 1
    needed = [entry for entry in needs(lowered, CUDA) if entry["name"] == "cuDNN"]
    assert len(needed) == 1 and "attention" in needed[0]["what"]
