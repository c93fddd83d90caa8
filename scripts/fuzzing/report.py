# SPDX-License-Identifier: Apache-2.0
"""A finding as text: the errors, the module, and the recipe of its inputs."""

from __future__ import annotations

from .build import Unbuildable, build
from .case import Case
from .execute import Outcome, Settings


def describe(case: Case, outcome: Outcome, settings: Settings) -> str:
    """Return TVMScript of the module, the inputs' recipe, and the case as JSON."""
    lines = [f"{outcome.kind} on {settings.backend}: {outcome.detail}"]
    if outcome.declined:
        lines += [f"left to TVM: {name}: {reason}" for name, reason in outcome.declined.items()]
    if case.config:
        lines.append(f"config: {dict(case.config)}")
    if case.target:
        lines.append(f"target: {case.target}")
    try:
        lines.append(build(case).script())
    except Unbuildable as error:
        lines.append(f"(Relax refuses it: {error})")
    for index, parameter in enumerate(case.inputs):
        shape = ", ".join(str(d) for d in parameter.shape)
        lines.append(
            f"x{index}: ({shape}) {parameter.dtype}, filled with {parameter.fill!r}, seed {case.seed}"
        )
    lines.append(
        f"sizes: {[dict(s) for s in case.sizes]}"
        + (f", failed in run {outcome.run}" if outcome.run >= 0 else "")
    )
    lines.append(f"JSON: {case.to_json()}")
    return "\n".join(lines)
