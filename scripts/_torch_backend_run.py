# SPDX-License-Identifier: Apache-2.0
"""One model compiled by ``torch.compile``, or run as it is: compared with float64, and timed.

A child of ``torch_backend.py`` runs this file. It reads requests as lines of JSON, and answers each with one line.
"""

from __future__ import annotations

import json
import logging
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tvm_stitch.support.cores import sleep_soon  # noqa: E402

sleep_soon()  # before PyTorch is imported

import torch  # noqa: E402
from _architecture_run import Case, difference, of_torch  # noqa: E402
from families.spec import Architecture, tensors  # noqa: E402
from models.errors import relative_error  # noqa: E402
from models.spec import _import_torchvision, _vary  # noqa: E402

import tvm_stitch  # noqa: E402
from tvm_stitch.front import dynamo  # noqa: E402
from tvm_stitch.support.failures import error_text, reraise_fatal  # noqa: E402

MOST_CALLS = 200


class Counted:
    """The backend, which counts the graphs that it got, and those that PyTorch runs."""

    def __init__(self) -> None:
        self.graphs = 0
        self.left: list[str] = []
        outer = self

        class Heard(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                outer.left.append(record.getMessage())

        logger = logging.getLogger(dynamo.__name__)
        logger.handlers, logger.propagate = [Heard(logging.WARNING)], False

    def __call__(self, graph: Any, inputs: Any, *, options: Any = None) -> Any:
        self.graphs += 1
        return tvm_stitch.torch_backend(graph, inputs, options=options)


def measured(architecture: Architecture, contender: str, seconds: float) -> dict[str, Any]:
    """Return the outcome of a model by a contender, as fields of ``torch_backend.Result``.

    Args:
        architecture: the model.
        contender: one of ``torch_backend.CONTENDERS``.
        seconds: time of timed calls.
    """
    torch._dynamo.reset()
    torch._dynamo.config.allow_rnn = True  # else PyTorch traces no recurrent layer
    torch.manual_seed(0)
    if architecture.maker != "torch":
        _import_torchvision()
    model = architecture.build().eval().requires_grad_(False)
    _vary(model)
    given = architecture.inputs(architecture.sizes[0])
    case = of_torch(model, given)
    counted = Counted()
    call = _compiled(model, contender, counted)
    start = _processor_seconds()
    torch.manual_seed(0)  # as of_torch sets it
    try:
        found = [x.numpy() for x in tensors(call(*given))]
    except Exception as error:
        reraise_fatal(error)
        return {"outcome": "failed", "reason": f"{type(error).__name__}: {error_text(error)}"}
    first = _processor_seconds() - start
    reason = difference(found, case) or "; ".join(dict.fromkeys(counted.left))
    return {
        "outcome": "wrong" if difference(found, case) else "right",
        "reason": reason,
        "graphs": counted.graphs,
        "left": len(counted.left),
        "first_s": first,
        "call_s": _median_call(lambda: call(*given), seconds),
        "error": _error(found, case),
    }


def _compiled(model: Any, contender: str, counted: Counted) -> Callable[..., Any]:
    """Return a model as a contender calls it."""
    if contender == "eager":
        return lambda *given: model(*given)
    if contender == "inductor":
        return torch.compile(model)
    options = {"cache": False, "constants": contender == "constants"}
    return torch.compile(model, backend=counted, options=options)


def _error(found: list[Any], case: Case) -> float | None:
    """Return the error relative to float64 of all floating results, or None if the model does not run in float64."""
    if case.wide is None:
        return None
    pairs = [(got, want) for got, want in zip(found, case.wide) if got.dtype.kind == "f"]
    error = relative_error([got for got, _ in pairs], [want for _, want in pairs])
    return error if error < float("inf") else None


def _processor_seconds() -> float:
    """Return the processor time of this process and of those that it has ended, such as compilers."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def _median_call(call: Callable[[], Any], seconds: float) -> float:
    spent: list[float] = []
    end = time.perf_counter() + seconds
    while len(spent) < 3 or (time.perf_counter() < end and len(spent) < MOST_CALLS):
        start = time.perf_counter()
        call()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)


def main() -> None:
    """Read requests from standard input until it ends."""
    warnings.simplefilter("ignore")
    from families import registry

    for line in sys.stdin:
        name, contender, seconds = json.loads(line)
        try:
            with torch.no_grad():
                answer = measured(registry.ARCHITECTURES[name], contender, seconds)
        except ImportError as error:
            answer = {"outcome": "absent", "reason": error_text(error)}
        except Exception as error:
            reraise_fatal(error)
            answer = {"outcome": "not built", "reason": f"{type(error).__name__}: {error_text(error)}"}
        print(json.dumps([answer]), flush=True)


if __name__ == "__main__":
    main()
