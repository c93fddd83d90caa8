# SPDX-License-Identifier: Apache-2.0
"""The report of what stitching does to a module, as plain data with its views."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..graph.sizes import with_sizes_as_text
from .bare import bare_report
from .compare.difference import Difference, difference
from .compare.side import read, save, side_of, stock_side_of
from .compare.views import difference_page, difference_text, plain
from .data import ModelReport, Reason
from .html import html_page
from .kernel import Kernel
from .plan_text import kernel_lines
from .reasons import explained
from .summary import summary
from .times import time_lines, times_of
from .trace import trace
from .why import why
from .words import count_of

if TYPE_CHECKING:
    import numpy as np


STOCK = "stock"
"""The name of TVM's own pipeline, for :meth:`Report.against`."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """The difference of two reports of one model. It prints as text."""

    difference: Difference

    def __str__(self) -> str:
        return difference_text(self.difference)

    __repr__ = __str__

    def to_html(self, title: str = "Model") -> str:
        """Return the difference as a single HTML file.

        Args:
            title: name of the model, any text.
        """
        return difference_page(self.difference, title)

    def to_dict(self) -> dict[str, Any]:
        """Return the difference as JSON-able data."""
        return plain(self.difference)


@dataclass(repr=False)
class Report:
    """The effect of stitching on a module, for a target. It prints as a summary, and shows as a page in a notebook.

    ``left`` names functions left to TVM with the reason, and ``boundaries`` the edges between kernels with theirs.
    ``computed`` says what computes each compute-intensive operator, and why, for targets with templates. ``device``
    is the device model of the plans, with its multiprocessors or cores. ``threads`` names the pool in which parallel
    regions of CPU code run, with the reason if it is TVM's. ``model`` has all calls of kernels, and the
    model's operators behind them.
    """

    target: str
    kernels: list[Kernel] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    boundaries: list[dict[str, str]] = field(default_factory=list)
    device: str = ""
    computed: dict[str, str] = field(default_factory=dict)
    model: ModelReport | None = None
    complete: Callable[[ModelReport], ModelReport] | None = field(default=None, repr=False, compare=False)
    time: Callable[..., ModelReport] | None = field(default=None, repr=False, compare=False)
    threads: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-able data. Measured times are under ``"measured"``, if there are any."""
        model = self.model
        times = {"measured": times_of(model)} if model is not None and model.measured_on else {}
        return {
            "target": self.target,
            "device": self.device,
            **({"threads": self.threads} if self.threads else {}),
            "kernels": [with_sizes_as_text(vars(k)) for k in self.kernels],
            "computed": self.computed,
            "left": self.left,
            "boundaries": self.boundaries,
            **times,
        }

    def measure(self, inputs: Sequence[np.ndarray] | None = None, repeats: int = 10, seed: int = 0) -> Report:
        """Return a new report with measured times.

        The model is compiled and run on this machine, alternately with stitching and by TVM's own pipeline. Every
        kernel is timed.

        Args:
            inputs: arrays for ``main`` (or the only function), in order, on the host. By default, random arrays of
                static shapes are made.
            repeats: timed calls of each.
            seed: seed of random inputs.

        Returns:
            A new report, whose text, page, timeline and data have the times.

        Raises:
            RuntimeError: if this machine has no such device, or an older CPU than the target's.
            ValueError: for symbolic shapes without inputs, for a wrong number of inputs, or a wrong shape or dtype.
                Also for several functions without a ``main``, less than one call, and a report without a model.
        """
        if repeats < 1:
            raise ValueError(f"repeats must be at least 1, got {repeats}")
        if self.time is None:
            raise ValueError(
                "this report knows plans, but no model to run; tvm_stitch.explain(mod, target) gives one"
            )
        model = self.time(self.completed(), inputs=inputs, repeats=repeats, seed=seed)
        return replace(self, model=model, complete=None)

    def __str__(self) -> str:
        device = f"{self.device}; threads: {self.threads}" if self.device and self.threads else self.device
        return summary(self._model(), device, self.computed)

    __repr__ = __str__  # shown by an interactive session

    def verbose(self) -> str:
        """Return the full plan of every kernel, and every boundary, as text."""
        lines = [f"{count_of(len(self.kernels), 'stitch op')} for {self.target}"]
        if self.device:
            lines.append(f"planned for {self.device}")
        if self.threads:
            lines.append(f"threads: {self.threads}")
        for k in self.kernels:
            lines += ["", *kernel_lines(k)]
        if self.computed:
            lines += ["", "Compute-intensive operators:"] + [
                f"  {n}: {how}" for n, how in self.computed.items()
            ]
        if self.left:
            lines += ["", "Left to TVM:"] + [f"  {n}: {r}" for n, r in self.left.items()]
        if self.boundaries:
            lines += ["", "Boundaries:"]
            lines += [f"  {b['producer']} | {b['consumer']}: {b['reason']}" for b in self.boundaries]
        if self.model is not None:
            lines += time_lines(self.model)
        return "\n".join(lines)

    def why(self, first: str, second: str) -> str:
        """Return why two operators, or two kernels, are or are not one kernel, and advice.

        Args:
            first: a name of the model's own format (an ONNX node), of a variable, of an operator, or of a kernel.
            second: another one.

        Raises:
            TypeError: for names that are not strings.
            ValueError: if nothing has such a name.
        """
        for name in (first, second):
            if not isinstance(name, str):
                raise TypeError(f"a name must be a string, not {name!r}")
            if not name:
                raise ValueError("a name is empty; give the name of an operator or a kernel")
        return why(self._model(), first, second)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report to a file, for a comparison with another version or configuration.

        Args:
            path: the file.
        """
        save(self.completed().to_dict(), Path(path))

    def against(self, other: Report | str | os.PathLike[str]) -> Comparison:
        """Return the difference to another report of the same model, as text and as a page.

        Args:
            other: a report, the path of a saved one, or ``"stock"`` for TVM's own pipeline.

        Raises:
            OSError: if the file cannot be read.
            ValueError: if it is not a saved report, or TVM's own pipeline does not compile the model.
        """
        own = self.completed().to_dict()
        if isinstance(other, Report):
            before = side_of(other.completed().to_dict(), "before")
        else:
            before = stock_side_of(own) if other == STOCK else read(Path(other))
        return Comparison(difference(before, side_of(own, "stitched" if other == STOCK else "this report")))

    def to_html(self, title: str = "Model") -> str:
        """Return the report as a single HTML file that needs no network.

        Args:
            title: name of the model, any text.

        Raises:
            TypeError: for a title that is not a string.
        """
        if not isinstance(title, str):
            raise TypeError(f"title must be a string, not {title!r}")
        return html_page(self.completed(), title)

    def to_trace(self) -> dict[str, Any]:
        """Return a timeline of one call, together with one of TVM's own pipeline, in the trace-event format.

        Perfetto and Chrome open it. Times are the cost model's, or those of :meth:`measure`.
        """
        return trace(self.completed())

    def _repr_html_(self) -> str:
        return html_page(self.completed(), "Model", embedded=True)

    def code(self, kernel: str) -> str:
        """Return the source of a kernel: CUDA C for a CUDA device, else TIR.

        Args:
            kernel: its name in the report.

        Raises:
            ValueError: if there is no kernel of that name, or its source is unknown.
        """
        codes = self.completed().codes
        if kernel not in codes:
            raise ValueError(
                f"no kernel {kernel!r} whose source is known; there are {', '.join(sorted(codes))}"
            )
        return codes[kernel].text

    def completed(self) -> ModelReport:
        """Return the model's report as data, with the parts that take a while: TVM's own kernels, and the kernels'
        sources.
        """
        if self.complete is not None:
            self.model, self.complete = self.complete(self._model()), None
        return self._model()

    def _model(self) -> ModelReport:
        if self.model is not None:
            return self.model
        reasons = [
            Reason(b["producer"], b["consumer"], b["reason"], *explained(b["reason"]))
            for b in self.boundaries
        ]
        return bare_report(self.target, self.device, self.kernels, self.left, reasons)
