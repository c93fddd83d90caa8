# SPDX-License-Identifier: Apache-2.0
"""Report: what stitching does to a module, as plain data with its views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..graph.sizes import with_sizes_as_text
from .bare import bare_report
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


@dataclass(repr=False)
class Report:
    """What stitching does to a module on a target. Printed it is a summary; in a notebook it is a page.

    ``left`` names functions left to TVM with the reason, ``boundaries`` the edges between kernels with theirs;
    ``computed`` says what computes each compute-intensive operator, and why, where a template was asked;
    ``device`` is the device model that the kernels are planned for, and its multiprocessors or cores. ``model`` has all
    calls of kernels, and the model's operators that they come from.
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

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-able data. What was measured is under ``"measured"``, if anything was."""
        model = self.model
        times = {"measured": times_of(model)} if model is not None and model.measured_on else {}
        return {
            "target": self.target,
            "device": self.device,
            "kernels": [with_sizes_as_text(vars(k)) for k in self.kernels],
            "computed": self.computed,
            "left": self.left,
            "boundaries": self.boundaries,
            **times,
        }

    def measure(self, inputs: Sequence[np.ndarray] | None = None, repeats: int = 10, seed: int = 0) -> Report:
        """This report with measured times: the model is compiled and run here, with stitching and by TVM's own
        pipeline in turn, and every kernel is timed.

        Args:
            inputs: arrays for ``main`` (or the only function that there is), in order, on the host. If none are given,
                random ones of static shapes are made.
            repeats: timed calls of each.
            seed: of random inputs.

        Returns: a new report, whose text, page, timeline and data have the times.

        Raises:
            RuntimeError: where this machine has no such device, or an older CPU than the target's.
            ValueError: for symbolic shapes without inputs, too many or too few inputs, one of another shape or dtype,
                several functions without a ``main``, less than one call, and a report that knows no model.
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
        return summary(self._model(), self.device, self.computed)

    __repr__ = __str__  # what a session shows of it

    def verbose(self) -> str:
        """Everything that is known of every kernel, and every boundary, as text."""
        lines = [f"{count_of(len(self.kernels), 'stitch op')} for {self.target}"]
        if self.device:
            lines.append(f"planned for {self.device}")
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
        """Why two operators, or two kernels, are or are not one kernel, and what to do about it.

        Args:
            first: a name of the model's own (an ONNX node), of a variable, of an operator, or of a kernel.
            second: another one.

        Raises:
            TypeError: for names that are no strings.
            ValueError: when there is nothing of such a name.
        """
        for name in (first, second):
            if not isinstance(name, str):
                raise TypeError(f"a name must be a string, not {name!r}")
            if not name:
                raise ValueError("a name is empty")
        return why(self._model(), first, second)

    def to_html(self, title: str = "Model") -> str:
        """Return a page of its own: one HTML file that needs no network.

        Args:
            title: what to call the model; any text.

        Raises:
            TypeError: for a title that is no text.
        """
        if not isinstance(title, str):
            raise TypeError(f"title must be a string, not {title!r}")
        return html_page(self.completed(), title)

    def to_trace(self) -> dict[str, Any]:
        """One call as a timeline, beside one of TVM's own pipeline, in the trace-event format of Perfetto and Chrome.

        Times are the cost model's, or those of :meth:`measure`.
        """
        return trace(self.completed())

    def _repr_html_(self) -> str:
        return html_page(self.completed(), "Model", embedded=True)

    def code(self, kernel: str) -> str:
        """Return the source of a kernel: CUDA C for a CUDA device, else TIR.

        Args:
            kernel: its name, as the report has it.

        Raises:
            ValueError: when there is no kernel of that name, or its source is not known.
        """
        codes = self.completed().codes
        if kernel not in codes:
            raise ValueError(
                f"no kernel {kernel!r} whose source is known; there are {', '.join(sorted(codes))}"
            )
        return codes[kernel].text

    def completed(self) -> ModelReport:
        """The model's report as data, with what takes a while to find out: TVM's own kernels, and sources of ours."""
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
