# SPDX-License-Identifier: Apache-2.0
"""Check matrix products by cuBLASLt on a GPU against float64, and time them in an encoder next to PyTorch.

    python scripts/gpu_matmul_check.py
    python scripts/gpu_matmul_check.py --layers 2 --no-compile
    python scripts/gpu_matmul_check.py --layers 0      # the numbers alone

The script needs a GPU, cuBLASLt, and PyTorch for the timing. It prints a table last. The exit code is 0 only if all is
right.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)
import ml_dtypes  # noqa: F401  (gives NumPy the name "bfloat16")
import numpy as np
import tvm
from _encoder_times import time_encoder
from _gpu import need_gpu
from _gpu_encoder import Sizes
from tvm import relax
from tvm.relax import op as R

from tvm_stitch import StitchConfig
from tvm_stitch.compute.cuda import library
from tvm_stitch.records.recorder import Recorder
from tvm_stitch.relax import pipeline
from tvm_stitch.target import resolve_target

TOLERANCE = {"float32": 2e-6, "tf32": 1e-3, "float16": 1e-3, "bfloat16": 8e-3}
"""Most of ||result - reference|| / ||reference||, by precision."""


@dataclass(frozen=True)
class Case:
    """A product of shapes, possibly symbolic ("n"), and the operators between its inputs and it."""

    left: tuple[Any, ...]
    right: tuple[Any, ...]
    dtype: str = "float32"
    out_dtype: str = ""
    tf32: bool = False
    permuted: tuple[tuple[int, ...] | None, tuple[int, ...] | None] = (None, None)
    result: tuple[int, ...] | None = None
    bias: bool = False
    relu: bool = False
    residual: bool = False
    weight: bool = False

    @property
    def depth(self) -> Any:
        """Return the extent of the sum, "n" if it is symbolic."""
        order = self.permuted[0]
        return self.left[order[-1] if order else -1]

    def __str__(self) -> str:
        told = [self.out_dtype and f"out {self.out_dtype}", *(f for f in _FLAGS if getattr(self, f))]
        told += [f"{side} {p}" for side, p in zip(_PLACES, (*self.permuted, self.result)) if p]
        return f"{self.left} {self.right} {self.dtype} {', '.join(t for t in told if t)}"


_EPILOGUES = ("bias", "relu", "residual")
_FLAGS = ("tf32", *_EPILOGUES, "weight")
_PLACES = ("left", "right", "result")
HEADS = (0, 2, 1, 3)
TURNED = (0, 1, 3, 2)
KEYS = (0, 2, 3, 1)


def cases() -> list[Case]:
    """Return the table of products."""
    sizes = [
        (1, 1, 1),
        (1, 768, 33),
        (7, 5, 3),
        (129, 257, 65),
        (333, 1, 17),
        (1000, 1001, 999),
        (5, 4096, 2),
    ]
    listed = [
        Case((m, k), (k, n), dtype) for m, k, n in sizes for dtype in ("float32", "float16", "bfloat16")
    ]
    listed += [Case((m, k), (n, k), "float16", "float32", permuted=(None, (1, 0))) for m, k, n in sizes]
    listed += [Case((k, m), (n, k), permuted=((1, 0), (1, 0))) for m, k, n in sizes]
    listed += [Case((512, 512), (512, 512), tf32=True), Case((4096, 768), (768, 3072), weight=True)]
    listed += [
        Case((8,), (8, 5)), Case((3, 8), (8,)), Case((8,), (8,)), Case((2, 3, 4, 8), (8, 5), weight=True),
        Case((2, 3, 4, 8), (2, 3, 8, 5)), Case((6, 4, 8), (1, 8, 5)),
        Case((1, 4, 8), (6, 8, 5)), Case((70000, 3, 4), (70000, 4, 2)), Case((4, 8), (6, 8, 5)),
        Case((1, 37, 12, 64), (1, 37, 12, 64), permuted=(HEADS, KEYS)),
        Case((3, 37, 12, 64), (3, 37, 12, 64), permuted=(HEADS, KEYS)),
        Case((1, 12, 37, 41), (1, 41, 12, 64), permuted=(None, HEADS), result=HEADS),
        Case((2, 33, 40), (2, 40, 24), "float16", result=(0, 2, 1)), Case((33, 40), (40, 24), result=(1, 0)),
        Case((2, 3, 17, 64), (2, 3, 19, 64), permuted=(None, TURNED)),
        Case((2, 3, 64, 17), (2, 3, 64, 19), "bfloat16", permuted=(TURNED, None)),
    ]  # fmt: skip
    for dtype in ("float32", "float16"):
        for relu, residual in itertools.product((False, True), repeat=2):
            listed.append(
                Case((6, 33, 40), (40, 24), dtype, bias=True, weight=True, relu=relu, residual=residual)
            )
        listed.append(Case((130, 40), (40, 24), dtype, relu=True, weight=True))
        listed.append(Case((130, 40), (40, 24), dtype, residual=True, weight=True))
    listed += [
        Case(("n", 40), (40, 24), weight=True), Case((24, "n"), ("n", 40)), Case((16, 40), (40, "n")),
        Case(("n", 5, 40), ("n", 40, 24)), Case(("n", 40), (40, 24), weight=True, bias=True),
    ]  # fmt: skip
    return listed


def main() -> int:
    args = _arguments()
    need_gpu()
    if (reason := library.CUBLASLT.missing()) is not None:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    start = time.perf_counter()
    library.CUBLASLT.load()
    print(
        f"cuBLASLt: {library.CUBLASLT.find()} ({time.perf_counter() - start:.1f} s to compile and load)",
        flush=True,
    )
    wrong = [*check_products(), *check_not_a_number(), *check_threads(), *check_errors(), *check_saved()]
    print(f"{time.perf_counter() - start:.0f} s so far", flush=True)
    if args.layers:
        wrong += time_encoder(Sizes(args.layers, args.batch, args.sequence), not args.no_compile)
    for line in wrong:
        print("WRONG:", line)
    return 1 if wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--layers", type=int, default=12, help="layers of the encoder; 0: no timing (default: %(default)s)"
    )
    parser.add_argument("--batch", type=int, default=32, help="(default: %(default)s)")
    parser.add_argument("--sequence", type=int, default=128, help="(default: %(default)s)")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    return parser.parse_args()


def module_of(case: Case, weight: np.ndarray, bias: np.ndarray | None) -> tvm.IRModule:
    """Build a Relax function of a case's left side, right side, and residual."""
    builder = relax.BlockBuilder()
    n = tvm.tirx.Var("n", "int64")
    shapes = [[n if e == "n" else e for e in shape] for shape in (case.left, case.right)]
    params = [relax.Var(name, relax.TensorType(shape, case.dtype)) for name, shape in zip("xy", shapes)]
    emit = builder.emit
    wide = case.out_dtype or case.dtype
    if case.residual:
        params.append(relax.Var("r", relax.TensorType([*shapes[0][:-1], shapes[1][-1]], wide)))
    with builder.function("main", params):
        with builder.dataflow():
            sides: list[Any] = [params[0], relax.const(weight) if case.weight else params[1]]
            for i, order in enumerate(case.permuted):
                sides[i] = emit(R.permute_dims(sides[i], list(order))) if order else sides[i]
            value = emit(R.matmul(*sides, out_dtype=case.out_dtype or None))
            value = emit(R.permute_dims(value, list(case.result))) if case.result else value
            if bias is not None:
                value = emit(R.add(value, relax.const(bias)))
            if case.residual:
                value = emit(R.add(value, params[2]))
            if case.relu:
                value = emit(R.nn.relu(value))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get()


