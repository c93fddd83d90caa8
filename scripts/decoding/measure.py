# SPDX-License-Identifier: Apache-2.0
"""Kernels of a step, and its error relative to PyTorch's in float64, next to PyTorch's own error."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import tvm
from cached_step import STATE, CachedStep
from families.spec import VOCABULARY
from torch import nn
from torch.overrides import TorchFunctionMode
from tvm import relax

import tvm_stitch
from tvm_stitch.execution.count import count_kernels
from tvm_stitch.importers.torch import from_exported_program
from tvm_stitch.support.failures import reraise_fatal

from .cases import ENCODED, Decoder

CPU = tvm.target.Target("llvm")
GPU = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
TARGETS = {"llvm": CPU, "CUDA": GPU}
LENGTH, PAST = 40, 21
"""Tokens that the caches hold, and tokens that are in them before the step."""
OTHER_LENGTH = 56
"""The second length of caches of a symbolic length."""
SCORES = 1
"""The position of the scores among the results that are compared."""
DRAWS = 32
"""Random inputs of which errors are averaged."""


Squares = tuple[float, float, float]
"""Sums of squares: of the compiled function's errors, of PyTorch's errors, and of PyTorch's result in float64."""


@dataclass(frozen=True)
class Row:
    """The step of a decoder: kernels by target, stitched and stock, and errors.

    Stock kernels are None if TVM's own pipeline fails.
    Errors are norms of the difference to PyTorch's scores in float64, relative to the norm of these scores.
    ``symbolic`` says whether caches have a symbolic length.
    """

    name: str
    dtype: str
    tokens: int
    symbolic: bool
    kernels: dict[str, tuple[int, int | None]]
    error: float
    torch_error: float

    @property
    def ratio(self) -> float:
        """Return the error relative to PyTorch's own."""
        return self.error / self.torch_error


