# SPDX-License-Identifier: Apache-2.0
"""The wall time that tuning took, run by run, kept beside the records of a tuner, which do not tell it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path


def note(path: Path, seconds: float, trials: Mapping[str, int]) -> None:
    """Append one run: what it took, and its trials by task."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        print(json.dumps({"seconds": seconds, "trials": dict(trials)}), file=file)


def spent(path: Path, tasks: Collection[str]) -> float:
    """The seconds of all runs that went into these tasks: of each run the share that their trials have in its own."""
    if not path.exists():
        return 0.0
    total = 0.0
    for line in path.read_text().splitlines():
        run = json.loads(line)
        if trials := sum(run["trials"].values()):
            own = sum(count for task, count in run["trials"].items() if task in tasks)
            total += run["seconds"] * own / trials
    return total