def check_products() -> list[str]:
    """Compare every case with float64, and return the errors."""
    rng = np.random.default_rng()
    wrong, done = [], 0

    def draw(shape: tuple[int, ...], dtype: str) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32).astype(dtype)

    for case in cases():
        for n in (0, 1, 3, 64, 777) if "n" in (*case.left, *case.right) else (1,):
            left, right = (tuple(n if e == "n" else e for e in s) for s in (case.left, case.right))
            x, y = draw(left, case.dtype), draw(right, case.dtype)
            bias = draw(right[-1:], case.dtype) if case.bias else None
            residual = draw((*left[:-1], right[-1]), case.dtype) if case.residual else None
            try:
                reason = _check(case, x, y, bias, residual)
            except Exception as error:  # the other cases are checked after any error
                reason = f"{type(error).__name__}: {str(error)[-300:]}"
            done += 1
            if reason:
                wrong.append(f"{case}, n = {n}: {reason}")
    print(f"{done} products checked against float64, {len(wrong)} wrong", flush=True)
    return wrong


def _check(
    case: Case, x: np.ndarray, y: np.ndarray, bias: np.ndarray | None, residual: np.ndarray | None
) -> str:
    target, recorder = resolve_target("cuda"), Recorder()
    config = StitchConfig(tf32=case.tf32, compute="matmul=libraries")
    executable = tvm.compile(
        module_of(case, y, bias), target, relax_pipeline=pipeline(target, config, recorder)
    )
    left = [how for how in recorder.computed.values() if not how.startswith("cuBLASLt")]
    if left or not recorder.computed:
        return f"left to TVM: {left}"
    (how,) = recorder.computed.values()
    if case.depth != "n" and any(getattr(case, word) and word not in how for word in _EPILOGUES):
        return f"not computed with the product: {how}"
    device = tvm.cuda()
    vm = relax.VirtualMachine(executable, device)
    given = [a for a in (x, y, residual) if a is not None]
    tensors = [tvm.runtime.tensor(a, device) for a in given]
    result = vm["main"](*tensors).numpy().astype("float64")
    again = vm["main"](*tensors).numpy().astype("float64")
    a, b = (v.astype("float64").transpose(order or range(v.ndim)) for v, order in zip((x, y), case.permuted))
    expected = a @ b
    expected = expected.transpose(case.result) if case.result else expected
    expected = expected if bias is None else expected + bias.astype("float64")
    expected = expected if residual is None else expected + residual.astype("float64")
    expected = np.maximum(expected, 0) if case.relu else expected
    if result.shape != expected.shape:
        return f"shape {result.shape} for {expected.shape}"
    scale = np.linalg.norm(a) * np.linalg.norm(b) / max(1, np.sqrt(expected.size)) if expected.size else 1
    norm = max(float(np.linalg.norm(expected)), 1e-3 * float(scale), 1e-30)
    error = float(np.linalg.norm(result - expected)) / norm
    if not error <= TOLERANCE["tf32" if case.tf32 else case.dtype]:
        return f"error {error:.1e}"
    if case.tf32 and error < TOLERANCE["float32"]:
        return f"TF32 asked for and not used: error {error:.1e}"
    return "" if np.array_equal(result, again) else "two runs differ"


