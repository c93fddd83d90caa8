# SPDX-License-Identifier: Apache-2.0
"""Report on a compiled model. The model is imported again for it, so that its weights are not kept twice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tvm

from ..compute.cpu.launch import launcher
from ..config import StitchConfig
from ..records.recorder import Recorder
from ..relax.report.explain import explain
from ..relax.report.source_operators import source_operators
from ..support.failures import error_text, reraise_fatal
from .sources import source_of

if TYPE_CHECKING:
    from ..report.report import Report

logger = logging.getLogger(__name__)


def reporting(
    model: Callable[[], Any],
    given: Mapping[str, Any],
    mod: tvm.IRModule,
    recorder: Recorder,
    target: tvm.target.Target,
    config: StitchConfig,
) -> Callable[[], Report]:
    """Return a function that makes the report of a compiled model.

    The report has a graph of the model, as :func:`tvm_stitch.explain` makes it, if the model is still there and the
    same: if it gives the same operators, and these the same kernels. Otherwise the report has what the compilation
    noted, and a warning says so if the model is still there.

    Args:
        model: returns the model, or None if it is gone.
        given: the arguments of ``source_of``.
        mod: the Relax module that was compiled. It is not kept.
        recorder: the decisions of the compilation.
        target: the target.
        config: the options.
    """
    operators, noted = _operators(mod), recorder.report()
    noted.threads = launcher.used(target, config)

    def report() -> Report:
        again = model()
        if again is None:
            return noted
        try:
            now = source_of(again, **given).mod
            made = explain(now, target, config) if _operators(now) == operators else None
        except Exception as error:
            reraise_fatal(error)
            logger.warning("the model was changed after it was compiled (%s): no graph", error_text(error))
            return noted
        if made is None or _decisions(made) != _decisions(noted):
            logger.warning("the model was changed after it was compiled: the report has no graph of it")
            return noted
        return made

    return report


def _operators(mod: tvm.IRModule) -> list[tuple[str, ...]]:
    """Return the operators of a module, with the shapes and dtypes of their results."""
    return [(each.function, each.operator, each.shape, each.dtype) for each in source_operators(mod)[0]]


def _decisions(report: Report) -> tuple[Any, ...]:
    """Return the kernels of a report without the names of values.

    Names in a report of ``explain`` may have other numbers, because it marks the variables.
    """
    kernels = [
        (
            (k.name, k.rows, k.shared_bytes, k.bytes_read, k.bytes_written, k.launch, k.seconds),
            [(op["class"], op["scheme"]) for op in k.operators],
            [each["columns"] for each in k.passes],
        )
        for k in report.kernels
    ]
    return kernels, len(report.left), len(report.boundaries), sorted(report.computed.values())
