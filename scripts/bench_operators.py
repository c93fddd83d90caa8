#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time single products and convolutions on a CPU: templates, ONNX Runtime, PyTorch and OpenBLAS, in one run.

    python scripts/bench_operators.py
    python scripts/bench_operators.py --isa avx2 --cases "product 128" "conv 64"
    python scripts/bench_operators.py --threads 2 --markdown

Weights are constants, and convolutions have channels last (in PyTorch too). ONNX Runtime uses its own order, channels
first. Contenders take turns. The figure of each is its least time, in GFLOP/s. On one thread this is processor time, so
other work disturbs less. With ``--isa avx2`` all of them use only AVX2 code. ONNX Runtime has no such option and is
left out then.

Exit code: 0 every result is right, 1 one of the templates' is wrong, 2 a usage error.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)

ISAS = {
    "native": {},
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    },
}
POOLS = ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
PAUSE = 0.01
"""Seconds between contenders, in which spinning threads go to sleep."""
TOLERANCE = 1e-5
"""Most error of results, relative to the greatest: sums of some thousand products of normal numbers in float32."""

Call = Callable[[], Any]


@dataclass(frozen=True)
class Product:
    """A batch of products <m, k> x <k, n>. The right side is a constant if ``batch`` is 1."""

    m: int
    n: int
    k: int
    batch: int = 1
    transposed: bool = False

    @property
    def name(self) -> str:
        """The name in tables."""
        batch = f"{self.batch} x " if self.batch > 1 else ""
        return f"product {batch}{self.m}x{self.n}x{self.k}" + (" transposed" if self.transposed else "")

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.batch * self.m * self.n * self.k

    def arrays(self, rng: Any) -> tuple[Any, Any]:
        """Draw both operands."""
        lead = (self.batch,) if self.batch > 1 else ()
        right = (self.n, self.k) if self.transposed else (self.k, self.n)
        return (
            rng.standard_normal((*lead, self.m, self.k)).astype("float32"),
            rng.standard_normal((*lead, *right)).astype("float32"),
        )


