# SPDX-License-Identifier: Apache-2.0
"""One sample of PyTorch's operator tests through the importer: exported, imported, compiled and compared.

A child of ``opinfo.py`` runs this file. It reads lines of JSON: operators, type, samples done, samples of each
operator, and samples of one program. It writes one line before each program and one for each sample, so that its parent
knows which samples ended the process.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
WITHOUT_NUMPY = (torch.bfloat16, torch.complex32)
LIMITS = {"float16": (4e-3, 4e-3), "float32": (2e-5, 2e-5), "float64": (1e-9, 1e-9)}
"""Tolerances by type: relative, and absolute as a share of the largest number of a result."""


@dataclass(frozen=True)
class Sample:
    """A call of an operator: a module of its tensors, and these."""

    module: torch.nn.Module
    tensors: tuple[torch.Tensor, ...]


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
        yield Sample(_Call(op.op, [None if i in at else x for i, x in enumerate(leaves)], spec, at), tensors)


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


def outcomes(given: Sequence[Sample]) -> list[tuple[str, str]]:
    """Return the outcomes of samples with their reasons: of one program with all of them, or of two halves.

    ``"skipped"`` has no fixed result, or PyTorch exports none.
    """
    try:
        wanted = [each.module(*map(torch.clone, each.tensors)) for each in given]
        again = [each.module(*map(torch.clone, each.tensors)) for each in given]
        program = torch.export.export(_Calls(given), tuple(x for each in given for x in each.tensors))
    except Exception as error:  # PyTorch's own, of any kind
        reraise_fatal(error)
        return _halves(given) or [("skipped", f"not exported: {error_text(error)[:100]}")]
    if len(given) == 1:
        if not wanted[0]:
            return [("skipped", "no tensor")]
        if any(x.dtype in WITHOUT_NUMPY for x in wanted[0]):
            return [("skipped", "a type that NumPy does not have")]
        if not all(map(_equal, wanted[0], again[0])):
            return [("skipped", "random")]
    elif any(x.dtype in WITHOUT_NUMPY for results in wanted for x in results):
        return _halves(given)
    try:
        mod = from_exported_program(program)
    except Exception as error:
        reraise_fatal(error)
        refused = isinstance(error, Unsupported)
        text = error_text(error) if refused else f"import: {type(error).__name__}: {error_text(error)[:300]}"
        return _halves(given) or [("refused" if refused else "failed", text)]
    try:
        vm = tvm.relax.VirtualMachine(tvm_stitch.compile(mod, "llvm"), tvm.cpu())
        inputs = [x.contiguous().numpy() for each in given for x in each.tensors]
        found = [each.numpy() for each in vm["main"](*map(tvm.runtime.tensor, inputs))]
    except Exception as error:
        reraise_fatal(error)
        text = f"compile or run: {type(error).__name__}: {error_text(error)[-300:]}"
        return _halves(given) or [("failed", text)]
    said, at = [], 0
    for sample, want, other in zip(given, wanted, again):
        own = found[at : at + len(want)]
        at += len(want)
        random = not all(map(_equal, want, other))
        said.append(("skipped", "random") if random else compared(own, want, _reference(sample)))
    return said


def _halves(given: Sequence[Sample]) -> list[tuple[str, str]]:
    middle = len(given) // 2
    return [*outcomes(given[:middle]), *outcomes(given[middle:])] if len(given) > 1 else []


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.nan_to_num(), b.nan_to_num())


def _reference(sample: Sample) -> list[torch.Tensor] | None:
    """Return the results in float64, or None if there are none."""
    wide = [x.double() if x.is_floating_point() else x for x in sample.tensors]
    try:
        return list(sample.module(*wide))
    except Exception as error:  # an argument of another type, or no kernel of float64
        reraise_fatal(error)
        return None


def compared(
    found: list[np.ndarray], wanted: list[torch.Tensor], wide: list[torch.Tensor] | None
) -> tuple[str, str]:
    """Compare results with PyTorch's, and with float64.

    Args:
        found: results of the compiled program.
        wanted: PyTorch's results: shapes, types and numbers.
        wide: the results in float64, or None.
    """
    if len(found) != len(wanted):
        return "wrong", f"{len(found)} results instead of {len(wanted)}"
    for at, (got, want) in enumerate(zip(found, wanted)):
        expected = want.detach().resolve_conj().resolve_neg().numpy()
        if got.dtype != expected.dtype or got.shape != expected.shape:
            return "wrong", f"{got.dtype}{list(got.shape)} instead of {expected.dtype}{list(expected.shape)}"
        others = [expected]
        if wide is not None and len(wide) == len(wanted) and wide[at].shape == want.shape:
            others.append(wide[at].detach().numpy())
        if not any(_close(got, other) for other in others):
            return "wrong", f"{got.ravel()[:4].tolist()} instead of {expected.ravel()[:4].tolist()}"
    return "right", ""


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
        error = np.abs(got.astype("float64") - expected.astype("float64"))
        near = error <= relative * np.abs(expected.astype("float64")) + share * min(scale, 1.0)
        return bool(np.all(same | near | np.isnan(rounded)))


def main() -> None:
    """Read requests from standard input until it ends."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    known = operators()
    for line in sys.stdin:
        names, dtype, done, count, together = json.loads(line)
        given = [each for name in names for each in _chosen(known[name], getattr(torch, dtype), count)]
        for first in range(done, len(given), together):
            group = given[first : first + together]
            print(json.dumps(["begin", [[name, at] for name, at, _ in group]]), flush=True)
            calls = [sample for _, _, sample in group if isinstance(sample, Sample)]
            said = iter(outcomes(calls) if calls else [])
            for name, at, sample in group:
                end = next(said) if isinstance(sample, Sample) else ("skipped", sample)
                print(json.dumps(["end", name, at, *end]), flush=True)
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
