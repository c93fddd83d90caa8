# SPDX-License-Identifier: Apache-2.0
"""Set up all tests: interrupts arrive, and runs with ONNX node cases print their table at the end."""

from __future__ import annotations

import gc
import inspect
import linecache
import logging
import os
import signal
import sys
import typing
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest

_COLUMNS = ("passed", "stock fails too", "not imported", "ours fails", "stitch ops", "left to TVM")


os.environ.setdefault("TVM_STITCH_CUBLASLT", "none")  # what is expected of CUDA targets holds on any machine
os.environ.setdefault(
    "TVM_STITCH_GRAPH_CACHE", "0"
)  # tests compile graphs, and leave nothing in the user's folders

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in jobs that a shell starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _stack(context: int = 1) -> list[inspect.FrameInfo]:
    """Return ``inspect.stack()`` with the source lines of the innermost frames alone.

    TVMScript's decorators ask for the stack, and read the line of its third frame. Python would search all modules for
    the sources of pytest's frames too, which took half of the collection.
    """
    found: list[inspect.FrameInfo] = []
    frame = sys._getframe(1)
    while frame is not None:
        name, line = frame.f_code.co_filename, frame.f_lineno
        source = [linecache.getline(name, line, frame.f_globals)] if context and len(found) < 4 else None
        found.append(
            inspect.FrameInfo(frame, name, line, frame.f_code.co_name, source, None if source is None else 0)
        )
        frame = frame.f_back  # type: ignore[assignment]
    return found


inspect.stack = _stack


def pytest_collectstart() -> None:
    """Collect no garbage before the tests are collected: modules and tests live to the end."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what lives to the end: thousands of tests and modules.

    It also passes over the rest less often: one pass over the modules that tests import takes 0.1 s of a core.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5 * gc.get_threshold()[0], *gc.get_threshold()[1:])
    gc.enable()
    if "torch" in sys.modules:
        _ask_pytorch_once()
        _annotate_pytorch_once()


def _ask_pytorch_once() -> None:
    """Let PyTorch list its composite operators when their number has changed, and not in every decomposition."""
    import torch
    from torch._export import utils

    every_time = utils._materialize_cpp_cia_ops
    listed = lru_cache(maxsize=1)(lambda registered: every_time())
    key = "CompositeImplicitAutograd"
    utils._materialize_cpp_cia_ops = lambda: listed(
        len(torch._C._dispatch_get_registrations_for_dispatch_key(key))
    )


def _annotate_pytorch_once() -> None:
    """Let a decomposition evaluate the annotations of a nested function once, and not ten thousand times.

    PyTorch registers kernels of all its composite operators by that function. ``typing`` keeps what was subscripted.
    """
    import torch._ops

    torch._ops.Callable = typing.Callable  # type: ignore[attr-defined]


def _logging() -> tuple[Any, ...]:
    """Return the settings that decide which of the package's warnings are shown, and where."""
    logger = logging.getLogger("tvm_stitch")
    return logging.root.manager.disable, logger.disabled, logger.level, logger.propagate, len(logger.handlers)


@pytest.fixture(autouse=True)
def logging_is_left_as_it_was() -> Iterator[None]:
    """Tests share a process: what one hides of warnings, another would not find."""
    before = _logging()
    yield
    assert _logging() == before


@pytest.fixture(autouse=True)
def kernels_are_lowered_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the pipeline lower no kernel as a test, which takes half of a compile.

    A kernel that TVM cannot lower then fails its test, and is not left to TVM. Tests of what is left to TVM have the
    mark ``checks_kernels``.
    """
    pipeline = sys.modules.get("tvm_stitch.relax.pipeline")
    if pipeline is not None and request.node.get_closest_marker("checks_kernels") is None:
        monkeypatch.setattr(pipeline, "CHECKS_KERNELS", False)


@pytest.fixture
def children_without_torch(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processes that a test starts import TVM without PyTorch: in 0.8 s of a core, and not in 2.5."""
    folder = tmp_path_factory.mktemp("without_torch")
    (folder / "torch.py").write_text("raise ImportError('this process needs no PyTorch')\n")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how many ONNX node cases passed, by family. The counts reach here from all test processes."""
    counts: Counter[tuple[str, str]] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) != "call":
                continue
            for key, value in report.user_properties:
                if key == "onnx_node":
                    family, outcome, stitched, declined = value
                    counts[family, outcome] += 1
                    counts[family, "stitch ops"] += stitched
                    counts[family, "left to TVM"] += declined
    if not counts:
        return
    write = terminalreporter.write_line
    terminalreporter.section("ONNX node cases on llvm: stitched beside stock TVM")
    write(f"{'family':24}" + "".join(f"{column:>17}" for column in _COLUMNS))
    families = sorted({family for family, _ in counts})
    for family in families:
        write(f"{family:24}" + "".join(f"{counts[family, column]:17d}" for column in _COLUMNS))
    totals = (sum(counts[family, column] for family in families) for column in _COLUMNS)
    write(f"{'total':24}" + "".join(f"{total:17d}" for total in totals))