@dataclass(frozen=True)
class Conv:
    """A convolution of one square image, with channels last. ``kernel`` is odd."""

    channels: int
    outputs: int
    size: int
    kernel: int
    stride: int = 1
    groups: int = 1
    dilation: int = 1

    @property
    def padding(self) -> int:
        """The border on each side. A result has an element for each of the image, but for strides."""
        return self.kernel // 2 * self.dilation

    @property
    def name(self) -> str:
        """The name in tables."""
        more = (f", stride {self.stride}" if self.stride > 1 else "") + (
            f", {self.groups} groups" if self.groups > 1 else ""
        )
        more += f", dilation {self.dilation}" if self.dilation > 1 else ""
        kind = "dilated conv" if self.dilation > 1 else "conv"
        return f"{kind} {self.channels}->{self.outputs}, {self.size}x{self.size}, {self.kernel}x{self.kernel}{more}"

    @property
    def operations(self) -> int:
        """Multiplications and additions, those with the border too."""
        places = (-(-self.size // self.stride)) ** 2
        return 2 * self.outputs * (self.channels // self.groups) * self.kernel**2 * places

    def arrays(self, rng: Any) -> tuple[Any, Any]:
        """Draw data <1, size, size, channels> and weights <outputs, kernel, kernel, channels of a group>."""
        return (
            rng.standard_normal((1, self.size, self.size, self.channels)).astype("float32"),
            rng.standard_normal(
                (self.outputs, self.kernel, self.kernel, self.channels // self.groups)
            ).astype("float32"),
        )


CASES: tuple[Product | Conv, ...] = (
    Product(128, 768, 768),
    Product(128, 3072, 768),
    Product(128, 768, 3072),
    Product(4096, 3072, 768),
    Product(16, 768, 768),
    Product(1, 768, 768),
    Product(128, 128, 64, batch=12, transposed=True),
    Product(128, 64, 128, batch=12),
    Conv(64, 64, 56, 3),
    Conv(128, 128, 28, 3),
    Conv(256, 256, 14, 3),
    Conv(512, 512, 7, 3),
    Conv(3, 64, 224, 7, stride=2),
    Conv(64, 256, 56, 1),
    Conv(1024, 256, 14, 1),
    Conv(144, 144, 56, 3, groups=144),
    Conv(96, 96, 56, 7, groups=96),
    *(Conv(256, 256, 32, 3, dilation=apart) for apart in (2, 6, 12, 18, 24, 36)),
)


def stitched(case: Product | Conv, x: Any, w: Any, isa: str, threads: int) -> Call:
    """Build tvm_stitch's template for this machine or for AVX2."""
    import tvm
    from tvm import relax

    from tvm_stitch.relax.build import build
    from tvm_stitch.target import this_cpu

    cpu = {"kind": "llvm", "mcpu": "x86-64-v3"} if isa == "avx2" else this_cpu()
    builder = relax.BlockBuilder()
    var = relax.Var("x", relax.TensorType(x.shape, "float32"))
    if bound := isinstance(case, Conv) or case.batch == 1:
        right: Any = relax.const(w)
    else:
        right = relax.Var("w", relax.TensorType(w.shape, "float32"))
    with builder.function("main", [var] if bound else [var, right]):
        with builder.dataflow():
            if isinstance(case, Conv):
                pad = (case.padding, case.padding)
                value = relax.op.nn.conv2d(
                    var,
                    right,
                    (case.stride,) * 2,
                    pad,
                    (case.dilation,) * 2,
                    case.groups,
                    data_layout="NHWC",
                    kernel_layout="OHWI",
                )
            else:
                if case.transposed:
                    right = builder.emit(relax.op.permute_dims(right, [0, 2, 1]))
                value = relax.op.matmul(var, right)
            output = builder.emit_output(value)
        builder.emit_func_output(output)
    target = tvm.target.Target({**cpu, "num-cores": threads})
    vm = relax.VirtualMachine(build(builder.get(), target).executable, tvm.cpu())
    arguments = [tvm.runtime.tensor(a) for a in ([x] if bound else [x, w])]
    return lambda: vm["main"](*arguments)


def torch(case: Product | Conv, x: Any, w: Any, isa: str, threads: int) -> Call:
    """PyTorch, without gradients."""
    import torch as library

    library.set_num_threads(threads)
    a, b = library.from_numpy(x), library.from_numpy(w)
    if isinstance(case, Conv):
        a, b = a.permute(0, 3, 1, 2), b.permute(0, 3, 1, 2)  # PyTorch's channels_last

        def convolve() -> Any:
            with library.inference_mode():
                y = library.conv2d(a, b, None, case.stride, case.padding, case.dilation, case.groups)
                return y.permute(0, 2, 3, 1)

        return convolve
    b = b.transpose(-1, -2) if case.transposed else b

    def multiply() -> Any:
        with library.inference_mode():
            return library.matmul(a, b)

    return multiply


def onnxruntime(case: Product | Conv, x: Any, w: Any, isa: str, threads: int) -> Call:
    """ONNX Runtime, a model of one node (two, where the right side is transposed)."""
    import numpy as np
    import onnxruntime as library
    from onnx import TensorProto, helper, numpy_helper

    nodes, constants, inputs = [], [], {"x": x}
    if isinstance(case, Conv):
        inputs["x"] = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
        constants = [numpy_helper.from_array(np.ascontiguousarray(w.transpose(0, 3, 1, 2)), "w")]
        how = {"pads": [case.padding] * 4, "strides": [case.stride] * 2, "dilations": [case.dilation] * 2}
        nodes = [helper.make_node("Conv", ["x", "w"], ["y"], group=case.groups, **how)]
    else:
        right = "w"
        if case.transposed:
            nodes, right = [helper.make_node("Transpose", ["w"], ["t"], perm=[0, 2, 1])], "t"
        nodes.append(helper.make_node("MatMul", ["x", right], ["y"]))
        if case.batch == 1:
            constants = [numpy_helper.from_array(w, "w")]
        else:
            inputs["w"] = w
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, a.shape) for name, a in inputs.items()]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "operator", given, [result], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = library.SessionOptions()
    options.intra_op_num_threads = threads
    session = library.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    turned = isinstance(case, Conv)

    def call() -> Any:
        output = session.run(None, inputs)[0]
        return output.transpose(0, 2, 3, 1) if turned else output

    return call


def openblas(case: Product | Conv, x: Any, w: Any, isa: str, threads: int) -> Call | None:
    """NumPy's matmul, which its wheels compute by OpenBLAS. It does not compute convolutions."""
    if isinstance(case, Conv):
        return None
    right = w.swapaxes(-1, -2) if case.transposed else w
    return lambda: x @ right


CONTENDERS: dict[str, Callable[..., Call | None]] = {
    "stitched": stitched,
    "torch": torch,
    "onnxruntime": onnxruntime,
    "openblas": openblas,
}


def contenders_of(isa: str) -> list[str]:
    """Return the contenders that can be limited to these instructions."""
    return [name for name in CONTENDERS if name != "onnxruntime" or isa == "native"]


def exact(case: Product | Conv, x: Any, w: Any) -> Any:
    """Compute the result in float64, by NumPy for products and by PyTorch for convolutions."""
    if isinstance(case, Product):
        return openblas(case, x.astype("float64"), w.astype("float64"), "", 1)()  # type: ignore[misc]
    return torch(case, x.astype("float64"), w.astype("float64"), "", 1)().numpy()


def least_times(
    calls: dict[str, Call], seconds: float, rounds: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Return the least seconds of a call of each. They take turns of ``seconds``, every other round backwards."""
    best = dict.fromkeys(calls, float("inf"))
    for turn in range(rounds):
        for name in list(calls)[:: -1 if turn % 2 else 1]:
            time.sleep(PAUSE)
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                start = clock()
                calls[name]()
                best[name] = min(best[name], clock() - start)
    return best


def bench(case: Product | Conv, isa: str, args: argparse.Namespace) -> tuple[dict[str, float], float]:
    """Return the GFLOP/s of each contender, and the greatest error of the template."""
    import numpy as np

    x, w = case.arrays(np.random.default_rng(0))
    prepared = {name: CONTENDERS[name](case, x, w, isa, args.threads) for name in contenders_of(isa)}
    calls = {name: call for name, call in prepared.items() if call is not None}
    expected = exact(case, x, w)
    error = float(np.abs(calls["stitched"]().numpy() - expected).max() / np.abs(expected).max())
    clock = time.process_time if args.threads == 1 else time.perf_counter
    best = least_times(calls, args.seconds, args.rounds, clock)
    return {name: case.operations / spent / 1e9 for name, spent in best.items()}, error


def _again(isa: str, threads: int) -> None:
    """Start again with the libraries' variables set, which they read when they are loaded."""
    wanted = {**ISAS[isa], **dict.fromkeys(POOLS, str(threads))}
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **wanted})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--isa", choices=ISAS, default="native", help="instructions (default: this machine's)"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of every contender (default: 1)")
    parser.add_argument("--cases", nargs="+", default=[""], help="prefixes of names (default: all)")
    parser.add_argument("--seconds", type=float, default=0.2, help="seconds of a turn (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=6, help="turns of each (default: %(default)s)")
    parser.add_argument("--markdown", action="store_true", help="the table in Markdown")
    args = parser.parse_args(argv)
    chosen = [case for case in CASES if case.name.startswith(tuple(args.cases))]
    if not chosen:
        parser.error(f"no case begins so; there are {', '.join(case.name for case in CASES)}")
    if args.threads < 1 or args.rounds < 1:
        parser.error("--threads and --rounds are at least 1")
    if argv is None:
        _again(args.isa, args.threads)
    names = contenders_of(args.isa)
    start, between, end = ("| ", " | ", " |") if args.markdown else ("", "  ", "")
    print(f"{args.isa}, threads: {args.threads}, GFLOP/s")
    print(start + between.join([f"{'':38}", *(f"{n:>11}" for n in names), "ours/best", "  error"]) + end)
    if args.markdown:
        print("|---" * (len(names) + 3) + "|")
    wrong = 0
    for case in chosen:
        spent, error = bench(case, args.isa, args)
        peer = max(value for name, value in spent.items() if name != "stitched")
        cells = [f"{spent[n]:11.1f}" if n in spent else f"{'-':>11}" for n in names]
        ratio = f"{spent['stitched'] / peer:9.2f}"
        print(start + between.join([f"{case.name:38}", *cells, ratio, f"{error:7.1e}"]) + end, flush=True)
        wrong += not error < TOLERANCE
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
