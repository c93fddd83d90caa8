# SPDX-License-Identifier: Apache-2.0
"""Build a Relax module with stitching, and report the result.

Equal work is done once. Calls of one function share a graph, equal scopes share an estimate, and equal functions
share a plan and a kernel. TVM's passes that do not change stitched kernels are skipped (``lowering/kernels.py``), and
kernels share the checks of their arguments (``lowering/argument_checks.py``).

Some kernels fail only in TVM's lowering, after the pipeline. ``pipeline(target)`` therefore lowers each kernel once
as a test. ``build`` does so only for a module that fails: the test takes half of the compile time on a CPU.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from ..config import StitchConfig, checked_config
from ..context import CompileContext
from ..driver import EMITTED
from ..records.decisions import decided, decisions_of, without_decisions
from ..records.recorder import Recorder
from ..support.failures import error_text
from ..support.interrupts import watched
from ..support.resilient import Reasons, raise_if_of_instruments, resilient
from ..target import resolve_target
from .lowering import kernels as kernel_lowering
from .pipeline import lowered
from .rewriting.checked_module import checked_module

logger = logging.getLogger(__name__)

STEP = "no code can be generated with it"
"""The reason recorded for a scope whose stitch op makes TVM's code generation fail."""


@dataclass(frozen=True)
class Built:
    """A compiled module: TVM's executable, the module that its code was generated from, and the decisions."""

    executable: Any
    lowered: tvm.IRModule
    recorder: Recorder


def build(
    mod: tvm.IRModule,
    target: tvm.target.Target | str = "native",
    config: StitchConfig | None = None,
    **options: Any,
) -> Built:
    """Compile a Relax module with stitching.

    A scope is left to TVM if TVM generates code for the module without it, but not with it. To find such a scope, a
    module that fails is compiled again with each kernel lowered by itself, and then with some of its scopes.

    Args:
        mod: a Relax module.
        target: a TVM target or its string.
        config: stitching options.
        options: passed on to ``tvm.relax.build``.

    Raises:
        TypeError: when ``mod`` is no IRModule, or ``params`` does not map names to tensors.
        StitchError: under ``StitchConfig(strict=True)``, for the first operator or scope that is left to TVM.
    """
    mod, target, config = checked_module(mod), resolve_target(target), checked_config(config)
    _check_params(options.get("params"))
    if target.kind.name in EMITTED:
        options.setdefault("tir_pipeline", kernel_lowering.NAME)
    built_for = kernel_lowering.with_quick_host(target)
    done: list[tvm.IRModule] = []

    def built(excluded: Mapping[str, Reasons], check: bool = True) -> Built:
        done.clear()

        def lower(module: tvm.IRModule) -> tvm.IRModule:
            done[:] = [lowered(decided(module, excluded=excluded), CompileContext(target, config, check))]
            return without_decisions(done[0])

        executable = relax.build(mod, built_for, relax_pipeline=lower, **options)
        recorder = Recorder()
        recorder.note_target(target)
        recorder.take(decisions_of(done[0]))
        return Built(executable, without_decisions(done[0]), recorder)

    with watched():
        try:
            return built({}, check=False)
        except Exception as err:
            if not done:  # the pipeline has already searched for failing scopes
                raise
            raise_if_of_instruments(err, lambda: built({}, check=False))
            logger.warning(
                "TVM generates no code for the module (%s): it is compiled again, in parts, to leave out what fails",
                error_text(err),
            )

        def scopes(_excluded: Mapping[str, Reasons]) -> dict[str, str]:
            return decisions_of(done[0]).names() if done else {}

        return resilient(built, scopes, strict=config.strict, because=STEP)


def _check_params(params: Any) -> None:
    """Raise TypeError for ``params`` that ``relax.build`` does not take. It would fail only after the whole compile."""
    tensors = isinstance(params, Mapping) and all(
        isinstance(name, str) and isinstance(value, tvm.runtime.Tensor) for name, value in params.items()
    )
    if params is not None and not tensors:
        raise TypeError(
            "params must map names to tvm.runtime tensors; to make constants of a function's weights, "
            "use relax.transform.BindParams(function, params)(mod)"
        )
