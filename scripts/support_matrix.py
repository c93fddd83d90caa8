#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the page of what is stitched, computed by a template or a library, or left to TVM (docs/user-guide/support.md).

    python scripts/support_matrix.py
    python scripts/support_matrix.py --check   # exit 1 if the page is not up to date

The first tables come from compilations: a module of one operator for each target and dtype, and the report of it. The
others come from the importers' own tables. No GPU is needed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tvm import relax  # noqa: E402
from tvm.relax import op as R  # noqa: E402

import tvm_stitch  # noqa: E402
from tvm_stitch.support.failures import reraise_fatal  # noqa: E402

PAGE = Path(__file__).resolve().parents[1] / "docs" / "user-guide" / "support.md"
DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int8")
TARGETS = {
    "a CPU": ("llvm -mcpu=skylake-avx512", "auto"),
    "CUDA": ("cuda -arch=sm_90", "libraries"),
}
"""For each heading the target, and the option ``compute`` that plans with libraries which this machine may lack."""
_HEAD = """# Support matrix

`python scripts/support_matrix.py` writes this page, and a test compares the two. The tables of targets come from
compilations of one operator each, with operands of static sizes that are arguments. Fused with others, an operator may
have another entry.

| Entry | Meaning |
|---|---|
| stitched | It is part of a stitched kernel, with the memory-intensive operators around it |
| template | A kernel of tvm_stitch computes it, with the element-wise operators behind it |
| library | cuBLASLt or cuDNN computes it, if they are installed |
| TVM | TVM's schedule computes it |
| – | The operator does not take the type, or TVM does not compile it |
"""


