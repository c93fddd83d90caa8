# SPDX-License-Identifier: Apache-2.0
"""Attention as importers write it, and its float64 results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy the name "bfloat16")
import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R


@dataclass(frozen=True)
class Case:
    """Attention of q <batch, queries, heads, size> and k, v <batch, keys, heads, size>.

    Attributes:
        mask: the shape of the mask, which is added to the scores <batch, heads, queries, keys>. None without a mask.
        mask_dtype: dtype of the mask, or "" for that of the operands.
        safe: a query that sees no key gives 0, as PyTorch's importer writes it.
        flat: the matmuls have one batch axis <batch * heads>, as PyTorch's importer writes them.
    """

    batch: Any
    heads: int
    queries: Any
    keys: Any
    size: int
    dtype: str = "float16"
    mask: tuple[Any, ...] | None = None
    mask_dtype: str = ""
    safe: bool = False
    flat: bool = False

    @property
    def scale(self) -> float:
        """Return the factor of the scores."""
        return float(self.size**-0.5)

    def __str__(self) -> str:
        words = [f"{self.batch}x{self.heads}x{self.queries}x{self.keys}x{self.size} {self.dtype}"]
        words += [f"mask {'x'.join(map(str, self.mask))} {self.mask_dtype}".rstrip()] if self.mask else []
        return ", ".join([*words, *["safe"] * self.safe, *["flat"] * self.flat])


def module(case: Case) -> tvm.IRModule:
    """Build the Relax module. Its result is <batch, queries, heads, size>."""
    builder = relax.BlockBuilder()
    rows, cols = ((case.batch, n, case.heads, case.size) for n in (case.queries, case.keys))
    shapes = {"q": rows, "k": cols, "v": cols}
    params = [relax.Var(name, relax.TensorType(list(s), case.dtype)) for name, s in shapes.items()]
    if case.mask is not None:
        params.append(relax.Var("mask", relax.TensorType(list(case.mask), case.mask_dtype or case.dtype)))
    scores_shape = [case.batch, case.heads, case.queries, case.keys]
    with builder.function("main", params):
        with builder.dataflow():
            emit = builder.emit

            def matrices(value: Any, n: Any, m: Any) -> Any:
                return emit(R.reshape(value, [case.batch * case.heads, n, m])) if case.flat else value

            q, k, v = (emit(R.permute_dims(p, [0, 2, 1, 3])) for p in params[:3])
            k = emit(R.permute_dims(k, [0, 1, 3, 2]))
            sides = matrices(q, case.queries, case.size), matrices(k, case.size, case.keys)
            scores = emit(R.matmul(*sides))
            scores = emit(R.multiply(scores, relax.const(case.scale, case.dtype)))
            scores = emit(R.reshape(scores, scores_shape)) if case.flat else scores
            if case.mask is not None:
                wide = case.mask_dtype or case.dtype
                scores = emit(R.astype(scores, wide)) if wide != case.dtype else scores
                scores = emit(R.add(scores, params[3]))
            scores = emit(R.astype(scores, "float32"))
            weights = emit(R.nn.softmax(scores, -1))
            if case.safe:
                masked = emit(R.equal(scores, relax.const(float("-inf"), "float32")))
                seen = emit(R.astype(emit(R.logical_not(masked)), "int8"))
                seen = emit(R.astype(emit(R.max(seen, [-1], keepdims=True)), "bool"))
                zeros = emit(R.full_like(weights, relax.const(0.0, "float32")))
                weights = emit(R.where(emit(R.logical_not(seen)), zeros, weights))
            weights = emit(R.astype(weights, case.dtype))
            attended = emit(
                R.matmul(matrices(weights, case.queries, case.keys), matrices(v, case.keys, case.size))
            )
            if case.flat:
                attended = emit(R.reshape(attended, [case.batch, case.heads, case.queries, case.size]))
            result = builder.emit_output(R.permute_dims(attended, [0, 2, 1, 3]))
        builder.emit_func_output(result)
    return builder.get()


def inputs(case: Case, rng: np.random.Generator) -> list[np.ndarray]:
    """Draw fresh random inputs. A quarter of a mask's elements is -inf, and a whole row if the case is safe."""
    shapes = [(case.batch, n, case.heads, case.size) for n in (case.queries, case.keys, case.keys)]
    arrays = [rng.standard_normal(shape, dtype=np.float32).astype(case.dtype) for shape in shapes]
    if case.mask is not None:
        mask = rng.standard_normal(case.mask, dtype=np.float32)
        mask[rng.random(case.mask) < 0.25] = -np.inf
        mask[..., 0] = 0.0
        if case.safe and mask.size:
            mask.reshape(-1, mask.shape[-1])[-1] = -np.inf
        arrays.append(mask.astype(case.mask_dtype or case.dtype))
    return arrays


def reference(case: Case, arrays: list[np.ndarray]) -> np.ndarray:
    """Return the result in float64."""
    q, k, v = (array.astype("float64").transpose(0, 2, 1, 3) for array in arrays[:3])
    scores = case.scale * (q @ k.transpose(0, 1, 3, 2))
    scores = scores + arrays[3].astype("float64") if case.mask is not None else scores
    greatest = np.max(scores, -1, keepdims=True, initial=-np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - greatest)
        weights = weights / weights.sum(-1, keepdims=True)
    if case.safe:
        weights[np.isneginf(scores).all(-1)] = 0.0
    return (weights @ v).transpose(0, 2, 1, 3)
