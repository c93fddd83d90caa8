# SPDX-License-Identifier: Apache-2.0
"""The interface between the generator of random graphs and a front end, so that one generator serves all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from ..reference.bounds import Bound, Bounds


class Made(NamedTuple):
    """A typed call of an operator that is not part of the graph yet."""

    call: Any
    name: str
    shape: tuple[int, ...]
    dtype: str


class FrontEnd(ABC):
    """A graph under construction.

    ``ops`` constructs calls under the names and with the parameters of ``tvm.relax.op`` (``permute_dims``,
    ``concat``, ``astype``, ...). The graph itself may hold other operators.
    """

    dtypes: Mapping[str, float]
    """Dtypes of graphs with the probability of each. The probabilities add up to 1."""
    ops: Any

    def __init__(self) -> None:
        self.values = Bounds(half_arithmetic=True)
        self.mod: Any = None

    @property
    def floats(self) -> tuple[str, ...]:
        """Return the float dtypes of :attr:`dtypes`."""
        return tuple(dtype for dtype in self.dtypes if "float" in dtype)

    @abstractmethod
    def function(self, arguments: Sequence[tuple[tuple[int, ...], str]]) -> AbstractContextManager[list[Any]]:
        """Open the scope in which ``main`` grows, and return its parameters, one for every (shape, dtype)."""

    @abstractmethod
    def finish(self, results: Sequence[Any]) -> None:
        """Set the function's results, as the last step in :meth:`function`'s scope. ``mod`` is then the module."""

    @abstractmethod
    def const(self, value: Any, dtype: str) -> Any:
        """Make a constant, a scalar for a number."""

    @abstractmethod
    def inspect(self, expr: Any) -> Made:
        """Type a call of one operator on parameters, bound values and constants."""

    @abstractmethod
    def evaluate(self, call: Any) -> Bound:
        """Evaluate a typed call on the sample."""

    @abstractmethod
    def bind(self, call: Any, bound: Bound) -> Any:
        """Make a typed call part of the graph, and return the operand for further calls."""

    @abstractmethod
    def set_value(self, var: Any, bound: Bound) -> None:
        """Set a parameter's value on the sample."""

    def sample(self, var: Any, array: np.ndarray) -> Bound:
        """Take ``array`` as a parameter's value."""
        bound = self.values.wrap(array, str(array.dtype))
        self.set_value(var, bound)
        return bound