def check_not_a_number() -> list[str]:
    """Check that NaN propagates, through ReLU as well, and return the failures."""
    device, numbers = tvm.cuda(), tvm_shape([4, 4, 4, 1, 4, 4, 4, 0, 0, 0])
    x = np.ones((4, 4), "float32")
    x[1, 2] = np.nan
    a, b = (tvm.runtime.tensor(v, device) for v in (x, np.ones((4, 4), "float32")))
    out, workspace = (tvm.runtime.empty(s, d, device) for s, d in (((4, 4), "float32"), ((1024,), "uint8")))
    tvm.get_global_func(library.CUBLASLT.function)(a, b, numbers, "relu", out, workspace)
    hidden = np.isnan(out.numpy()).all(1).tolist()
    return [] if hidden == [False, True, False, False] else [f"ReLU of NaN: {out.numpy().tolist()}"]


def check_threads(count: int = 8, rounds: int = 50) -> list[str]:
    """Run products of several threads at once, and return the errors."""
    function = tvm.get_global_func(library.CUBLASLT.function)
    device, size = tvm.cuda(), 96
    wrong: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        x, y, bias = (rng.standard_normal(s, dtype=np.float32) for s in ((size, size), (size, size), (size,)))
        a, b, v = (tvm.runtime.tensor(array, device) for array in (x, y, bias))
        out = tvm.runtime.empty((size, size), "float32", device)
        workspace = tvm.runtime.empty((1 << 20,), "uint8", device)
        numbers = tvm_shape([size, size, size, 1, size, size, size, 0, 0, 0])
        for _ in range(rounds):
            function(a, b, v, numbers, "bias", out, workspace)
            if np.abs(out.numpy() - (x @ y + bias)).max() > 1e-3:
                wrong.append(f"thread {seed} got a wrong product")
                return

    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{count} threads, {rounds} products each: {len(wrong)} wrong", flush=True)
    return wrong


def tvm_shape(numbers: list[int]) -> Any:
    """Return a shape in the form that functions of the registry take."""
    import tvm_ffi

    return tvm_ffi.Shape(numbers)


_READER = """
import sys, numpy as np, tvm
from tvm import relax
vm = relax.VirtualMachine(tvm.runtime.load_module(sys.argv[1]), tvm.cuda())
x = np.arange(12, dtype="float32").reshape(3, 4)
found = vm["main"](tvm.runtime.tensor(x, tvm.cuda()), tvm.runtime.tensor(x.T.copy(), tvm.cuda())).numpy()
sys.exit(not np.array_equal(found, x @ x.T))
"""


def check_saved() -> list[str]:
    """Run a saved model in a process without tvm_stitch, and return the errors."""
    target = resolve_target("cuda")
    mod = module_of(Case((3, 4), (4, 3)), np.zeros(0), None)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.so"
        tvm.compile(mod, target, relax_pipeline=pipeline(target)).export_library(path)
        done = subprocess.run(
            [sys.executable, "-c", _READER, path], capture_output=True, text=True, check=False
        )
    return [] if done.returncode == 0 else [f"a saved model: {done.stderr[-300:]}"]


def check_errors() -> list[str]:
    """Make calls that must be refused with a clear message, and return those that are not."""
    function, device = tvm.get_global_func(library.CUBLASLT.function), tvm.cuda()
    a = tvm.runtime.tensor(np.ones((4, 4), "float32"), device)
    ints = tvm.runtime.tensor(np.ones((4, 4), "int32"), device)
    good = [4, 4, 4, 1, 4, 4, 4, 0, 0, 0]
    calls: list[tuple[str, list[Any]]] = [
        ("layout needs", [a, a, tvm_shape([8, *good[1:]]), "", a, a]),
        ("layout needs", [a, a, tvm_shape([4, 4, 4, 2, 4, 4, 4, 16, 0, 0]), "", a, a]),
        ("no mode", [a, a, tvm_shape(good), "gelu", a, a]),
        ("other operands", [a, a, tvm_shape(good), "bias", a, a]),
        ("float32, float16 or bfloat16", [ints, ints, tvm_shape(good), "", ints, a]),
        ("does not fit", [a, a, a, tvm_shape(good), "bias", a, a]),
    ]
    wrong = []
    for said, given in calls:
        try:
            function(*given)
            wrong.append(f"no error: {said}")
        except Exception as error:  # of several types
            if said not in str(error) or "tvm_stitch" not in str(error):
                wrong.append(f"{said}: {error}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
