# SPDX-License-Identifier: Apache-2.0
"""Compile a case with and without stitching, run it on a backend, and return the outcome."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax

from stitch_testing.warned import warned
from tvm_stitch import StitchConfig
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline
from tvm_stitch.target import resolve_target

from .bounded import Rules
from .build import Unbuildable, build
from .case import Case, Inapplicable, pruned
from .data import inputs_of, numpy_dtype
from .judge import share_judged, violations
from .oracle import evaluate, flat_outputs

EXTREMA = ("max", "min", "relu", "clip", "pool")
"""Substrings in the names of functions that compute a maximum or minimum."""
BACKENDS = ("llvm", "emulator", "cuda")
INTERNAL = re.compile(r"^\w*(Error|Exception|Exit|Interrupt)\b")


@dataclass
class Outcome:
    """The outcome of a case.

    kind: "ok", or the failure: "wrong", "error", "report" (of the emulator), "unstitched", "kernels" (more than
    stock), "crash", "hang", "fuzzer" (a fault of the fuzzer). "tvm": TVM without stitching fails alike. "invalid":
    nothing could be compared.
    """

    kind: str
    detail: str = ""
    run: int = -1
    judged: int = 0
    elements: int = 0
    stitched: int = 0
    declined: dict[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return self.kind not in ("ok", "invalid", "tvm")


class Program:
    """A compiled module that is run at several sizes."""

    def __init__(self, mod: tvm.IRModule, backend: str, target: Any, passes: Any) -> None:
        self.backend, self.reports = backend, ""
        self.machine: Any = None
        if backend == "emulator":
            from cuda_emulator import lower

            self.lowered = lower(mod, target, passes)
            return
        executable = relax.build(mod, target, relax_pipeline=passes)
        device = tvm.cuda() if backend == "cuda" else tvm.cpu()
        self.device = device
        self.machine = relax.VirtualMachine(executable, device, memory_cfg="naive")

    def run(self, arrays: Sequence[np.ndarray], dtypes: Sequence[str], seed: int = 0) -> list[np.ndarray]:
        """Return the outputs, with tuples flattened."""
        if self.backend == "emulator":
            from cuda_emulator import Options, run_lowered

            result = run_lowered(self.lowered, list(arrays), seed=seed, options=Options(max_seconds=60))
            self.reports = "; ".join(str(report) for report in result.reports[:3])
            return list(result.outputs)
        tensors = [_tensor(a, d, self.device) for a, d in zip(arrays, dtypes)]
        return list(_flat(self.machine["main"](*tensors)))


def _tensor(array: np.ndarray, dtype: str, device: Any) -> Any:
    if dtype == "bfloat16":
        empty = tvm.runtime.empty(array.shape, "bfloat16", device)
        return empty.copyfrom(array)
    return tvm.runtime.tensor(array, device)


def _flat(result: Any) -> Iterator[np.ndarray]:
    if isinstance(result, tvm.runtime.Tensor):
        array = result.numpy()
        if str(result.dtype) == "bfloat16" and str(array.dtype) != "bfloat16":
            array = array.view(numpy_dtype("bfloat16"))
        yield array
    else:
        for part in result:
            yield from _flat(part)


def target_of(case: Case, backend: str) -> Any:
    """Return the target of a case."""
    if case.target is not None:
        target = tvm.target.Target(dict(case.target) if isinstance(case.target, dict) else case.target)
        return target if backend == "llvm" or target.host else target.with_host(tvm.target.Target("llvm"))
    if backend == "llvm":
        return tvm.target.Target({"kind": "llvm", "opt-level": 1})
    if backend == "emulator":
        return tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
    return resolve_target("cuda")


@dataclass(frozen=True)
class Settings:
    """The checks to make.

    backend: one of BACKENDS. stock: compare numbers of kernels too. only_stock: stitch nothing, to see how TVM alone
    handles a case. nan_max, lenient: see Rules.
    """

    backend: str = "llvm"
    _: KW_ONLY
    stock: bool = False
    only_stock: bool = False
    nan_max: str = "any"
    lenient: bool = False

    @property
    def rules(self) -> Rules:
        """Return the freedoms of the backend's arithmetic."""
        if self.backend == "cuda":
            return Rules(16.0, flush=True, nan_max=self.nan_max, lenient=self.lenient, fast=True)
        return Rules(nan_max=self.nan_max, lenient=self.lenient)


def check(case: Case, settings: Settings) -> Outcome:
    """Build, compile, run and judge a case. If it fails, compare with TVM.

    Raises:
        Unbuildable: when Relax refuses the case.
    """
    if settings.only_stock:
        return _check(case, settings, stock=True)
    outcome = _check(case, settings, stock=False)
    if outcome.kind == "wrong" and _is_only_tvms_nan(case, settings, outcome):
        return replace(outcome, kind="tvm")
    if outcome.kind in ("wrong", "error", "report"):
        stock = _check(case, settings, stock=True)
        if not _fails_alike(stock, outcome):
            return outcome
        if outcome.kind == "error" or "has dtype" in outcome.detail or "has shape" in outcome.detail:
            return Outcome("tvm", outcome.detail, outcome.run, declined=outcome.declined)
        return _blamed(case, settings, outcome, stock)
    if outcome.kind == "ok" and settings.stock:
        return _compare_kernels(case, settings, outcome)
    return outcome


