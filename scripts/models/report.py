# SPDX-License-Identifier: Apache-2.0
"""The measurements as tables: one of each model's contenders, and a short one of all models, last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from _table import aligned, geometric_mean

from .load import file_name

OURS, STOCK, INDUCTOR = "stitched", "stock", "inductor"
DETAIL = (
    "contender",
    "median ms",
    "least-most",
    "best ms",
    "compile s",
    "kernels",
    "memory-int. ms",
    "MB",
    "error",
)
Row = Mapping[str, Any]
_REMARKS = (
    ("failed", "left out"),
    ("unfinished", "not measured to the end"),
    ("unstitched", "left whole to TVM"),
)


def ratio(model: Row, name: str) -> float | None:
    """Return the time of ``name`` over the stitched build's, None if either is missing."""
    mine, other = seconds(model, OURS), seconds(model, name)
    return other / mine if mine and other else None


def seconds(model: Row, name: str) -> float | None:
    """Return a contender's median seconds, None if it has no meaningful time."""
    row = model["contenders"].get(name, {})
    return None if "failed" in row else row.get("median_s")


def best_peer(model: Row) -> str | None:
    """Return the fastest contender that is no TVM build."""
    return _fastest(model, [name for name in model["contenders"] if name not in (OURS, STOCK)])


def best_inductor(model: Row) -> str | None:
    """Return the fastest of Inductor's modes."""
    return _fastest(model, [name for name in model["contenders"] if name.startswith(INDUCTOR)])


def _fastest(model: Row, names: Sequence[str]) -> str | None:
    times = {name: spent for name in names if (spent := seconds(model, name))}
    return min(times, key=lambda name: times[name]) if times else None


def summary(models: Sequence[Row], contenders: Sequence[str]) -> dict[str, Any]:
    """Return ratios to the stitched build for each model, and their geometric means."""
    others = [name for name in contenders if name != OURS]
    rows = []
    for model in models:
        peer, mode = best_peer(model), best_inductor(model)
        rows.append(
            {
                "model": model["model"],
                "best_peer": peer,
                "best_peer_ratio": ratio(model, peer) if peer else None,
                "best_inductor": mode,
                "best_inductor_ratio": ratio(model, mode) if mode else None,
                "ratios": {name: ratio(model, name) for name in others},
            }
        )
    means = {name: geometric_mean([row["ratios"][name] for row in rows]) for name in others}
    return {
        "models": rows,
        "geometric_mean": {"best_peer": geometric_mean([row["best_peer_ratio"] for row in rows]), **means},
    }


def detail(model: Row, markdown: bool = False) -> str:
    """Write a model's contenders, a line each, and notes on the figures."""
    body = [_line(name, row) for name, row in model["contenders"].items() if "failed" not in row]
    reference = model["reference"]
    lines = [f"{file_name(model['model'])}: {model['size']}, batch {model['batch']}, {model['dtype']}"]
    if body:
        lines += ["", _table(DETAIL, body, markdown), ""]
    if "failed" in reference:
        lines.append(f"no reference, so nothing was checked: {reference['failed']}")
    elif "pytorch_error" in reference:
        lines.append(f"PyTorch's own error: {reference['pytorch_error']:.1e}")
    if (mode := best_inductor(model)) is not None:
        times = ratio(model, mode)
        compared = f", {times:.2f} times the stitched build's time" if times else ""
        lines.append(f"Inductor's best mode: {mode}{compared}")
    for name, row in model["contenders"].items():
        for key, what in _REMARKS:
            if key in row:
                lines.append(f"{name} {what}: {row[key]}")
    return "\n".join(lines)


def _line(name: str, row: Row) -> list[str]:
    kernels = row.get("kernels")
    counted = "-"
    if kernels:
        counted = f"{kernels['compute_intensive']} + {kernels['memory_intensive']}"
        counted += f" + {kernels['external']}" if kernels["external"] else ""
    spread = f"{_ms(row.get('least_s'))}-{_ms(row.get('most_s'))}"
    return [
        name,
        _ms(row.get("median_s")),
        spread,
        _ms(row.get("best_s")),
        _or_dash(row.get("compile_s"), lambda x: f"{x:.1f}"),
        counted,
        _ms(row.get("memory_intensive_s")),
        _or_dash(row.get("memory_bytes"), lambda x: f"{x / 1e6:.0f}"),
        _or_dash(row.get("error"), lambda x: f"{x:.1e}"),
    ]


def overview(models: Sequence[Row], contenders: Sequence[str], markdown: bool = False) -> str:
    """Write the short table: the stitched build, the best peer, and the ratio of every other contender."""
    found = summary(models, contenders)
    others = [name for name in contenders if name != OURS]
    head = ("model", "ours ms", "best peer", "best peer/ours", *(f"{name}/ours" for name in others))
    body = []
    for model, row in zip(models, found["models"]):
        ratios = [_ratio(row["ratios"][name]) for name in others]
        ours = _ms(seconds(model, OURS))
        body.append(
            [
                file_name(model["model"]),
                ours,
                row["best_peer"] or "-",
                _ratio(row["best_peer_ratio"]),
                *ratios,
            ]
        )
    means = found["geometric_mean"]
    last = ["geometric mean", "", "", _ratio(means["best_peer"]), *(_ratio(means[name]) for name in others)]
    return _table(head, [*body, last], markdown)


LEGEND = """\
median: of the medians of blocks of calls, which took turns; least-most: of these medians; best: the fastest call
(on a GPU: group of calls)
compile: with the first call; without importing or exporting the model, which the JSON has
kernels: compute-intensive + memory-intensive (+ calls of libraries), of one call
memory-int.: the time that one call spends in memory-intensive kernels: each waited for, on a GPU by CUPTI's records
MB: on a CPU the most resident memory of the contender's process while it ran, all packages that it loaded included
(TVM's has PyTorch too, to import from); on a GPU what PyTorch allocated at most while it ran
error: the greatest difference to {reference}, over the greatest value; of several draws of the
inputs the root of the mean square"""


def _table(head: Sequence[str], body: Sequence[Sequence[str]], markdown: bool) -> str:
    if markdown:
        lines = ["| " + " | ".join(line) + " |" for line in (head, *body)]
        return "\n".join([lines[0], "|---" + "|---:" * (len(head) - 1) + "|", *lines[1:]])
    return aligned(head, body)


def _or_dash(value: Any, form: Callable[[Any], str]) -> str:
    return "-" if value is None else form(value)


def _ms(value: float | None) -> str:
    return _or_dash(value, lambda x: f"{x * 1e3:.4g}")


def _ratio(value: float | None) -> str:
    return _or_dash(value, lambda x: f"{x:.2f}")
