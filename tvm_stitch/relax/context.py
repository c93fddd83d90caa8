# SPDX-License-Identifier: Apache-2.0
"""CompileContext: what the passes of one pipeline have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..config import StitchConfig
from ..device import DeviceModel, device_model
from ..driver import Attempt, Scopes
from ..records.recorder import Recorder


@dataclass(frozen=True)
class CompileContext:
    """The target and the options of one compile.

    Attributes:
        target: a TVM target.
        config: stitching options.
        check: whether each kernel is lowered once, so that a kernel on which TVM's lowering fails is left to TVM.
        recorder: receives plans, refusals and boundaries.
        scopes: those to leave to TVM; receives those that are outlined.
        attempt: the inputs and results of one stitching attempt.
        known: scopes that were found in the blocks of a module, for further attempts on the same module.
    """

    target: Any
    config: StitchConfig = StitchConfig()
    check: bool = True
    recorder: Recorder = field(default_factory=Recorder)
    scopes: Scopes = field(default_factory=Scopes)
    attempt: Attempt = field(default_factory=Attempt)
    known: dict[Any, Any] = field(default_factory=dict)

    @cached_property
    def device(self) -> DeviceModel:
        """The model of the target's device, with the constants of choice."""
        return device_model(self.target, self.config)

    @property
    def computed(self) -> dict[str, str]:
        """Receives what computes each compute-intensive operator."""
        return self.recorder.computed

    @property
    def kind(self) -> str:
        """The kind of the target, such as ``"cuda"``."""
        return str(self.target.kind.name)

    @property
    def is_gpu(self) -> bool:
        """Whether the target is a GPU."""
        return "gpu" in self.target.keys

    def leaves(self, kind: str) -> bool:
        """Whether the options leave a kind of compute-intensive operator, such as ``"matmul"``, to TVM."""
        return kind in self.config.of_tvm
