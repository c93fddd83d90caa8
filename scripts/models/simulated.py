# SPDX-License-Identifier: Apache-2.0
"""A half model as a GPU computes it, simulated on a CPU: this package's build, and PyTorch's operators.

This package's build has the passes of a CUDA target up to the merged stitch ops. So it has the libraries' calls and
the scopes of that target. The stitch ops are then scheduled for a CPU. On both targets a kernel computes in float32,
and rounds where it stores. Sums are added in another order, which half types do not show. Attention is written out as
products and a softmax.

PyTorch's operators compute in float32 and round their results, each operator its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import tvm
from tvm import relax

from tvm_stitch.config import StitchConfig, checked_config
from tvm_stitch.context import CompileContext
from tvm_stitch.records.decisions import decisions_of, without_decisions
from tvm_stitch.relax.pass_table import LINKING, LOWERED, REMAINDER, STITCHING
from tvm_stitch.relax.phases import Phase, passes_of
from tvm_stitch.target import resolve_target

from .half_libraries import pretended

TARGET = "nvidia/nvidia-h100"
LEFT_OUT = {"FusedAttention", "DepthwiseConvolutions", "ConvolutionEpilogues", "EmbedLibraries"}
"""Passes whose results only a GPU runs."""


class SimulatedBuild:
    """The build of a Relax module for a CUDA device, run on a CPU.

    Attributes:
        declined: the stitch ops that have no kernel on the CPU, with the reasons. TVM computes them there, and rounds
            the result of each operator.
    """

    def __init__(self, mod: tvm.IRModule, config: StitchConfig | None = None):
        config = checked_config(config)
        gpu = CompileContext(tvm.target.Target(TARGET, host="llvm"), config)
        cpu = CompileContext(resolve_target("native"), config, check=False)
        first = LOWERED.index(STITCHING)
        until = [row.name for row in STITCHING.rows].index("ScheduleStitchOps")
        with pretended(), gpu.target:
            mod = self._run(mod, gpu, (*LOWERED[:first], _rows(STITCHING, slice(until))))
        with cpu.target:
            later = LOWERED[LOWERED.index(REMAINDER) :]
            mod = self._run(mod, cpu, (_rows(STITCHING, slice(until, None)), *later, LINKING))
        self.declined = dict(decisions_of(mod).declined)
        mod = without_decisions(mod)
        executable = tvm.compile(mod, cpu.target, relax_pipeline=tvm.transform.Sequential([]))
        self.main = relax.VirtualMachine(executable, tvm.cpu())["main"]

    def _run(self, mod: tvm.IRModule, context: CompileContext, phases: Sequence[Phase]) -> tvm.IRModule:
        kept = [_without(phase) for phase in phases]
        return tvm.transform.Sequential(passes_of(kept, context))(mod)

    def __call__(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the results for inputs of the model's types."""
        result = self.main(*(tvm.runtime.tensor(x) for x in inputs))
        results = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        return [np.asarray(each.numpy(), "float32") for each in results]


def _rows(phase: Phase, which: slice) -> Phase:
    return Phase(phase.name, phase.what, phase.rows[which])


def _without(phase: Phase) -> Phase:
    rows = tuple(row for row in phase.rows if row.name not in LEFT_OUT)
    return Phase(phase.name, phase.what, rows, None)


class RoundedOperators(torch.fx.Interpreter):
    """Runs an exported program in float32, and rounds the results of each operator to a half type.

    A convolution's bias is another operator there: cuDNN's result is rounded before PyTorch adds it.
    """

    def __init__(self, module: Any, dtype: torch.dtype):
        super().__init__(module)
        self.dtype = dtype

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call an operator, and round its floating-point results."""
        name = str(target)
        if name.startswith("aten.conv") and len(args) > 2 and args[2] is not None:
            result = self._rounded(super().call_function(target, (*args[:2], None, *args[3:]), kwargs))
            shape = [1, -1] + [1] * (result.dim() - 2)
            return self._rounded(result + args[2].reshape(shape))
        return torch.utils._pytree.tree_map(self._rounded, super().call_function(target, args, kwargs))

    def _rounded(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.to(self.dtype).to(value.dtype)
        return value
