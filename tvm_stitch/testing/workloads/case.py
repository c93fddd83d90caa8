# SPDX-License-Identifier: Apache-2.0
"""A workload: the module, its arguments and results, and the draws of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import ml_dtypes  # noqa: F401  (gives NumPy the name "bfloat16")
import numpy as np
import tvm

from .specs import Body, Spec

#: Largest allowed |actual - reference|: (relative, absolute), by dtype of the output.
DEFAULT_TOLERANCE: Mapping[str, tuple[float, float]] = {
    "float32": (2e-5, 2e-5),
    "float16": (4e-3, 4e-3),
    "bfloat16": (3e-2, 3e-2),
    "int8": (0.0, 1.0),  # a rounding decided the other way
}


Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


@dataclass(frozen=True)
class Case:
    """A workload: a Relax module whose ``main`` takes ``arguments`` and returns ``results``.

    Attributes
    ----------
    build : makes the module, high-level operators only (nothing legalized).
    inputs : draws fresh random inputs, one array per argument. The dtype of bfloat16 arrays comes from ml_dtypes.
    kernels : the most launches of memory-intensive kernels that a stitched call may need.
    stock_kernels : the launches of TVM's default pipeline on llvm, or None if not recorded.
    tolerance : dtype of an output -> (relative, absolute) error allowed against the float64 reference.
    matmuls : launches of compute-intensive kernels, which ``kernels`` does not count.
    constant_bytes : bytes of weights bound into the module.
    sizes : the extents of the case, by name.
    body : the module's computation, for a front end to build. It is None if an importer makes the module.
    """

    name: str
    build: Callable[[], tvm.IRModule]
    inputs: Callable[[np.random.Generator], list[np.ndarray]]
    kernels: int
    stock_kernels: int | None
    tolerance: Mapping[str, tuple[float, float]]
    arguments: tuple[Spec, ...]
    results: tuple[Spec, ...]
    matmuls: int = 0
    constant_bytes: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)
    body: Body | None = None

    def bytes_least(self) -> int:
        """Count the bytes that any implementation must move: each input read once, each output written once."""
        return self.constant_bytes + sum(spec.nbytes for spec in (*self.arguments, *self.results))


def draw_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def draw_positive(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.random(shape, dtype=np.float32) * np.float32(1.5) + np.float32(0.5)


def draw_mask(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw 0 for positions that may be attended to, always the first one, and -10000 for others."""
    mask = np.where(rng.random(shape) < 0.25, np.float32(-1e4), np.float32(0.0))
    mask[..., 0] = 0.0
    return mask


def draw_dropout(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.where(rng.random(shape, dtype=np.float32) < 0.1, np.float32(0.0), np.float32(1 / 0.9))


def case_of(
    name: str,
    arguments: Sequence[tuple[Spec, Draw]],
    results: Sequence[Spec],
    body: Body,
    *,
    stock_kernels: int | None = None,
    symbolic: str | None = None,
    tolerance: Mapping[str, tuple[float, float]] | None = None,
    sizes: Mapping[str, int],
) -> Case:
    """Assemble a case. With ``symbolic``, the leading extent ``sizes[symbolic]`` becomes a variable."""
    specs = tuple(spec for spec, _ in arguments)

    def build() -> tvm.IRModule:
        from . import relax_workload  # needs Relax of Apache TVM 0.27, but bodies are for Relay as well

        return relax_workload.build(specs, body, symbolic, sizes)

    def inputs(rng: np.random.Generator) -> list[np.ndarray]:
        return [draw(rng, spec.shape).astype(np.dtype(spec.dtype)) for spec, draw in arguments]

    return Case(
        name=name,
        build=build,
        inputs=inputs,
        kernels=1,
        stock_kernels=stock_kernels,
        tolerance={**DEFAULT_TOLERANCE, **(tolerance or {})},
        arguments=specs,
        results=tuple(results),
        sizes=dict(sizes),
        body=body,
    )


def place_of(scale: str, scales: Sequence[str]) -> int:
    """Return the index of ``scale`` in ``scales``. Raise ValueError if it is none of them."""
    if scale not in scales:
        *others, last = map(repr, scales)
        raise ValueError(f"unknown scale {scale!r}: choose {', '.join(others)} or {last}")
    return scales.index(scale)
