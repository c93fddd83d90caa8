# SPDX-License-Identifier: Apache-2.0
"""Base classes of passes that choose the implementation of compute-intensive operators."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import TypeAlias

import tvm
from tvm import relax

from ...config import StitchConfig, checked_config
from ...device import device_model
from ...records.decisions import decided, decisions_of, fresh
from ...target import resolve_target

Implementations: TypeAlias = dict[str | tuple[str, relax.Var], str]
"""Implementations with reasons, by the operator's kind and the variable of its result, or by a name in words."""


class ChoosingPass:
    """A pass that notes in ``computed`` the implementation of each operator, and the reason.

    Each run has its own notes. The module's decisions (``tvm_stitch.records.decisions``) receive them under the names
    of variables, with a number if an operator of another variable has the name already.
    """

    computed: Implementations

    def rewritten(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Return the module with the operators that the pass chooses for."""
        raise NotImplementedError

    def decided(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Return the rewritten module, with the notes among its decisions."""
        run = copy(self)
        run.computed = {}
        rewritten = run.rewritten(mod)
        return decided(rewritten, computed=_by_name(run.computed, decisions_of(rewritten).computed))


def _by_name(computed: Implementations, known: Mapping[str, str]) -> dict[str, str]:
    """Return implementations by names that others of the same pass, and of earlier ones, do not have.

    An operator that an earlier pass has left to TVM is the same one: the last pass that decides about it counts.
    """
    taken = {name for name, how in known.items() if not how.startswith("TVM: ")}
    named: dict[str, str] = {}
    for key, how in computed.items():
        if isinstance(key, str):
            named[key] = how
        else:
            kind, var = key
            named[fresh(f"{kind} {var.name}".strip(), taken.union(named))] = how
    return named


class ComputePass(ChoosingPass):
    """A pass that chooses for a target, with options."""

    def __init__(self, target: tvm.target.Target, config: StitchConfig | None = None):
        self.target, self.config = resolve_target(target), checked_config(config)
        self.device = device_model(self.target, self.config)
