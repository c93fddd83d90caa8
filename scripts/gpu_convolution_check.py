# SPDX-License-Identifier: Apache-2.0
"""Check convolutions by cuDNN on a GPU against float64, and time them next to PyTorch's, in both layouts.

    python scripts/gpu_convolution_check.py
    python scripts/gpu_convolution_check.py --batch 1 --no-time

The script needs a GPU, cuDNN and PyTorch. It prints a table last. The exit code is 0 only if all is right.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)
import ml_dtypes  # noqa: F401  (gives NumPy the name "bfloat16")
import numpy as np
import torch
import tvm
import tvm_ffi
from _cuda_events import microseconds
from _gpu import need_gpu

from tvm_stitch.compute.cuda import library
from tvm_stitch.cost.choices import Choices
from tvm_stitch.graph.dtype import HALF
from tvm_stitch.relax.library.convolutions import DATA_GRADIENT, WEIGHT_GRADIENT

TOLERANCE = {"float32": 3e-6, "tf32": 2e-3, "float16": 2e-3, "bfloat16": 1.6e-2}
"""Most of ||result - reference|| / ||reference||, by precision."""
BLOCKS, CALLS = 5, 20
PRECISIONS = ("float32", "tf32", "float16", "bfloat16")
KINDS = ("first", "last", "followed", "data", "weight")
"""Forms of a check: channels first or last, a bias, a residual and ReLU behind, and two gradients.

The gradients are those of the data and of the weight.
"""


@dataclass(frozen=True)
class Case:
    """A convolution: data of a batch, a weight, and windows."""

    data: tuple[int, ...]
    weight: tuple[int, ...]
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1

    def __str__(self) -> str:
        more = [f"/{self.stride}" if self.stride > 1 else "", f" of {self.groups} groups" * (self.groups > 1)]
        return f"{'x'.join(map(str, self.data))} by {'x'.join(map(str, self.weight))}{''.join(more)}"


def odd_cases() -> list[Case]:
    """Return odd, prime and small shapes, of one to three axes."""
    return [
        Case((2, 3, 17), (5, 3, 3)),
        Case((1, 1, 1, 1), (1, 1, 1, 1)),
        Case((3, 7, 13, 11), (5, 7, 3, 2), padding=1),
        Case((2, 8, 13, 11), (6, 4, 3, 3), stride=2, padding=1, groups=2),
        Case((2, 31, 9, 9), (31, 1, 5, 5), padding=2, groups=31),
        Case((1, 16, 15, 15), (8, 16, 3, 3), padding=2, dilation=2),
        Case((1, 3, 5, 6, 7), (4, 3, 3, 1, 2), padding=1),
    ]


def timed_cases(batch: int) -> list[Case]:
    """Return layers of ResNet-50, MobileNet and ConvNeXt."""
    return [
        Case((batch, 3, 224, 224), (64, 3, 7, 7), 2, 3),
        Case((batch, 64, 56, 56), (64, 64, 3, 3), 1, 1),
        Case((batch, 64, 56, 56), (256, 64, 1, 1)),
        Case((batch, 512, 28, 28), (128, 512, 1, 1)),
        Case((batch, 256, 14, 14), (256, 256, 3, 3), 1, 1),
        Case((batch, 512, 7, 7), (512, 512, 3, 3), 1, 1),
        Case((batch, 96, 56, 56), (96, 1, 7, 7), 1, 3, 1, 96),
        Case((batch, 384, 14, 14), (384, 1, 3, 3), 1, 1, 1, 384),
    ]


class Convolution:
    """A case by tvm_stitch and by PyTorch, with the same numbers."""

    def __init__(self, case: Case, precision: str, last: bool) -> None:
        self.case, self.precision = case, precision
        dtype = "float32" if precision == "tf32" else precision
        rng = np.random.default_rng(sum(case.data))
        arrays = [rng.standard_normal(s, dtype=np.float32).astype(dtype) for s in (case.data, case.weight)]
        self.wide = [a.astype("float64") for a in arrays]
        kind = torch.channels_last if last and len(case.data) == 4 else torch.contiguous_format
        tensors = [torch.tensor(a.astype("float32")).to(getattr(torch, dtype)).cuda() for a in arrays]
        self.operands = [t.to(memory_format=kind) for t in tensors]
        self.extra = (case.stride, case.padding, case.dilation, case.groups)
        rank = len(case.data) - 2
        self.numbers = tvm_ffi.Shape(
            [case.groups, *[case.stride] * rank, *[case.padding] * rank, *[case.dilation] * rank]
        )
        self.mode = " ".join(
            ["channels_last" if last else "channels_first", *["tf32"] * (precision == "tf32"), "timed"]
        )
        order = (lambda a: np.ascontiguousarray(np.moveaxis(a, 1, -1))) if last else np.ascontiguousarray
        self.last, device = last, tvm.cuda()
        self.given = [_tensor(order(a), dtype, device) for a in arrays]
        out = self.convolved(*self.operands).shape
        self.out = tvm.runtime.empty((out[0], *out[2:], out[1]) if last else tuple(out), dtype, device)
        self.workspace = tvm.runtime.empty((Choices().convolution_workspace_bytes,), "uint8", device)
        self.function = library.CUDNN.calls.module()[library.CUDNN.function]

    def torch(self) -> Any:
        """Return PyTorch's result, with its own choice of algorithm."""
        torch.backends.cudnn.allow_tf32 = self.precision == "tf32"
        return self.computed(self.operands)

    def computed(self, operands: list[Any]) -> Any:
        """Return PyTorch's result for operands of any dtype."""
        return self.convolved(*operands)

    def convolved(self, x: Any, w: Any) -> Any:
        """Compute the convolution."""
        return (torch.conv1d, torch.conv2d, torch.conv3d)[x.ndim - 3](x, w, None, *self.extra)

    def ours(self) -> Any:
        """Return tvm_stitch's result, in its own layout."""
        self.function(*self.given, self.numbers, self.mode, self.out, self.workspace)
        return self.out

    def errors(self) -> tuple[float, float]:
        """Return the relative errors in the 2-norm of tvm_stitch and of PyTorch."""
        wanted = self.computed([torch.tensor(a).cuda() for a in self.wide]).cpu().numpy()
        ours = self.ours().numpy().astype("float64")
        ours = np.moveaxis(ours, -1, 1) if self.last else ours
        theirs = self.torch().double().cpu().numpy()
        size = np.linalg.norm(wanted)
        return float(np.linalg.norm(ours - wanted) / size), float(np.linalg.norm(theirs - wanted) / size)


