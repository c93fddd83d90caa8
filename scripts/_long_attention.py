# SPDX-License-Identifier: Apache-2.0
"""Attention of half types over many keys, which cuDNN or our kernel computes: cases, errors, and times."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tvm
from _cuda_events import microseconds
from torch.nn.attention import SDPBackend, sdpa_kernel
from tvm import relax
from tvm.relax import op as R

import tvm_stitch.relax
from stitch_testing.workloads.attention import Case
from stitch_testing.workloads.attention import module as workload
from tvm_stitch.records.recorder import Recorder

BACKENDS = {
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
"""PyTorch's ways to compute attention. The third one also takes masks."""

CALLS, BLOCKS = 5, 5


@dataclass(frozen=True)
class Long:
    """Attention of q <batch, queries, heads, size> and k, v <batch, keys, key_heads, size>.

    Attributes:
        causal: whether query ``i`` sees the keys up to ``i + keys - queries`` alone.
        mask: shape of a mask that is added to the scores <batch, heads, queries, keys>. None without one. Its last
            row hides all keys, and the result for that is 0.
        symbolic: whether one artifact serves all numbers of queries and keys, which are equal.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    size: int
    key_heads: int = 0
    causal: bool = False
    dtype: str = "float16"
    mask: tuple[int, ...] | None = None
    symbolic: bool = False

    @property
    def groups(self) -> int:
        """Return the number of heads of keys."""
        return self.key_heads or self.heads

    @property
    def operations(self) -> float:
        """Return the operations of both products, half of them if the attention is causal."""
        return (
            4.0 * self.batch * self.heads * self.queries * self.keys * self.size / (2 if self.causal else 1)
        )

    def __str__(self) -> str:
        heads = str(self.heads) if self.groups == self.heads else f"{self.heads}/{self.groups}"
        words = [f"{self.batch}x{heads}x{self.queries}x{self.keys}x{self.size} {self.dtype}"]
        words += ["causal"] * self.causal + ["symbolic"] * self.symbolic
        words += [f"mask {'x'.join(map(str, self.mask))}"] if self.mask else []
        return " ".join(words)


CHECKED = (
    Long(2, 4, 1024, 1024, 64, causal=True),
    Long(2, 3, 517, 1003, 80),
    Long(1, 4, 700, 700, 96, causal=True, dtype="bfloat16"),
    Long(2, 8, 512, 1024, 128, key_heads=2, causal=True),
    Long(2, 8, 512, 512, 64, mask=(2, 1, 1, 512)),
    Long(2, 8, 515, 517, 64, mask=(1, 8, 515, 517), dtype="bfloat16"),
    Long(1, 8, 1024, 1024, 256, causal=True),
    Long(1, 8, 1100, 1100, 64, causal=True, symbolic=True),
)
TIMED = (
    *(Long(32, 12, n, n, 64) for n in (128, 197, 256, 512)),
    Long(8, 8, 1500, 1500, 64),
    *(Long(4, 32, n, n, 64, causal=causal) for n in (1024, 2048) for causal in (False, True)),
    *(Long(2, 16, 4096, 4096, 128, causal=causal) for causal in (False, True)),
    Long(1, 32, 4096, 4096, 128, key_heads=8, causal=True),
    Long(1, 32, 16384, 16384, 128, causal=True),
    Long(1, 32, 16384, 16384, 64),
)


def module(case: Long) -> tvm.IRModule:
    """Return the Relax module of a case. Its result is <batch, queries, heads, size>."""
    if case.mask is not None:
        sizes = case.batch, case.heads, case.queries, case.keys, case.size
        return workload(Case(*sizes, case.dtype, case.mask, safe=True))
    builder = relax.BlockBuilder()
    length = tvm.tirx.Var("n", "int64") if case.symbolic else None
    queries, keys = (length, length) if length is not None else (case.queries, case.keys)
    shapes = [[case.batch, n, h, case.size] for n, h in ((queries, case.heads), *[(keys, case.groups)] * 2)]
    params = [relax.Var(name, relax.TensorType(s, case.dtype)) for name, s in zip("qkv", shapes)]
    with builder.function("main", params):
        with builder.dataflow():
            result = (_operator if case.groups == case.heads else _grouped)(builder.emit, case, params)
            out = builder.emit_output(result)
        builder.emit_func_output(out)
    return builder.get()


def _operator(emit: Callable[[Any], Any], case: Long, params: list[Any]) -> Any:
    causal = "BottomRight" if case.causal else None
    return R.nn.attention(*params, scale=case.size**-0.5, causal_mask=causal)


def _grouped(emit: Callable[[Any], Any], case: Long, params: list[Any]) -> Any:
    """Return attention whose heads of keys are repeated, with a constant mask, as PyTorch's importer writes it."""
    b, h, g, d, n = case.batch, case.heads, case.groups, case.size, case.keys
    q, k, v = (emit(R.permute_dims(p, [0, 2, 1, 3])) for p in params)
    k, v = (emit(R.broadcast_to(emit(R.expand_dims(x, [2])), [b, g, h // g, n, d])) for x in (k, v))
    k, v = (emit(R.reshape(x, [b, h, n, d])) for x in (k, v))
    scores = emit(R.matmul(q, emit(R.permute_dims(k, [0, 1, 3, 2]))))
    scores = emit(R.multiply(scores, relax.const(d**-0.5, case.dtype)))
    if case.causal:
        hidden = np.arange(n) > np.arange(case.queries)[:, None] + n - case.queries
        mask = np.where(hidden, -np.inf, 0.0).astype("float16")
        scores = emit(R.add(scores, relax.const(mask, case.dtype)))
    return R.permute_dims(emit(R.matmul(emit(R.nn.softmax(scores, -1)), v)), [0, 2, 1, 3])


class Model:
    """A compiled case, and its inputs on the device."""

    def __init__(self, case: Long, target: Any) -> None:
        self.case, recorder = case, Recorder()
        pipeline = tvm_stitch.relax.pipeline(target, None, recorder)
        self.machine = relax.VirtualMachine(
            tvm.compile(module(case), target, relax_pipeline=pipeline), tvm.cuda()
        )
        (self.told,) = (how for name, how in recorder.computed.items() if name.startswith("attention"))
        self.chosen = ""
        self.draw(case)

    def draw(self, case: Long) -> None:
        """Draw inputs for a case, which has other lengths than the compiled one if that is symbolic."""
        self.case, kind = case, getattr(torch, case.dtype)
        shapes = [(case.batch, n, h, case.size) for n, h in _rows(case)] + ([case.mask] if case.mask else [])
        self.given = [torch.randn(shape, device="cuda", dtype=kind) for shape in shapes]
        if case.mask:
            self.given[3].view(-1, case.keys)[-1] = float("-inf")
        self.tensors = [tvm.runtime.from_dlpack(x) for x in self.given]

    def ours(self) -> Any:
        """Return the result of the compiled module."""
        return self.machine["main"](*self.tensors)

    def first(self) -> torch.Tensor:
        """Return the result, and record what computed it, if that was measured now."""
        before = len(_choices())
        result = torch.from_dlpack(self.ours()).clone()
        added = _choices()[before:]
        if "cuDNN" in self.told and added:
            self.chosen = "our kernel" if added[-1].endswith(" 0") else "cuDNN"
        return result

    def theirs(self) -> Callable[[], torch.Tensor]:
        """Return PyTorch's attention of the same inputs, <batch, heads, queries, size>."""
        q, k, v, *mask = self.given
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        case = self.case
        attend = torch.nn.functional.scaled_dot_product_attention
        added: Any = mask[0].expand(case.batch, case.heads, case.queries, case.keys) if mask else None
        is_square = case.queries == case.keys
        if case.causal and not is_square:
            added = _hidden(case, q.device)
        options = {"is_causal": case.causal and is_square, "enable_gqa": case.groups != case.heads}
        return lambda: attend(q, k, v, attn_mask=added, **options)

    def exact(self) -> torch.Tensor:
        """Return the result in float64, head by head."""
        q, k, v, *mask = (x.double() for x in self.given)
        case, shared = self.case, self.case.heads // self.case.groups
        out = torch.empty_like(q)
        for head in range(case.heads):
            scores = q[:, :, head] @ k[:, :, head // shared].transpose(1, 2) * case.size**-0.5
            if mask:
                scores = scores + mask[0].expand(case.batch, case.heads, case.queries, case.keys)[:, head]
            if case.causal:
                scores = scores + _hidden(case, q.device)
            out[:, :, head] = scores.softmax(-1).nan_to_num(0.0) @ v[:, :, head // shared]
        return out


def errors(model: Model) -> tuple[float, float]:
    """Return the relative errors of the compiled module and of PyTorch against float64."""
    exact = model.exact()
    results = model.first(), model.theirs()().transpose(1, 2)
    ours, theirs = (
        float((x.double() - exact).norm() / exact.norm()) for x in (results[0], results[1].nan_to_num(0.0))
    )
    return ours, theirs


def checked(target: Any) -> Iterator[tuple[str, bool]]:
    """Yield a line for each case, and whether its error is at most 1.2 times PyTorch's, or that of rounding."""
    for case in CHECKED:
        model = Model(case, target)
        lengths = (case.queries, 4096, 5000) if case.symbolic else (case.queries,)
        for length in lengths:
            if case.symbolic:
                model.draw(
                    Long(case.batch, case.heads, length, length, case.size, causal=True, symbolic=True)
                )
            ours, theirs = errors(model)
            fine = ours <= max(1.2 * theirs, 5e-4 if case.dtype == "float16" else 4e-3)
            line = f"{str(model.case):62} {ours:.1e} {theirs:.1e} {model.chosen or model.told.split(':')[0]}"
            yield line + ("" if fine else " WRONG"), fine


def timed(target: Any) -> Iterator[str]:
    """Yield a line of times for each case: ours, PyTorch's by each of its ways, their least over ours."""
    for case in TIMED:
        model = Model(case, target)
        model.first()
        contenders: dict[str, Callable[[], Any]] = {"ours": model.ours}
        for name, backend in BACKENDS.items():
            call = _with(backend, model.theirs())
            try:
                call()
            except RuntimeError:
                continue
            contenders[name] = call
        times = microseconds(contenders, BLOCKS, CALLS)
        ours = times.pop("ours")
        others = " ".join(f"{name} {time:.0f}" for name, time in times.items())
        speed = case.operations / ours / 1e6
        yield (
            f"{str(case):44} {ours:8.1f} {speed:4.0f} TFLOP/s {min(times.values()) / ours:5.2f}  "
            f"{model.chosen or 'our kernel'}; {others}"
        )


def _with(backend: Any, call: Callable[[], Any]) -> Callable[[], Any]:
    def chosen() -> Any:
        with sdpa_kernel([backend]):
            return call()

    return chosen


def _rows(case: Long) -> list[tuple[int, int]]:
    return [(case.queries, case.heads), (case.keys, case.groups), (case.keys, case.groups)]


def _hidden(case: Long, device: Any) -> torch.Tensor:
    at = torch.arange(case.queries, device=device)[:, None] + case.keys - case.queries
    hidden = torch.arange(case.keys, device=device) > at
    return torch.zeros(hidden.shape, device=device, dtype=getattr(torch, case.dtype)).masked_fill(
        hidden, float("-inf")
    )


def _choices() -> list[str]:
    """Return the lines of choices that were kept for attention."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tvm_stitch"
    folder = Path(os.environ.get("TVM_STITCH_CACHE_DIR") or default) / "algorithms"
    return [
        line for file in sorted(folder.glob("cudnn-attention-*")) for line in file.read_text().splitlines()
    ]
