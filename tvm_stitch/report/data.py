# SPDX-License-Identifier: Apache-2.0
"""The report as data: frozen, JSON-able, and all that its views need. Indices point into the tuples of a
ModelReport.

Sizes are in bytes, times in seconds. An unknown size is None. The size of a symbolic shape becomes text in JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..graph.sizes import Size, with_sizes_as_text

Bytes = Size | None
"""Number of bytes, or None if unknown."""

Kind = Literal["stitched", "compute", "library", "tvm"]
"""The author of a kernel.

- ``stitched``: this package, for memory-intensive operators.
- ``compute``: a template or TVM, around a compute-intensive operator.
- ``library``: a library.
- ``tvm``: TVM, for operators that no stitch op took.
"""


@dataclass(frozen=True)
class Spread:
    """The seconds of several calls: the median, and the quartiles ``low`` and ``high``, with half of the calls in
    between.
    """

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Value:
    """A tensor that a kernel reads or writes.

    ``shape`` is text such as ``"8, n"``. ``origin`` is the source of an operand: ``"parameter"``, ``"constant"`` or
    ``"kernel"``.
    """

    name: str
    shape: str
    dtype: str
    bytes: Bytes
    origin: str = "kernel"


@dataclass(frozen=True)
class SourceOperator:
    """An operator of the model before any rewriting.

    ``name`` is the variable of its result. ``source`` is the importer's name for it (an ONNX node, which names
    PyTorch's module path in a model exported from there), or "". ``operands`` are indices of operators. ``kernels``
    are the calls that compute it: none for a view, several if it is computed repeatedly.
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
        """The operator in a word: ``"softmax"`` for ``"nn.softmax"``."""
        return self.operator.rpartition(".")[2]

    @property
    def label(self) -> str:
        """The name to show: the name in the model's own format if there is one."""
        return self.source or f"{self.operator} {self.name}"


@dataclass(frozen=True)
class KernelCall:
    """One call of a kernel, in the order of a run.

    ``function`` names the kernel, which equal kernels share. ``operators`` are the indices of the source operators
    that it computes. ``note`` says what computes it, or why no stitch op took it. ``bytes_least`` counts each
    operand and each result once. ``bytes_read`` and ``bytes_written`` are the traffic of its plan, or None without
    a plan. ``seconds`` is the cost model's estimate, of the memory alone, and None for a symbolic shape.
    ``measured`` is the measured time, if any. ``caller`` is the function of the module that calls it.
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
        """The traffic of the plan, or the least traffic without a plan."""
        moved = add_sizes(self.bytes_read, self.bytes_written)
        return self.bytes_least if moved is None else moved


@dataclass(frozen=True)
class StockCall:
    """One call of a kernel of TVM's own pipeline, in the order of a run.

    ``kind`` is never ``"stitched"``. ``bytes`` counts each operand and each result once. ``seconds`` and
    ``measured`` are as in :class:`KernelCall`.
    """

    function: str
    kind: Kind
    bytes: Bytes
    seconds: float | None
    measured: Spread | None = None


@dataclass(frozen=True)
class Reason:
    """A reason why two operators are not in one kernel, its meaning, and advice.

    ``producer`` and ``consumer`` are the functions of the two calls.
    """

    producer: str
    consumer: str
    text: str
    meaning: str
    advice: str


@dataclass(frozen=True)
class KernelEdge:
    """Values that one kernel call passes to another through memory, and the reasons why the two are not one kernel."""

    producer: int
    consumer: int
    values: tuple[Value, ...]
    reasons: tuple[Reason, ...]


@dataclass(frozen=True)
class Repeat:
    """``count`` consecutive repetitions of the same ``length`` kernels, from the kernel call ``first`` on."""

    first: int
    length: int
    count: int


@dataclass(frozen=True)
class Totals:
    """Launches and traffic of one call of a model. For a module with several functions, one call of each is added
    up.

    ``compute`` of the ``kernels`` hold a compute-intensive operator or belong to a library. They move
    ``bytes_compute`` of the ``bytes``. Every operand and result of a kernel counts once, or as often as its plan
    moves it. ``measured`` is the measured time of a whole call, until the device is done, if any.
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
    """The report of a model: kernel calls in order, the edges between them, and the source operators.

    ``target`` is a few words, ``target_full`` TVM's text. ``plans`` holds the plan of each stitched kernel by
    function (:class:`tvm_stitch.report.kernel.Kernel` as plain data), and ``codes`` the known sources. ``left``
    holds the calls that no stitch op took, with the reason, and ``boundaries`` all refused merges. ``stock`` and
    ``stock_kernels`` describe the same model compiled by TVM's own pipeline. They are None and empty if that was
    not requested, or if TVM fails. ``measured_on`` says where times were measured, and how often. It is "" without
    measurements.
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
        """Return plain data for ``json.dumps``."""
        data: dict[str, Any] = with_sizes_as_text(dataclasses.asdict(self))
        return data


def add_sizes(*sizes: Bytes) -> Bytes:
    """Return the sum of sizes, or None if one is unknown."""
    known = [s for s in sizes if s is not None]
    return sum(known) if len(known) == len(sizes) else None
