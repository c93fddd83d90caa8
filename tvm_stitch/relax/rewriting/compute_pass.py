# SPDX-License-Identifier: Apache-2.0
"""Base classes of passes that choose the implementation of compute-intensive operators."""

from __future__ import annotations

from copy import copy

import tvm

from ...config import StitchConfig, checked_config
from ...device import device_model
from ...records.decisions import decided
from ...target import resolve_target


class ChoosingPass:
    """A pass that notes in ``computed`` the implementation of each operator, and the reason.

    Each run has its own notes. The module's decisions (``tvm_stitch.records.decisions``) receive them.
    """

    computed: dict[str, str]

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Return the module with the operators that the pass chooses for."""
        raise NotImplementedError

    def decided(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Return the rewritten module, with the notes among its decisions."""
        run = copy(self)
        run.computed = {}
        return decided(run.rewritten(mod), computed=run.computed)


class ComputePass(ChoosingPass):
    """A pass that chooses for a target, with options."""

    def __init__(self, target: tvm.target.Target, config: StitchConfig | None = None):
        self.target, self.config = resolve_target(target), checked_config(config)
        self.device = device_model(self.target, self.config)
