# SPDX-License-Identifier: Apache-2.0
"""The report as data: frozen, JSON-able, and all that its views know. Indices point into the tuples of a ModelReport.

Sizes are in bytes, times in seconds. A size that is unknown is None; one of a symbolic shape becomes text in JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..graph.sizes import Size, with_sizes_as_text

Bytes = Size | None
"""How many; None, where nothing is known."""

Kind = Literal["stitched", "compute", "library", "tvm"]
"""Who wrote a kernel: tvm_stitch, for memory-intensive operators; a template or TVM, around a compute-intensive one; a
library; TVM, for what no stitch op took."""


@dataclass(frozen=True)
class Spread:
    """The seconds of several calls: their median, and the quartiles ``low`` and ``high``, half of them between."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Value:
    """A tensor that a kernel reads or writes. ``shape`` is text such as ``"8, n"``; ``origin`` says where an operand
    comes from: ``"parameter"``, ``"constant"`` or ``"kernel"``."""

    name: str
    shape: str
    dtype: str
    bytes: Bytes
    origin: str = "kernel"


@dataclass(frozen=True)
class SourceOperator:
    """An operator of the model as it was given.

    ``name`` is the variable that holds its result, ``source`` what the importer calls it (an ONNX node, which names
    PyTorch's module path in a model exported from there), or "". ``operands`` are indices of operators. ``kernels`` are
    the calls that compute it: none for a view, several where it is computed again.
    """

    name: str
    operator: str
    source: str
    shape: str
    dtype: str
    operands: tuple[int, ...]
    kernels: tuple[int, ...]

    @property
    def kind(self) -> str:
        """Its operator in a word: ``"softmax"`` for ``"nn.softmax"``."""
        return self.operator.rpartition(".")[2]

    @property
    def label(self) -> str:
        """What to call it: its name in the model's own format where there is one."""
        return self.source or f"{self.operator} {self.name}"


@dataclass(frozen=True)
class KernelCall:
    """One call of a kernel, in the order of a run.

    ``function`` names the kernel; equal kernels share one. ``operators`` are the indices of the source operators that
    it computes. ``note`` says what computes it, or why no stitch op took it. ``bytes_least`` counts each operand and
    each result once; ``bytes_read`` and ``bytes_written`` are what its plan moves, or None without one. ``seconds`` is
    the cost model's estimate, of the memory alone: None where a shape is symbolic. ``measured`` is what the call took,
    where it was measured. ``caller`` is the function of the module that calls it.
    """

    function: str
    kind: Kind
    operators: tuple[int, ...]
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    bytes_read: Bytes
    bytes_written: Bytes
    bytes_least: Bytes
    seconds: float | None
    note: str = ""
    measured: Spread | None = None
    caller: str = "main"

    @property
    def bytes_moved(self) -> Bytes:
        """What the plan moves, or the least where there is none."""
        moved = add_sizes(self.bytes_read, self.bytes_written)
        return self.bytes_least if moved is None else moved


@dataclass(frozen=True)
class StockCall:
    """One call of a kernel of TVM's own pipeline, in the order of a run.

    ``kind`` is never ``"stitched"``. ``bytes`` counts each operand and each result once; ``seconds`` and ``measured``
    are as in :class:`KernelCall`.
    """

    function: str
    kind: Kind
    bytes: Bytes
    seconds: float | None
    measured: Spread | None = None


@dataclass(frozen=True)
class Reason:
    """Why two operators are not in one kernel, what that means, and what to do about it.

    ``producer`` and ``consumer`` are the functions of the calls in question.
    """

    producer: str
    consumer: str
    text: str
    meaning: str
    advice: str


@dataclass(frozen=True)
class KernelEdge:
    """Values that go from one kernel call to another through memory, and why these two are not one kernel."""

    producer: int
    consumer: int
    values: tuple[Value, ...]
    reasons: tuple[Reason, ...]


@dataclass(frozen=True)
class Repeat:
    """``count`` times the same ``length`` kernels behind each other, from the kernel call ``first`` on."""

    first: int
    length: int
    count: int


@dataclass(frozen=True)
class Totals:
    """What one call of a model launches and moves; of a module with several functions, one call of each together.

    ``compute`` of the ``kernels`` hold a compute-intensive operator or are a library's; they move ``bytes_compute`` of
    the ``bytes``, of which every operand and result of a kernel counts once, or as often as its plan moves it.
    ``measured`` is what a whole call takes, from its start until the device is done, where it was measured.
    """

    kernels: int
    compute: int
    bytes: Bytes
    bytes_compute: Bytes = 0
    measured: Spread | None = None

    @property
    def memory(self) -> int:
        """Kernels without a compute-intensive operator."""
        return self.kernels - self.compute


@dataclass(frozen=True)
class Code:
    """The source of a kernel. ``language`` is "TIR" or "CUDA C"."""

    language: str
    text: str


@dataclass(frozen=True)
class ModelReport:
    """All that is told of a model: kernel calls in order, the edges between them, and the operators they come from.

    ``target`` is a few words, ``target_full`` what TVM calls it. ``plans`` gives by function what the plan of a
    stitched kernel says (:class:`tvm_stitch.report.kernel.Kernel` as plain data), ``codes`` the sources that are known.
    ``left`` are the calls that no stitch op took, with the reason, ``boundaries`` all merges that were refused.
    ``stock`` is what TVM's own pipeline makes of the same model, and ``stock_kernels`` are its calls: None and empty
    where that was not asked, or where TVM does not compile it. ``measured_on`` says where times were measured, and how
    often: "" where they were not.
    """

    target: str
    target_full: str
    device: str
    kernels: tuple[KernelCall, ...]
    edges: tuple[KernelEdge, ...]
    operators: tuple[SourceOperator, ...]
    repeats: tuple[Repeat, ...]
    plans: Mapping[str, Mapping[str, Any]]
    left: Mapping[str, str]
    boundaries: tuple[Reason, ...]
    stitched: Totals
    stock: Totals | None = None
    codes: Mapping[str, Code] = field(default_factory=dict)
    stock_kernels: tuple[StockCall, ...] = ()
    measured_on: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``json.dumps`` takes it."""
        found: dict[str, Any] = with_sizes_as_text(dataclasses.asdict(self))
        return found


def add_sizes(*sizes: Bytes) -> Bytes:
    """Return the sum of sizes; None where one is unknown."""
    known = [s for s in sizes if s is not None]
    return sum(known) if len(known) == len(sizes) else None
