# SPDX-License-Identifier: Apache-2.0
"""Where a graph's tensors are while a kernel is emitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .. import compat
from ..compat import Buffer
from ..graph.ir import Tensor


@dataclass(frozen=True)
class Buffers:
    """The buffer of every tensor: its own, or another one that it is ``moved`` to, such as scratch.

    Memory that a tensor is moved to may be wider than its elements: scratch holds values as they are computed.
    """

    moved: Mapping[Tensor, Buffer] = field(default_factory=dict)

    def of(self, tensor: Tensor) -> Buffer:
        """The buffer that holds the tensor."""
        return self.moved.get(tensor, tensor.buffer)

    def dtype(self, tensor: Tensor) -> str:
        """The type of its elements there."""
        return compat.buffer_dtype(self.moved[tensor]) if tensor in self.moved else tensor.dtype


IN_PLACE = Buffers()
"""Every tensor is in its own buffer."""