def _fails_alike(stock: Outcome, outcome: Outcome) -> bool:
    """Return whether TVM alone fails as well, and may be at fault for unstitched operators.

    These are more than the declined ones: constants that TVM folds, and operators that it fuses into its own.
    """
    typed = "has dtype" in outcome.detail or "has shape" in outcome.detail
    return stock.kind == "error" or (
        stock.kind == outcome.kind and (not typed or stock.detail == outcome.detail)
    )


def _blamed(case: Case, settings: Settings, outcome: Outcome, stock: Outcome) -> Outcome:
    """Attribute the failure to tvm_stitch if the first step that fails alone is stitched, else to TVM.

    Behind a matmul it is TVM's if TVM gives the same numbers, as in an epilogue that it fused. The same holds if no
    step fails alone: then a step is stitched alone, but TVM fuses it among the others.
    """
    if stock.detail == outcome.detail and any(step.op == "matmul" for step in case.steps):
        return replace(outcome, kind="tvm")
    first = len(case.inputs)
    runs = (case.sizes[outcome.run],)
    for index in range(len(case.steps)):
        alone = pruned(case.but(outputs=(first + index,), sizes=runs, as_tuple=False, inner=None, cuts=()))
        try:
            alone_outcome = _check(alone, settings, stock=False)
        except Unbuildable:
            continue
        if alone_outcome.kind == outcome.kind:
            if not alone_outcome.declined and alone_outcome.stitched:
                return outcome
            detail = f"{case.steps[index].op}: {alone_outcome.detail}"
            return Outcome("tvm", detail, outcome.run, declined=alone_outcome.declined)
    return replace(outcome, kind="tvm") if stock.detail == outcome.detail else outcome


def _is_only_tvms_nan(case: Case, settings: Settings, outcome: Outcome) -> bool:
    """Return whether an extremum left to TVM explains the failure: TVM loses NaN there."""
    left = [name for name in outcome.declined for extremum in EXTREMA if extremum in name]
    if settings.nan_max != "propagate" or not left:
        return False
    return _check(case, replace(settings, nan_max="any"), stock=False).kind == "ok"


def _check(case: Case, settings: Settings, stock: bool) -> Outcome:
    mod = build(case)
    target = target_of(case, settings.backend)
    recorder = Recorder()
    if stock:
        passes = relax.get_default_pipeline(target)
    else:
        passes = pipeline(target, StitchConfig(**case.config), recorder)
    with warned(_short) as warnings:
        try:
            program = Program(mod, settings.backend, target, passes)
        except Exception as error:
            return Outcome("error", f"compiling: {told(error)}", declined=dict(recorder.declined))
    outcome = Outcome("ok", stitched=len(recorder.plans), declined=dict(recorder.declined))
    judged = elements = 0
    for run in range(len(case.sizes)):
        try:
            arrays = inputs_of(case, run)
            expected = flat_outputs(case, evaluate(case, run, arrays, settings.rules))
        except Inapplicable:
            continue
        problem = _run(case, program, arrays, run, expected, settings)
        if problem:
            return Outcome(*problem, run, stitched=outcome.stitched, declined=outcome.declined)
        known, all_ = share_judged(expected)
        judged, elements = judged + known, elements + all_
    outcome.judged, outcome.elements = judged, elements
    lost = [
        f"{name}: {reason}"
        for name, reason in recorder.declined.items()
        if name == "all" or INTERNAL.match(reason)
    ]
    if not stock and (lost or warnings):
        return Outcome("unstitched", _short("; ".join([*lost, *warnings])), declined=outcome.declined)
    return outcome


def _run(
    case: Case, program: Program, arrays: list[np.ndarray], run: int, expected: Any, settings: Settings
) -> tuple[str, str] | None:
    try:
        outputs = program.run(arrays, [p.dtype for p in case.inputs], seed=run)
    except Exception as error:
        if "which the emulator lacks" in str(error):
            return "invalid", told(error)
        return "error", f"running: {told(error)}"
    if program.reports:
        return "report", program.reports
    wrong = violations(outputs, expected, settings.rules)
    return ("wrong", "; ".join(wrong)) if wrong else None


def _compare_kernels(case: Case, settings: Settings, outcome: Outcome) -> Outcome:
    from tvm_stitch.execution.count import count_kernels

    mod = build(case)
    target = target_of(case, settings.backend)
    try:
        stock = count_kernels(mod, target)
    except Exception:  # TVM alone does not compile it
        return outcome
    ours = count_kernels(mod, target, pipeline(target, StitchConfig(**case.config)))
    if case.config:  # options may ask for more kernels
        return outcome
    if ours.total > stock.total or ours.memory_intensive > stock.memory_intensive:
        counts = f"{ours.memory_intensive} memory-intensive of {ours.total} kernels"
        return Outcome(
            "kernels", f"{counts}, stock {stock.memory_intensive} of {stock.total}", declined=outcome.declined
        )
    return outcome


def told(error: BaseException) -> str:
    """Return an error in one line."""
    lines = [line.strip() for line in str(error).replace("\0", "").splitlines() if line.strip()]
    if any(": error" in line for line in lines):  # a compiler's first error line states the cause
        return _short(f"{type(error).__name__}: {next(line for line in lines if ': error' in line)}")
    said = [line for line in lines if re.search(r"\w*Error\b|Check failed", line)] or lines
    return _short(f"{type(error).__name__}: {' | '.join(said[-2:])}")


def _short(text: str) -> str:
    return text if len(text) < 600 else text[:300] + " ... " + text[-290:]
