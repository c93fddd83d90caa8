# SPDX-License-Identifier: Apache-2.0
"""Import and compile a model in a process of its own, by TVM alone or by tvm_stitch, and print the seconds as JSON.

Both sides first compile a small module, so that loading libraries and Python modules does not count. The model is
exported before the clock starts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)

SIDES = ("TVM", "stitched")
PARTS = ("import", "compile")


def seconds(side: str, name: str, target: str) -> dict[str, Any]:
    """Return the processor seconds ``import`` and ``compile`` of a side in a new process, or its ``error``."""
    command = [sys.executable, str(Path(__file__).resolve()), side, name, target]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = child.stdout.splitlines()
    if child.returncode != 0 or not lines:
        said = [line for line in child.stderr.splitlines() if line.strip()]
        return {"error": said[-1][:200] if said else f"exit code {child.returncode}"}
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def _importer(side: str, given: Any) -> Callable[[Any], Any]:
    import onnx

    if isinstance(given, onnx.ModelProto):
        if side == "TVM":
            from tvm.relax.frontend.onnx import from_onnx as by_tvm

            return partial(by_tvm, keep_params_in_input=False)
        from tvm_stitch.importers.onnx.load import from_onnx

        return from_onnx
    if side == "TVM":
        from tvm.relax.frontend.torch import from_exported_program as program_by_tvm

        return program_by_tvm
    from tvm_stitch.importers.torch import from_exported_program

    return from_exported_program


def _compile(side: str, mod: Any, target: Any) -> None:
    import tvm

    import tvm_stitch
    from tvm_stitch.repairs.legalize.take import stock_pipeline

    if side == "TVM":
        tvm.compile(mod, target, relax_pipeline=stock_pipeline(target))
    else:
        tvm_stitch.compile(mod, target)


def _small() -> Any:
    from tvm import relax
    from tvm.relax import op

    builder = relax.BlockBuilder()
    x, w = (relax.Var(name, relax.TensorType((64, 64), "float32")) for name in "xw")
    with builder.function("main", [x, w]):
        with builder.dataflow():
            result = builder.emit_output(op.nn.softmax(builder.emit(op.matmul(x, w))))
        builder.emit_func_output(result)
    return builder.get()


def main(side: str, name: str, kind: str) -> int:
    """Run one side and return its exit code."""
    from _compile_models import given

    from stitch_testing.warned import warned
    from tvm_stitch.target import resolve_target

    target = resolve_target(kind)
    with warned():
        model = given(name)
        _compile(side, _small(), target)
        imported = _importer(side, model)
        begin = time.process_time()
        mod = imported(model)
        between = time.process_time()
        _compile(side, mod, target)
        end = time.process_time()
    print(json.dumps({"import": between - begin, "compile": end - between}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
