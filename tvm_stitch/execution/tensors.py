# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs of a model as data, and random inputs for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from .. import compat
from ..graph.extent import as_plain_text

Dim = int | str


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a model: name, shape and dtype.

    A symbolic dimension is its name, an expression such as ``2 * n``, or ``?``.
    """

    name: str
    shape: tuple[Dim, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of corresponding NumPy arrays."""
        import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 from here on

        return np.dtype(self.dtype)

    @property
    def is_static(self) -> bool:
        """True if every dimension is a number."""
        return all(isinstance(d, int) for d in self.shape)

    @property
    def shape_option(self) -> str:
        """The command line's option for a shape of this input, with N for each symbolic dimension."""
        return f"--shape {self.name}={','.join(str(d) if isinstance(d, int) else 'N' for d in self.shape)}"

    def takes(self, shape: Sequence[int]) -> bool:
        """Return whether a shape fits. A symbol fits any size, and ``2 * n`` an even one."""
        return len(shape) == len(self.shape) and all(
            symbol_and_value(d, n) is not None if isinstance(d, str) else d == n
            for d, n in zip(self.shape, shape)
        )


def symbol_and_value(dim: str, size: int) -> tuple[str, int] | None:
    """Return the symbol of a dimension such as ``2 * n + 1`` and its value for a size, or None if no value gives it.

    A dimension that is not linear in one symbol counts as a symbol.
    """
    parts = _LINEAR.fullmatch(dim)
    if parts is None:
        return dim, size
    factor = int(parts["before"] or 1) * int(parts["behind"] or 1)
    added = int(parts["front"] or 0) + int((parts["added"] or "0").replace(" ", ""))
    value, rest = divmod(size - added, factor)
    return None if rest or value < 0 else (parts["symbol"], value)


_LINEAR = re.compile(
    r"(?:(?P<front>\d+) \+ )?(?:(?P<before>[1-9]\d*) \* )?(?P<symbol>[A-Za-z_]\w*)"
    r"(?: \* (?P<behind>[1-9]\d*))?(?: (?P<added>[+-] \d+))?"
)


def specs_of_inputs(
    mod: tvm.IRModule, names: Sequence[str] | None = None, entry: str = "main"
) -> tuple[TensorSpec, ...]:
    """Return the parameters of a Relax module's function, in order, under the given names or their own."""
    params = mod[entry].params
    return tuple(_spec(n, p.ty) for n, p in zip(names or [p.name for p in params], params))


def specs_of_outputs(mod: tvm.IRModule, names: Sequence[str]) -> tuple[TensorSpec, ...]:
    """Return the results of a Relax module's ``main``, in order, with their inferred shapes.

    A function's type has no expressions of symbols that are no extents themselves, such as ``n`` of an input ``2 * n``.
    The value that it returns has them.
    """
    main = mod["main"]
    declared, returned = _fields(main.ret_ty), _fields(main.body.ty)
    if isinstance(main.body, relax.SeqExpr):
        returned = _fields(main.body.body.ty)
    chosen = [
        _simple(inner) if _without_shape(outer) else outer
        for outer, inner in zip(declared, returned, strict=True)
    ]
    return tuple(map(_spec, names, chosen))


def _fields(info: Any) -> list[Any]:
    return list(info.fields) if isinstance(info, relax.TupleType) else [info]


def _simple(info: Any) -> Any:
    """Return a tensor's type with simple extents: ``n * 4`` for ``2 * n * 2``."""
    if not isinstance(info, relax.TensorType) or not isinstance(info.shape, relax.ShapeExpr):
        return info
    analyzer = compat.Analyzer()
    return relax.TensorType([analyzer.simplify(dim) for dim in info.shape], info.dtype)


def _without_shape(info: Any) -> bool:
    return isinstance(info, relax.TensorType) and not isinstance(info.shape, relax.ShapeExpr)


def _spec(name: str, info: Any) -> TensorSpec:
    if not isinstance(info, relax.TensorType):
        return TensorSpec(name, ("?",), "sequence")
    shape = info.shape if isinstance(info.shape, relax.ShapeExpr) else ["?"] * max(info.ndim, 0)
    return TensorSpec(name, tuple(map(_size, shape)), str(info.dtype))


def _size(dim: Any) -> Dim:
    size = None if isinstance(dim, str) else compat.int_value(dim)
    return as_plain_text(str(dim)) if size is None else size


class SymbolicShape(ValueError):
    """No inputs can be made, because an input has a symbolic dimension."""

    def __init__(self, spec: TensorSpec):
        super().__init__(f"the input {spec} has a symbolic dimension; a shape must be given for it")
        self.spec = spec


def make_inputs(specs: Sequence[TensorSpec], seed: int = 0) -> dict[str, np.ndarray]:
    """Return seeded random inputs: standard normal floats, and 0 or 1 for other types (valid as tokens, indices and
    masks).

    Raises:
        SymbolicShape: if a dimension is symbolic.
    """
    rng = np.random.default_rng(seed)
    inputs = {}
    for spec in specs:
        if not all(isinstance(d, int) for d in spec.shape):
            raise SymbolicShape(spec)
        shape = tuple(int(d) for d in spec.shape)
        if spec.dtype.startswith(("float", "bfloat")):
            inputs[spec.name] = rng.standard_normal(shape).astype(spec.numpy_dtype)
        else:
            inputs[spec.name] = rng.integers(0, 2, size=shape).astype(spec.numpy_dtype)
    return inputs
