# SPDX-License-Identifier: Apache-2.0
"""The arguments, results and bodies of workloads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy the name "bfloat16")
import numpy as np

Body = Callable[..., Sequence[Any]]
"""Takes a table of operators, under the names of ``tvm.relax.op``, and the arguments. Returns the results."""


@dataclass(frozen=True)
class Spec:
    """Shape and dtype of one argument or result."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize
