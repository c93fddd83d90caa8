# SPDX-License-Identifier: Apache-2.0
"""The parts of a report that take longer: the kernels of TVM's own pipeline, and the sources of kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import tvm
from tvm import relax, tirx

from ...device import DeviceModel, device_model
from ...execution.count import count_lowered, is_compute_intensive
from ...repairs.legalize.take import LegalizeTakes
from ...report.data import Code, Kind, ModelReport, StockCall, Totals, add_sizes
from ...support.failures import reraise_fatal
from ...support.interrupts import watched
from ...support.one_at_a_time import exclusively
from ..backend import backend_of
from ..pipeline import default_schedules
from ..rewriting.functions import entries_of
from ..rewriting.marked_names import unmarked
from .kernel_calls import Call, kernel_calls
from .model import estimated


def completed(
    report: ModelReport, mod: tvm.IRModule, lowered: tvm.IRModule, target: tvm.target.Target
) -> ModelReport:
    """Return the report with TVM's own kernels for comparison, and with the sources of the kernels.

    Args:
        report: the report after the planning passes.
        mod: the module as the user passed it.
        lowered: the module after the planning passes.
        target: the target of both.
    """
    with target, watched():
        stock, stock_kernels = _stock(mod, target)
        launches = _launches(lowered, target)
        stitched = report.stitched
        if launches is not None:
            stitched = dataclasses.replace(stitched, kernels=launches[0], compute=launches[1])
        codes = _codes(lowered, [k.function for k in report.kernels], target)
    return dataclasses.replace(
        report, stock=stock, stock_kernels=stock_kernels, stitched=stitched, codes=codes
    )


def _stock(mod: tvm.IRModule, target: tvm.target.Target) -> tuple[Totals | None, tuple[StockCall, ...]]:
    """Return the launches and bytes of TVM's own pipeline, or None if it does not compile the model."""
    backend = backend_of(target)
    passes = [
        LegalizeTakes(),
        *backend.library_dispatch_passes(target),
        *backend.legalize_passes(target),
        relax.transform.RewriteDataflowReshape(),  # TVM's next step lowers lone reshapes to views
    ]
    try:
        lowered = exclusively(passes, "StockPipeline")(mod)
        total, own = _counted(lowered, target)
    except Exception as err:  # any failure of TVM
        reraise_fatal(err)
        return None, ()
    functions = {str(g.name_hint): f for g, f in lowered.functions_items()}
    device = device_model(target)
    calls = tuple(
        _stock_call(call, functions.get(call.function), device) for call in kernel_calls(lowered).calls
    )
    compute = [call.bytes for call in calls if call.kind != "tvm"]
    return Totals(total, own, add_sizes(*(call.bytes for call in calls)), add_sizes(*compute)), calls


def _stock_call(call: Call, func: relax.Function, device: DeviceModel) -> StockCall:
    size = add_sizes(*(v.bytes for v in [*call.operands, *call.results]))
    kind: Kind = "library" if call.external else "tvm"
    if isinstance(func, tirx.PrimFunc) and is_compute_intensive(func, call.function):
        kind = "compute"
    return StockCall(call.function, kind, size, estimated(size, device))


def _launches(lowered: tvm.IRModule, target: tvm.target.Target) -> tuple[int, int] | None:
    """Return how many kernels a call of the stitched module launches, and how many of them are compute-intensive."""
    try:
        scheduled = tvm.transform.Sequential(default_schedules(target))(lowered)
        return _counted(scheduled, target)
    except Exception as err:  # symbolic launches, or a kernel that TVM does not lower
        reraise_fatal(err)
        return None


def _counted(mod: tvm.IRModule, target: tvm.target.Target) -> tuple[int, int]:
    """Return how many kernels one call of each function launches, and how many are compute-intensive or a library's."""
    counts = [count_lowered(mod, target, entry=entry) for entry in entries_of(mod)]
    return sum(c.total for c in counts), sum(c.compute_intensive + c.external for c in counts)


def _codes(lowered: tvm.IRModule, names: Iterable[str], target: tvm.target.Target) -> dict[str, Code]:
    """Return the sources of kernels: CUDA C of scheduled kernels for CUDA, else TIR."""
    functions = {str(g.name_hint): f for g, f in lowered.functions_items()}
    codes = {}
    for name in dict.fromkeys(names):
        func = functions.get(name)
        if isinstance(func, tirx.PrimFunc):
            codes[name] = _cuda(name, func, target) or Code("TIR", unmarked(func.script()))
    return codes


def _cuda(name: str, func: tirx.PrimFunc, target: tvm.target.Target) -> Code | None:
    """Return a kernel in CUDA C, or None if it is not for CUDA, is not scheduled, or does not compile."""
    if target.kind.name != "cuda" or not (func.attrs and func.attrs.get("tirx.is_scheduled")):
        return None
    try:
        built = tvm.compile(tvm.IRModule({name: func.with_attr("global_symbol", name)}), target=target)
        module = getattr(built, "mod", built)
        return Code("CUDA C", unmarked(str(module.imports[0].inspect_source())))
    except Exception as err:
        reraise_fatal(err)
        return None
