# SPDX-License-Identifier: Apache-2.0
"""One architecture through the importers: built, exported, imported, compiled and compared.

A child of ``architectures.py`` runs this file. It reads requests as lines of JSON. It writes lines before and behind
each way into Relax, so that its parent knows which one ended the process.
"""

from __future__ import annotations

import copy
import json
import logging
import resource
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import tvm  # noqa: E402
from families.spec import Architecture, OnnxModel, arrays, tensors  # noqa: E402
from models.spec import _import_torchvision, _vary  # noqa: E402
from tvm import relax  # noqa: E402

import tvm_stitch  # noqa: E402
from tvm_stitch.importers.onnx.honoured.check import UnsupportedModel  # noqa: E402
from tvm_stitch.importers.onnx.load import from_onnx  # noqa: E402
from tvm_stitch.importers.torch import Unsupported, from_exported_program  # noqa: E402
from tvm_stitch.support.failures import error_text, reraise_fatal  # noqa: E402

TOLERANCE = 2e-4
"""The largest error of a float32 result, as a share of the largest number of this result."""
EAGER = 8.0
"""Larger errors are right too, up to this many times PyTorch's own error in float32."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one way: a word, its reason, and seconds of processor time by stage."""

    word: str
    reason: str = ""
    seconds: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Case:
    """Inputs as arrays, with the right results: PyTorch's in float32 and in float64, or ONNX Runtime's."""

    inputs: list[np.ndarray]
    narrow: list[np.ndarray]
    wide: list[np.ndarray] | None


class Built:
    """An architecture with its program and the results that it should have.

    Args:
        architecture: what to build.
        dynamic: whether its symbolic dimension is symbolic in the program.
    """

    def __init__(self, architecture: Architecture, dynamic: bool):
        torch.manual_seed(0)
        if architecture.maker != "torch":
            _import_torchvision()
        with torch.no_grad():
            model = architecture.build()
            if isinstance(model, OnnxModel):
                self.proto: Any = model.proto
                missing = set(model.notes) - {node.op_type for node in model.proto.graph.node}
                if missing:
                    raise ValueError(f"ONNX Runtime's tool made no {', '.join(sorted(missing))}")
                self.program: Any = None
                self.cases = [_of_runtime(model.proto, arrays(architecture.inputs(architecture.sizes[0])))]
                return
            model = model.eval().requires_grad_(False)
            _vary(model)
            given = [architecture.inputs(size) for size in architecture.sizes[: 1 + dynamic]]
            self.cases = [of_torch(model, each) for each in given]
            self.program = torch.export.export(
                model, given[0], dynamic_shapes=_shapes(model, architecture, dynamic)
            )
            self.proto = None

    def onnx(self) -> Any:
        """Return the ONNX file of the program."""
        if self.proto is None:
            exported = torch.onnx.export(self.program, verbose=False)
            assert exported is not None
            self.proto = exported.model_proto
        return self.proto


def _shapes(model: Any, architecture: Architecture, dynamic: bool) -> Any:
    """Return the dynamic axes of a program, as ``torch.export`` takes them."""
    if not dynamic:
        return None
    symbolic = torch.export.Dim.DYNAMIC
    each = tuple(dict.fromkeys(axes, symbolic) or None for axes in architecture.axes)
    variadic = any(p.kind == p.VAR_POSITIONAL for p in _parameters(model))
    return (each,) if variadic else each


def _parameters(model: Any) -> list[Any]:
    import inspect

    return list(inspect.signature(model.forward).parameters.values())[:1]


def of_torch(model: Any, given: Sequence[torch.Tensor]) -> Case:
    """Return the results of PyTorch. Models that draw random numbers draw those of the seed 0."""
    torch.manual_seed(0)
    narrow = [x.numpy() for x in tensors(copy.deepcopy(model)(*given))]
    wide = None
    try:
        doubled = [x.double() if x.is_floating_point() else x for x in given]
        torch.manual_seed(0)
        results = [x.numpy() for x in tensors(copy.deepcopy(model).double()(*doubled))]
        if [x.shape for x in results] == [x.shape for x in narrow]:
            wide = results
    except Exception as error:  # a model with a type of its own has no results in float64
        reraise_fatal(error)
    return Case(arrays(tuple(given)), narrow, wide)


def _of_runtime(proto: Any, given: list[np.ndarray]) -> Case:
    import onnxruntime

    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return Case(given, session.run(None, dict(zip(names, given, strict=True))), None)


def outcomes(built: Built, paths: Sequence[str], stock: bool) -> Iterator[tuple[str, Outcome | None]]:
    """Yield each way with nothing before it runs, and with its outcome behind that."""
    for path in paths:
        yield path, None
        yield path, _outcome(built, path, stock)