class Followed(Convolution):
    """A case with channels last, and a bias, a residual and ReLU behind it."""

    def __init__(self, case: Case, precision: str) -> None:
        super().__init__(case, precision, last=True)
        shape, dtype = tuple(self.out.shape), str(self.given[0].dtype)
        rng = np.random.default_rng(sum(shape))
        for more in ((shape[-1],), shape):
            values = rng.standard_normal(more, dtype=np.float32).astype(dtype)
            self.given.append(_tensor(values, dtype, tvm.cuda()))
            first = np.ascontiguousarray(np.moveaxis(values, -1, 1)) if len(more) > 1 else values
            self.wide.append(first.astype("float64"))
            self.operands.append(torch.tensor(first.astype("float32")).to(self.operands[0].dtype).cuda())
        self.mode += " bias residual relu"

    def computed(self, operands: list[Any]) -> Any:
        """Compute the convolution and what follows."""
        x, w, bias, residual = operands
        result = self.convolved(x, w) + bias.reshape(-1, *[1] * (x.ndim - 2)) + residual
        return torch.relu(result)


class Gradient(Convolution):
    """The gradient of a case's data or weight, channels first, for a random gradient of its result."""

    def __init__(self, case: Case, precision: str, of: str) -> None:
        super().__init__(case, precision, last=False)
        self.at = ("data", "weight").index(of)
        shape, dtype = tuple(self.out.shape), str(self.given[0].dtype)
        values = np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32).astype(dtype)
        self.wide.append(values.astype("float64"))
        self.operands.append(torch.tensor(values.astype("float32")).to(self.operands[0].dtype).cuda())
        given = _tensor(values, dtype, tvm.cuda())
        self.given = [given, self.given[1]] if of == "data" else [self.given[0], given]
        self.out = tvm.runtime.empty((case.data, case.weight)[self.at], dtype, tvm.cuda())
        self.mode += f" {(DATA_GRADIENT, WEIGHT_GRADIENT)[self.at]}"

    def computed(self, operands: list[Any]) -> Any:
        """Compute the gradient."""
        x, w, g = operands
        rank, (stride, padding, dilation, groups) = x.ndim - 2, self.extra
        several = [stride] * rank, [padding] * rank, [dilation] * rank
        mask = [self.at == 0, self.at == 1, False]
        backward = torch.ops.aten.convolution_backward
        return backward(g, x, w, None, *several, False, [0] * rank, groups, mask)[self.at]


