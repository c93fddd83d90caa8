# SPDX-License-Identifier: Apache-2.0
"""The buffers that hold a graph's tensors while a kernel is emitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .. import compat
from ..compat import Buffer
from ..graph.ir import Tensor


@dataclass(frozen=True)
class Buffers:
    """The buffer of every tensor: its own, or another one that it is ``moved`` to, such as scratch.

    The other buffer may have a wider dtype than the tensor: scratch holds values in the dtype of the computation.
    """

    moved: Mapping[Tensor, Buffer] = field(default_factory=dict)

    def of(self, tensor: Tensor) -> Buffer:
        """Return the buffer that holds the tensor."""
        return self.moved.get(tensor, tensor.buffer)

    def dtype(self, tensor: Tensor) -> str:
        """Return the dtype of the tensor's elements in that buffer."""
        return compat.buffer_dtype(self.moved[tensor]) if tensor in self.moved else tensor.dtype


IN_PLACE = Buffers()
"""Every tensor is in its own buffer."""