def _outcome(built: Built, path: str, stock: bool) -> Outcome:
    if path == "onnx":
        try:
            built.onnx()
        except Exception as error:
            reraise_fatal(error)
            return Outcome("not exported", f"torch.onnx.export: {_first(error)}")
    start = time.process_time()
    try:
        mod = from_exported_program(built.program) if path == "torch" else from_onnx(built.onnx())
    except (Unsupported, UnsupportedModel) as error:
        if path == "onnx" and (fault := _fault_of_runtime(built)):
            return Outcome("not exported", f"ONNX Runtime does not run the file: {fault}")
        return Outcome("refused", error_text(error))
    except Exception as error:
        reraise_fatal(error)
        return Outcome("failed", f"import: {type(error).__name__}: {_first(error)}")
    imported = time.process_time()
    try:
        executable = tvm_stitch.compile(mod, "llvm")
    except Exception as error:
        reraise_fatal(error)
        return Outcome("failed", f"compile: {type(error).__name__}: {_first(error)}")
    seconds = [("import", imported - start), ("compile", time.process_time() - imported)]
    if stock:
        seconds += _stock(mod)
    try:
        vm = relax.VirtualMachine(executable, tvm.cpu())
        runs = [_run(vm, case.inputs) for case in built.cases]
    except Exception as error:
        reraise_fatal(error)
        return Outcome("failed", f"run: {type(error).__name__}: {_first(error)}", tuple(seconds))
    for case, results in zip(built.cases, runs):
        if reason := difference(results, case):
            if path == "onnx" and not difference(results, _of_runtime(built.onnx(), case.inputs)):
                return Outcome(
                    "not exported", f"ONNX Runtime has tvm_stitch's results, not PyTorch's: {reason}"
                )
            return Outcome("wrong", reason, tuple(seconds))
    return Outcome("right", "", tuple(seconds))


def _fault_of_runtime(built: Built) -> str:
    """Return the error of ONNX Runtime for a file, or nothing if it runs it."""
    try:
        _of_runtime(built.onnx(), built.cases[0].inputs)
    except Exception as error:
        reraise_fatal(error)
        return _first(error)
    return ""


def _stock(mod: tvm.IRModule) -> list[tuple[str, float]]:
    """Return the seconds of TVM's own pipeline, or nothing if it does not compile the module."""
    start = time.process_time()
    try:
        tvm.compile(mod, tvm.target.Target("llvm"))
    except Exception as error:
        reraise_fatal(error)
        return []
    return [("stock", time.process_time() - start)]


def _run(vm: Any, given: Sequence[np.ndarray]) -> list[np.ndarray]:
    results = vm["main"](*map(tvm.runtime.tensor, given))
    return [results.numpy()] if hasattr(results, "numpy") else [each.numpy() for each in results]


def _first(error: Exception) -> str:
    """Return the beginning and the end of an error's text."""
    text = error_text(error)
    return text if len(text) < 500 else f"{text[:250]} ... {text[-240:]}"


def difference(results: Sequence[np.ndarray], case: Case) -> str:
    """Return how results differ from the right ones, or nothing. Further results are changed buffers."""
    if len(results) < len(case.narrow):
        return f"{len(results)} results instead of {len(case.narrow)}"
    for at, (got, narrow) in enumerate(zip(results, case.narrow)):
        if got.dtype != narrow.dtype or got.shape != narrow.shape:
            return f"result {at}: {got.dtype}{list(got.shape)} instead of {narrow.dtype}{list(narrow.shape)}"
        wide = case.wide[at] if case.wide is not None else narrow
        if not (_close(got, narrow, wide) or _close(got, narrow, narrow)):
            return f"result {at}: {_described(got, wide)}"
    return ""


def _close(got: np.ndarray, narrow: np.ndarray, wide: np.ndarray) -> bool:
    if got.dtype.kind != "f":
        return bool(np.array_equal(got, wide.astype(got.dtype)))
    if not got.size:
        return True
    with np.errstate(all="ignore"):
        finite = np.isfinite(wide)
        if not np.array_equal(np.isnan(got), np.isnan(wide)) or not np.array_equal(
            got[~finite], wide[~finite], True
        ):
            return False
        scale = float(np.abs(wide[finite]).max(initial=0.0))
        own = float(np.abs(narrow - wide)[finite].max(initial=0.0))
        error = float(np.abs(got - wide)[finite].max(initial=0.0))
    return error <= max(TOLERANCE * scale, EAGER * own)


def _described(got: np.ndarray, wide: np.ndarray) -> str:
    if got.dtype.kind != "f":
        return f"{int((got != wide).sum())} of {got.size} numbers of {got.dtype} differ"
    with np.errstate(all="ignore"):
        error = np.abs(got.astype("float64") - wide)
        largest, scale = float(np.nanmax(error)), float(np.nanmax(np.abs(wide)))
        return f"error {largest:.3g} of {scale:.3g}, NaN {int(np.isnan(got).sum())}"


def main() -> None:
    """Read requests from standard input until it ends."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    memory = int(float(sys.argv[1]) * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    from families import registry

    for line in sys.stdin:
        name, dynamic, paths, stock = json.loads(line)
        print(json.dumps(["begin", "build"]), flush=True)
        try:
            built = Built(registry.ARCHITECTURES[name], dynamic)
        except ImportError as error:
            built, outcome = None, Outcome("absent", _first(error))
        except Exception as error:
            reraise_fatal(error)
            built, outcome = None, Outcome("not exported", f"{type(error).__name__}: {_first(error)}")
        if built is None:
            for path in paths:
                print(json.dumps(["begin", path]), flush=True)
                print(json.dumps(["end", path, outcome.word, outcome.reason, []]), flush=True)
        else:
            for path, said in outcomes(built, paths, stock):
                ended = [] if said is None else [said.word, said.reason, said.seconds]
                print(json.dumps(["begin" if said is None else "end", path, *ended]), flush=True)
        built = None
        print(json.dumps(["done"]), flush=True)


if __name__ == "__main__":
    main()
