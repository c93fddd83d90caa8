# SPDX-License-Identifier: Apache-2.0
"""One sample of PyTorch's operator tests through the importer: exported, imported, compiled and compared.

A child of ``opinfo.py`` runs this file. It reads lines of JSON: operators, type, samples to leave out, samples of each
operator, and samples of one program. The last field is how many of the first samples have programs of their own. It
writes one line before each program and one for each sample, so that its parent knows which samples ended the process.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import tvm  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

import tvm_stitch  # noqa: E402
from tvm_stitch.importers.torch import Unsupported, from_exported_program  # noqa: E402
from tvm_stitch.support.failures import error_text, reraise_fatal  # noqa: E402

OUTCOMES = ("right", "wrong", "refused", "failed", "crashed")
"""Outcomes of a sample that PyTorch exports. A failed one ends in an error that names no operator."""
UNDEFINED = ("empty", "new_empty", "resize_")
"""Beginnings of operators whose results PyTorch leaves open."""
CHOOSING = ("argsort", "kthvalue", "median", "mode", "msort", "nanmedian", "sort", "topk")
"""Operators that may return any of the positions of equal elements."""
RANDOM = "it draws random numbers"
"""The words of a refusal of operators that draw random numbers. Their results cannot be compared."""
TIMES_PYTORCHS = 8.0
"""The greatest difference from float64 of a result that is not close, in times of PyTorch's difference."""
WITHOUT_NUMPY = (torch.bfloat16, torch.complex32)
LIMITS = {
    "float16": (4e-3, 4e-3),
    "float32": (2e-5, 2e-5),
    "float64": (1e-9, 1e-9),
    "complex64": (2e-5, 2e-5),
    "complex128": (1e-9, 1e-9),
}
"""Tolerances by type: relative, and absolute as a share of the largest number of a result."""


@dataclass(frozen=True)
class Sample:
    """A call of an operator: a module of its tensors, and these."""

    module: torch.nn.Module
    tensors: tuple[torch.Tensor, ...]
    choice: bool = False
    """True if positions of equal elements are left open."""


class _Call(torch.nn.Module):
    """A call of an operator with some of its leaves as inputs."""

    def __init__(self, function: Any, leaves: list[Any], spec: Any, at: list[int]):
        super().__init__()
        self.call, self.leaves, self.spec, self.at = function, leaves, spec, at

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        leaves = list(self.leaves)
        for at, tensor in zip(self.at, tensors, strict=True):
            leaves[at] = tensor
        first, args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        results = pytree.tree_leaves(self.call(first, *args, **kwargs))
        return [each for each in results if isinstance(each, torch.Tensor)]


def full_name(op: Any) -> str:
    """Return the operator's name with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def operators() -> dict[str, Any]:
    """Return PyTorch's operator tests by name."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {full_name(op): op for op in op_db}


def samples(op: Any, dtype: torch.dtype) -> Iterator[Sample]:
    """Yield the calls of an operator in a type, with the same numbers each time."""
    torch.manual_seed(0)
    np.random.seed(0)
    for given in op.sample_inputs("cpu", dtype, requires_grad=False):
        leaves, spec = pytree.tree_flatten((given.input, given.args, given.kwargs))
        at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        tensors = tuple(leaves[i].detach().resolve_conj().resolve_neg().clone() for i in at)
        call = _Call(op.op, [None if i in at else x for i, x in enumerate(leaves)], spec, at)
        yield Sample(call, tensors, op.name in CHOOSING)


class _Calls(torch.nn.Module):
    """Several calls, one behind the other."""

    def __init__(self, given: Sequence[Sample]):
        super().__init__()
        self.calls = torch.nn.ModuleList(each.module for each in given)
        self.counts = [len(each.tensors) for each in given]

    def forward(self, *tensors: torch.Tensor) -> list[list[torch.Tensor]]:
        results, at = [], 0
        for call, count in zip(self.calls, self.counts, strict=True):
            results.append(call(*tensors[at : at + count]))
            at += count
        return results


def outcomes(given: Sequence[Sample], target: str = "llvm") -> list[tuple[str, str]]:
    """Return the outcomes of samples with their reasons, on one of the targets of ``EXECUTORS``.

    ``"skipped"`` has no fixed result, or PyTorch exports none.
    """
    reasons = [_not_compared(each) for each in given]
    left = [each for each, reason in zip(given, reasons) if not reason]
    said = iter(_outcomes(left, target) if left else [])
    return [("skipped", reason) if reason else next(said) for reason in reasons]