class Wide(TorchFunctionMode):
    """Let models that compute parts in float32, such as norms and angles, compute them in float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch with float64 in place of float32."""
        if func is torch.Tensor.float:
            func = torch.Tensor.double

        def widened(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        named = {name: widened(value) for name, value in (kwargs or {}).items()}
        return func(*map(widened, args), **named)


class Loose(nn.Module):
    """A step whose caches are inputs, so that their length can be symbolic."""

    def __init__(self, step: CachedStep):
        super().__init__()
        self.step = step

    def forward(self, ids: torch.Tensor, position: torch.Tensor, *rest: torch.Tensor) -> tuple[Any, ...]:
        """Compute one step. ``rest`` are the further arguments of the model, and the caches.

        The import returns the changed caches.
        """
        more = len(self.step.more)
        return self.step.computed(ids, position, rest[more:], rest[:more])


def measured(decoder: Decoder, dtype: str, tokens: int, symbolic: bool = False) -> Row:
    """Export, import, compile and run a step, and return its row.

    Args:
        decoder: the decoder.
        dtype: ``"float32"`` or ``"bfloat16"``, the type of weights and caches.
        tokens: the number of new tokens.
        symbolic: whether the caches have a symbolic length. The step then runs with two lengths.
    """
    step = decoder.step(getattr(torch, dtype), LENGTH)
    mod, copying = (imported(step, tokens, symbolic, state) for state in (STATE, "inputs"))
    kernels = {}
    for name, target in TARGETS.items():
        count = count_kernels(mod, target, tvm_stitch.relax.pipeline(target)).total
        kernels[name] = count, _stock_kernels(copying, target)
    function = relax.VirtualMachine(tvm_stitch.compile(mod, CPU), tvm.cpu())["main"]
    lengths = (LENGTH, OTHER_LENGTH) if symbolic else (LENGTH,)
    steps = [decoder.step(getattr(torch, dtype), length) for length in lengths]
    draws = [squares(each, function, tokens, seed) for each in steps for seed in range(DRAWS)]
    own, narrow, whole = totals(draws)[SCORES]
    return Row(decoder.name, dtype, tokens, symbolic, kernels, (own / whole) ** 0.5, (narrow / whole) ** 0.5)


def counted(decoder: Decoder, dtype: str, tokens: int, symbolic: bool = False) -> int:
    """Return the kernels of a stitched step on CUDA, as :func:`measured` counts them."""
    mod = imported(decoder.step(getattr(torch, dtype), LENGTH), tokens, symbolic)
    return count_kernels(mod, GPU, tvm_stitch.relax.pipeline(GPU)).total


def _stock_kernels(mod: tvm.IRModule, target: tvm.target.Target) -> int | None:
    try:
        return count_kernels(mod, target).total
    except Exception as error:  # TVM does not legalize layer norms in bfloat16, for example
        reraise_fatal(error)
        return None


def imported(step: CachedStep, tokens: int, symbolic: bool, state: Any = STATE) -> tvm.IRModule:
    """Return the module of a step.

    Args:
        step: the step.
        tokens: the number of new tokens.
        symbolic: whether the caches have a symbolic length. They are then inputs of the program.
        state: the kind of other caches, as ``from_exported_program`` takes it. TVM's own pipeline schedules no
            updates in place for a GPU.
    """
    given = (torch.zeros(1, tokens, dtype=torch.int64), torch.tensor(PAST), *_encoded(step))
    with torch.no_grad():
        if not symbolic:
            return from_exported_program(torch.export.export(step, given), state=state)
        length = torch.export.Dim("length", min=8, max=96)
        more, caches = [None for _ in step.more], [{2: length} for _ in step.caches()]
        copies = [cache.clone() for cache in step.caches()]  # the exporter would take a buffer for an input
        program = torch.export.export(
            Loose(step), (*given, *copies), dynamic_shapes=(None, None, (*more, *caches))
        )
        return from_exported_program(program, state=state)


def _encoded(step: CachedStep) -> list[torch.Tensor]:
    return [torch.randn(1, ENCODED, 64).to(step.caches()[0].dtype) for _ in step.more]


def squares(step: CachedStep, function: Callable[..., Any], tokens: int, seed: int) -> list[Squares]:
    """Return the sums of squares of each result but the best token.

    Args:
        step: the step in PyTorch.
        function: the same compiled. Its inputs are tokens, position, the further arguments and the caches.
        tokens: the number of new tokens.
        seed: seed of the inputs.
    """
    torch.manual_seed(seed)
    former, new = (torch.randint(0, VOCABULARY, (1, n)) for n in (PAST, tokens))
    more = _encoded(step)
    wide_more = [each.double() for each in more]
    wide = copy.deepcopy(step).double()
    with torch.no_grad(), Wide():
        wide(former, torch.tensor(0), *wide_more)
    for own, exact in zip(step.caches(), wide.caches(), strict=True):
        own.copy_(exact)
        exact.copy_(own)
    given = [new, torch.tensor(PAST), *more, *step.caches()]
    results = [torch.from_dlpack(each) for each in function(*(_held(each) for each in given))]
    with torch.no_grad():
        narrow = [*step(new, torch.tensor(PAST), *more)[1:], *step.caches()]
        with Wide():
            exact_results = [*wide(new, torch.tensor(PAST), *wide_more)[1:], *wide.caches()]
    return _compared(results[1:], narrow, exact_results)


def _held(tensor: torch.Tensor) -> Any:
    return tvm.runtime.from_dlpack(tensor.detach().clone())


def _compared(
    results: Sequence[torch.Tensor], narrow: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]
) -> list[Squares]:
    """Return the sums of squares of each result. Raise if a type or a shape is wrong."""
    found_squares: list[Squares] = []
    for got, want, wide in zip(results, narrow, exact, strict=True):
        if got.dtype != want.dtype or got.shape != want.shape:
            raise ValueError(
                f"a result is {got.dtype} {list(got.shape)}, not {want.dtype} {list(want.shape)}"
            )
        found_squares.append((_square(got.double() - wide), _square(want.double() - wide), _square(wide)))
    return found_squares


def totals(draws: Sequence[Sequence[Squares]]) -> list[Squares]:
    """Return the sums over random inputs, for each result.

    Raises:
        ValueError: if a result has 4 times PyTorch's error. A single input may have it, if experts are chosen.
    """
    sums: list[Squares] = []
    for each in zip(*draws, strict=True):
        own, narrow, whole = (math.fsum(column) for column in zip(*each, strict=True))
        if own > 16 * narrow + 1e-24:
            raise ValueError(f"an error is {own**0.5:.3g}, and PyTorch's own {narrow**0.5:.3g}")
        sums.append((own, narrow, whole))
    return sums


def _square(difference: torch.Tensor) -> float:
    return float(difference.double().square().sum())