def _tensor(array: np.ndarray, dtype: str, device: Any) -> Any:
    if dtype != "bfloat16":
        return tvm.runtime.tensor(array, device)
    return tvm.runtime.empty(array.shape, dtype, device).copyfrom(array)


def is_checked(case: Case, precision: str, kind: str) -> bool:
    """Return whether the compiler asks for a form of a convolution."""
    if kind == "followed":
        fits = all(channels % Choices().fused_channels == 0 for channels in (case.data[1], case.weight[0]))
        return len(case.data) == 4 and case.groups == 1 and fits and precision in HALF
    return kind != "weight" or case.groups == 1


def check(case: Case, precision: str, kind: str) -> str:
    """Describe the errors of a case. The text is empty if it is right."""
    try:
        convolution: Convolution
        if kind in ("data", "weight"):
            convolution = Gradient(case, precision, kind)
        elif kind == "followed":
            convolution = Followed(case, precision)
        else:
            convolution = Convolution(case, precision, kind == "last")
        ours, theirs = convolution.errors()
        again = convolution.out.numpy().copy()
        convolution.ours()
    except Exception as error:  # of several types
        return f"{case} {precision} {kind}: {str(error).splitlines()[-1]}"
    if not ours <= max(TOLERANCE[precision], 2 * theirs):
        return f"{case} {precision} {kind}: error {ours:.1e}, PyTorch's {theirs:.1e}"
    return (
        ""
        if np.array_equal(again, convolution.out.numpy())
        else f"{case} {precision} {kind}: two runs differ"
    )


def main() -> int:
    """Check, then time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=32, help="batch size of the timed layers (default 32)")
    parser.add_argument("--no-time", action="store_true", help="check only")
    options = parser.parse_args()
    need_gpu()
    if (reason := library.CUDNN.missing()) is not None:
        parser.error(reason)
    library.CUDNN.load()
    # Both use one stream: the times are of the same queue.
    checks = [
        (case, precision, kind)
        for case in [*odd_cases(), *timed_cases(2)]
        for precision in PRECISIONS
        for kind in KINDS
        if is_checked(case, precision, kind)
    ]
    wrong = [problem for one in checks if (problem := check(*one))]
    print(f"{len(checks)} convolutions and gradients, {len(wrong)} wrong", flush=True)
    print("\n".join(wrong))
    if not options.no_time:
        print("microseconds: tvm_stitch and PyTorch, channels first; last; gradients of data and weight")
        for precision in ("float32", "tf32", "float16"):
            for case in timed_cases(options.batch):
                contenders = [Convolution(case, precision, last) for last in (False, True)]
                of = ("data", "weight") if case.groups == 1 else ("data",)
                contenders += [Gradient(case, precision, side) for side in of]
                calls = {
                    f"{kind}{i}": getattr(m, kind)
                    for i, m in enumerate(contenders)
                    for kind in ("ours", "torch")
                }
                times = microseconds(calls, BLOCKS, CALLS)
                shown = " ".join(f"{t:8.1f}" for t in times.values())
                print(f"{precision:8s} {case!s:44s} {shown}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
