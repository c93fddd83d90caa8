# SPDX-License-Identifier: Apache-2.0
"""CompileContext: what the passes of one pipeline have in common."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .config import StitchConfig
from .device import DeviceModel, device_model


@dataclass(frozen=True)
class CompileContext:
    """The target and the options of one compile.

    Attributes:
        target: a TVM target.
        config: stitching options.
        check: whether each kernel is lowered once, so that a kernel on which TVM's lowering fails is left to TVM.
    """

    target: Any
    config: StitchConfig = StitchConfig()
    check: bool = True

    @cached_property
    def device(self) -> DeviceModel:
        """The model of the target's device."""
        return device_model(self.target, self.config)

    @property
    def kind(self) -> str:
        """The kind of the target, such as ``"cuda"``."""
        return str(self.target.kind.name)

    @property
    def is_gpu(self) -> bool:
        """True if the target is a GPU."""
        return "gpu" in self.target.keys

    def leaves(self, kind: str) -> bool:
        """Return True if the options leave a kind of compute-intensive operator, such as ``"matmul"``, to TVM."""
        return kind in self.config.of_tvm