@dataclass(frozen=True)
class Sample:
    """An operator: its name, its shapes, and the function of its operands."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    build: Callable[..., Any]


_IMAGE, _ROWS = (4, 16, 16, 16), (64, 64)
SAMPLES = (
    Sample("addition, with broadcasting", (_ROWS, (64,)), R.add),
    Sample("division", (_ROWS, _ROWS), R.divide),
    Sample("exponential", (_ROWS,), R.exp),
    Sample("comparison", (_ROWS, _ROWS), R.less),
    Sample("cast to int64", (_ROWS,), lambda x: R.astype(x, "int64")),
    Sample("sum of rows", (_ROWS,), lambda x: R.sum(x, -1)),
    Sample("sum of columns", (_ROWS,), lambda x: R.sum(x, 0)),
    Sample("maximum", (_ROWS,), lambda x: R.max(x, -1)),
    Sample("argmax", (_ROWS,), lambda x: R.argmax(x, -1)),
    Sample("softmax", (_ROWS,), R.nn.softmax),
    Sample("layer norm", (_ROWS, (64,), (64,)), lambda x, g, b: R.nn.layer_norm(x, g, b, -1)),
    Sample("group norm", (_IMAGE, (16,), (16,)), lambda x, g, b: R.nn.group_norm(x, g, b, 4, 1, [2, 3])),
    Sample("transposition", (_ROWS,), R.permute_dims),
    Sample("concatenation", (_ROWS, _ROWS), lambda x, y: R.concat([x, y], 1)),
    Sample("slice", (_ROWS,), lambda x: R.strided_slice(x, [1], [3], [40])),
    Sample("gather of rows", (_ROWS,), lambda x: R.take(x, relax.const([3, 1, 2], "int64"), 0)),
    Sample("maximum pooling", (_IMAGE,), lambda x: R.nn.max_pool2d(x, (2, 2), (2, 2))),
    Sample("mean pooling", (_IMAGE,), lambda x: R.nn.avg_pool2d(x, (2, 2), (2, 2))),
    Sample("running sum", (_ROWS,), lambda x: R.cumsum(x, -1)),
    Sample("running sum of 8,192", ((4, 8192),), lambda x: R.cumsum(x, -1)),
    Sample("sort", (_ROWS,), R.sort),
    Sample("top-k", (_ROWS,), lambda x: R.topk(x, 4)),
    Sample(
        "scatter", (_ROWS, (3, 64)), lambda x, y: R.scatter_nd(x, relax.const([[1], [2], [5]], "int64"), y)
    ),
    Sample("matmul", (_ROWS, _ROWS), R.matmul),
    Sample("batched matmul", ((4, 16, 64), (4, 64, 16)), R.matmul),
    Sample("convolution", (_IMAGE, (16, 16, 3, 3)), lambda x, w: R.nn.conv2d(x, w, padding=1)),
    Sample("depthwise convolution", (_IMAGE, (16, 1, 3, 3)), lambda x, w: R.nn.conv2d(x, w, groups=16)),
    Sample("transposed convolution", (_IMAGE, (16, 8, 3, 3)), lambda x, w: R.nn.conv2d_transpose(x, w)),
    Sample("attention", ((2, 32, 4, 16),) * 3, R.nn.attention),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page or, with ``--check``, compare it. Return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only compare, and exit 1 if the page differs")
    args = parser.parse_args(argv)
    text = page()
    if args.check:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


def page() -> str:
    """Return the page in Markdown."""
    parts = [_HEAD]
    for heading, (target, compute) in TARGETS.items():
        parts.append(f"## Operators on {heading}\n\nFor `{target}`.\n")
        parts.append(kernels_table(target, compute))
    return "\n".join([*parts, onnx_section(), torch_section()])


def kernels_table(target: str, compute: str) -> str:
    """Return the table of samples and dtypes for a target."""
    lines = [f"| Operator | {' | '.join(DTYPES)} |", "|---" * (len(DTYPES) + 1) + "|"]
    for sample in SAMPLES:
        cells = [entry(sample, dtype, target, compute) for dtype in DTYPES]
        lines.append(f"| {sample.name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def entry(sample: Sample, dtype: str, target: str, compute: str) -> str:
    """Return who computes a sample of a dtype, from the report of its compilation."""
    try:
        report = tvm_stitch.explain(
            _module(sample, dtype), target, tvm_stitch.StitchConfig(compute=compute, strict=False)
        )
    except Exception as error:  # of many kinds: operators refuse types
        reraise_fatal(error)
        return "–"
    notes = list(report.computed.values())
    if any(note.startswith("TVM") for note in notes):
        return "TVM"
    if any("cuBLASLt" in note or "cuDNN" in note for note in notes):
        return "library"
    if notes:
        return "template"
    return "stitched" if report.kernels else "TVM"


def _module(sample: Sample, dtype: str) -> Any:
    """Return a Relax module of one operator, whose operands are arguments."""
    builder = relax.BlockBuilder()
    operands = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, shape in enumerate(sample.shapes)]
    with builder.function("main", operands):
        with builder.dataflow():
            result = builder.emit_output(sample.build(*operands))
        builder.emit_func_output(result)
    return builder.get()


def onnx_section() -> str:
    """Return how many ONNX operators are imported."""
    from tvm_stitch.importers.onnx.converters import CONVERSIONS
    from tvm_stitch.importers.onnx.honoured.stock import STOCK

    own = sum(not domain for domain, _ in CONVERSIONS)
    contrib = sum(domain == "com.microsoft" for domain, _ in CONVERSIONS)
    stock = sum(("", name) not in CONVERSIONS for name in STOCK)
    return (
        "## Operators of ONNX\n\n"
        f"{own + stock} operators of ONNX's own domain are imported, {own} of them by converters of tvm_stitch"
        f" and {stock} by TVM's.\nSo are {contrib} operators of ONNX Runtime's domain."
        " [ONNX operators](../onnx-operators.md) lists them with their attributes.\n"
    )


def torch_section() -> str:
    """Return the lists of PyTorch's overloads that are imported and refused."""
    from tvm_stitch.importers.torch.complexes.table import complex_operators
    from tvm_stitch.importers.torch.converters import own_converters
    from tvm_stitch.importers.torch.importing.table import REFUSED, THEIRS

    own = {name.rpartition("::")[2] for name in own_converters()}
    parts = [
        "## Operators of PyTorch\n",
        "`torch.export` decomposes other operators into these overloads, or PyTorch's decompositions do. A converter of"
        " tvm_stitch\nimports the first list, TVM's the second. The third is for complex tensors.\n",
    ]
    for title, names in (
        ("Converters of tvm_stitch", own),
        ("Converters of TVM", THEIRS - own),
        ("Complex tensors", complex_operators()),
    ):
        parts.append(f"### {title}\n\n{_wrapped(sorted(names))}\n")
    parts.append("### Refused\n")
    for reason in dict.fromkeys(REFUSED.values()):
        refused = sorted(name for name, each in REFUSED.items() if each == reason)
        parts.append(f"{reason[0].upper()}{reason[1:]}:\n\n{_wrapped(refused)}\n")
    return "\n".join(parts)


def _wrapped(names: Sequence[str], width: int = 130) -> str:
    """Return names as code, on lines of at most ``width`` characters."""
    lines = [""]
    for name in names:
        text = f"`{name}`"
        if len(lines[-1]) + len(text) + 1 > width:
            lines.append("")
        lines[-1] += f" {text}" if lines[-1] else text
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