def _on_cpu(mod: tvm.IRModule, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    vm = tvm.relax.VirtualMachine(tvm_stitch.compile(mod, "llvm"), tvm.cpu())
    return [each.numpy() for each in vm["main"](*map(tvm.runtime.tensor, inputs))]


def _in_emulator(mod: tvm.IRModule, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    from cuda_emulator import default_target, run_cuda

    cuda = default_target()
    done = run_cuda(mod, inputs, target=cuda, relax_pipeline=tvm_stitch.relax.pipeline(cuda)).check()
    return [np.asarray(each) for each in done.outputs]


EXECUTORS = {"llvm": _on_cpu, "cuda": _in_emulator}
"""Functions that run a module on the arrays of its parameters, by target. CUDA kernels run in the emulator."""


def _not_compared(sample: Sample) -> str:
    """Return why the results of a sample are not compared, or nothing."""
    try:
        wanted, again = (sample.module(*map(torch.clone, sample.tensors)) for _ in range(2))
    except Exception as error:  # PyTorch's own, of any kind
        reraise_fatal(error)
        return f"not run: {error_text(error)[:100]}"
    if not wanted:
        return "no tensor"
    if any(x.layout != torch.strided for x in wanted):
        return "sparse tensors"
    if any(x.dtype in WITHOUT_NUMPY for x in wanted):
        return "a type that NumPy does not have"
    return "" if all(map(_equal, wanted, again)) else "random"


def _outcomes(given: Sequence[Sample], target: str) -> list[tuple[str, str]]:
    """Return the outcomes of samples of one program, or of two with the halves of them."""
    try:
        wanted = [each.module(*map(torch.clone, each.tensors)) for each in given]
        program = torch.export.export(_Calls(given), tuple(x for each in given for x in each.tensors))
    except Exception as error:  # PyTorch's own, of any kind
        reraise_fatal(error)
        return _halves(given, target) or [("skipped", f"not exported: {error_text(error)[:100]}")]
    try:
        mod = from_exported_program(program)
    except Exception as error:
        reraise_fatal(error)
        refused = isinstance(error, Unsupported)
        if len(given) == 1 and refused and RANDOM in error_text(error):
            return [("skipped", "random")]
        text = error_text(error) if refused else f"import: {type(error).__name__}: {error_text(error)[:300]}"
        return _halves(given, target) or [("refused" if refused else "failed", text)]
    try:
        inputs = [_real(x).contiguous().numpy() for each in given for x in each.tensors]
        outputs = EXECUTORS[target](mod, inputs)
        results = [y for each in wanted for y in each]
        # Behind the results, the function returns buffers that it has changed.
        outputs = [_as_wanted(x, y) for x, y in zip(outputs[: len(results)], results, strict=True)]
    except Exception as error:
        reraise_fatal(error)
        text = f"compile or run: {type(error).__name__}: {error_text(error)[-300:]}"
        return _halves(given, target) or [("failed", text)]
    said, at = [], 0
    for sample, want in zip(given, wanted):
        own = outputs[at : at + len(want)]
        at += len(want)
        pair = (*_picked(own, want, sample), None) if sample.choice else (own, want, _reference(sample))
        said.append(compared(*pair))
    return said


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a complex tensor as the importer takes it: real, with a last axis of two elements."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _as_wanted(result: np.ndarray, wanted: torch.Tensor) -> np.ndarray:
    """Return a result as complex numbers, if PyTorch's are."""
    return result[..., 0] + 1j * result[..., 1] if wanted.is_complex() else result


def _halves(given: Sequence[Sample], target: str) -> list[tuple[str, str]]:
    middle = len(given) // 2
    if len(given) < 2:
        return []
    return [*_outcomes(given[:middle], target), *_outcomes(given[middle:], target)]


def _picked(
    outputs: list[np.ndarray], wanted: list[torch.Tensor], sample: Sample
) -> tuple[list[np.ndarray], list[torch.Tensor]]:
    """Return results with positions replaced by the elements there, if they are those of one axis.

    Positions of one element twice stay, and so differ from PyTorch's.
    """
    x, results, others = sample.tensors[0], list(outputs), list(wanted)
    for at, (got, want) in enumerate(zip(outputs, wanted)):
        if want.dtype != torch.int64 or got.shape != tuple(want.shape) or np.array_equal(got, want.numpy()):
            continue
        for dim in range(x.dim()):
            here, there = torch.from_numpy(got), want
            if want.dim() == x.dim() - 1:
                here, there = here.unsqueeze(dim), there.unsqueeze(dim)
            try:
                picked = torch.gather(x, dim, here), torch.gather(x, dim, there)
            except RuntimeError:  # positions of another axis
                continue
            twice = here.shape[dim] > 1 and bool((here.sort(dim).values.diff(dim=dim) == 0).any())
            if _equal(*picked) and not twice:
                results[at], others[at] = picked[0].numpy(), picked[1]
                break
    return results, others


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.nan_to_num(), b.nan_to_num())


def _reference(sample: Sample) -> list[torch.Tensor] | None:
    """Return the results in float64, or None if there are none."""
    wide = [
        x.double() if x.is_floating_point() else x.to(torch.complex128) if x.is_complex() else x
        for x in sample.tensors
    ]
    try:
        return list(sample.module(*wide))
    except Exception as error:  # an argument of another type, or no kernel of float64
        reraise_fatal(error)
        return None


def compared(
    outputs: list[np.ndarray], wanted: list[torch.Tensor], wide: list[torch.Tensor] | None
) -> tuple[str, str]:
    """Compare results with PyTorch's, and with float64.

    Args:
        found: results of the compiled program.
        wanted: PyTorch's results: shapes, types and numbers.
        wide: the results in float64, or None.
    """
    if len(outputs) != len(wanted):
        return "wrong", f"{len(outputs)} results instead of {len(wanted)}"
    for at, (got, want) in enumerate(zip(outputs, wanted)):
        expected = want.detach().resolve_conj().resolve_neg().numpy()
        if got.dtype != expected.dtype or got.shape != expected.shape:
            return "wrong", f"{got.dtype}{list(got.shape)} instead of {expected.dtype}{list(expected.shape)}"
        others = [expected]
        if wide is not None and len(wide) == len(wanted) and wide[at].shape == want.shape:
            others.append(wide[at].detach().resolve_conj().resolve_neg().numpy())
        if not any(_close(got, other) for other in others) and not _as_exact(got, others):
            return "wrong", f"{got.ravel()[:4].tolist()} instead of {expected.ravel()[:4].tolist()}"
    return "right", ""


def _as_exact(got: np.ndarray, others: Sequence[np.ndarray]) -> bool:
    """Return whether a result differs from float64's by at most a few times as much as PyTorch's does.

    Sums of large numbers that cancel out are no closer than this.
    """
    if len(others) < 2 or got.dtype.kind not in "fc":
        return False
    expected, exact = map(_widest, others[:2])
    finite = np.isfinite(exact)
    if not np.array_equal(finite, np.isfinite(got)) or not np.array_equal(finite, np.isfinite(expected)):
        return False
    if not finite.any() or not np.array_equal(got[~finite], others[0][~finite], equal_nan=True):
        return False
    error, allowed = (np.abs(x[finite] - exact[finite]).max() for x in (_widest(got), expected))
    return bool(error <= TIMES_PYTORCHS * allowed)


def _widest(numbers: np.ndarray) -> np.ndarray:
    return numbers.astype("complex128" if numbers.dtype.kind == "c" else "float64")


def _close(got: np.ndarray, expected: np.ndarray) -> bool:
    if str(got.dtype) not in LIMITS:
        return bool(np.array_equal(got, expected.astype(got.dtype)))
    relative, share = LIMITS[str(got.dtype)]
    with np.errstate(all="ignore"):
        rounded = expected.astype(got.dtype)
        finite = np.isfinite(rounded)
        scale = float(np.abs(rounded[finite]).max(initial=0.0)) if finite.any() else 0.0
        if not np.array_equal(np.isnan(got), np.isnan(rounded)):
            return False
        same = got == rounded
        error = np.abs(_widest(got) - _widest(expected))
        near = error <= relative * np.abs(_widest(expected)) + share * min(scale, 1.0)
        return bool(np.all(same | near | np.isnan(rounded)))


def main() -> None:
    """Read requests from standard input until it ends."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    tests, target = operators(), next(iter(sys.argv[1:]), "llvm")
    for line in sys.stdin:
        names, dtype, known, count, together, alone = json.loads(line)
        left_out = {(name, at) for name, at in known}
        given = [
            each
            for name in names
            for each in _chosen(tests[name], getattr(torch, dtype), count)
            if each[:2] not in left_out
        ]
        starts = [*range(min(alone, len(given))), *range(alone, len(given), together), len(given)]
        for first, end in pairwise(starts):
            group = given[first:end]
            print(json.dumps(["begin", [[name, at] for name, at, _ in group]]), flush=True)
            calls = [sample for _, _, sample in group if isinstance(sample, Sample)]
            said = iter(outcomes(calls, target) if calls else [])
            for name, at, sample in group:
                outcome = next(said) if isinstance(sample, Sample) else ("skipped", sample)
                print(json.dumps(["end", name, at, *outcome]), flush=True)
        print(json.dumps(["done"]), flush=True)


def _chosen(op: Any, dtype: torch.dtype, count: int) -> list[tuple[str, int, Sample | str]]:
    """Return at most ``count`` samples spread over all, or all if it is 0, with the operator's name and their numbers.

    An operator without samples has a reason in their place.
    """
    name = full_name(op)
    if name.startswith(UNDEFINED):
        return [(name, 0, "its numbers are not defined")]
    try:
        given = list(samples(op, dtype))
    except Exception as error:  # PyTorch's own
        reraise_fatal(error)
        return [(name, 0, f"no samples: {error_text(error)[:100]}")]
    if any(x.layout != torch.strided for sample in given for x in sample.tensors):
        return [(name, 0, "sparse tensors")]
    step = max(1, len(given) // count) if count else 1
    numbers = list(range(0, len(given), step))[: count or None]
    return [(name, at, given[at]) for at in numbers]


if __name__ == "__main__":
    main()
