# SPDX-License-Identifier: Apache-2.0
"""The wall time of tuning, round by round, in a file next to a tuner's records, which lack it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path


def note(path: Path, seconds: float, trials: Mapping[str, int]) -> None:
    """Append one round: its seconds, and its trials by task."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        print(json.dumps({"seconds": seconds, "trials": dict(trials)}), file=file)


def spent(path: Path, tasks: Collection[str]) -> tuple[float, int]:
    """Return the seconds and trials of these tasks. A round of several tasks is shared out by trials."""
    seconds, known = 0.0, 0
    for line in path.read_text().splitlines() if path.exists() else []:
        tuned = json.loads(line)
        if trials := sum(tuned["trials"].values()):
            own = sum(count for task, count in tuned["trials"].items() if task in tasks)
            seconds += tuned["seconds"] * own / trials
            known += own
    return seconds, known


def gap(measured: int, known: int) -> list[str]:
    """Return a note for trials of unknown time (records from elsewhere, a killed run)."""
    return (
        [f"Tuning time is that of {known} of the {measured} trials; of the others it is not known."]
        if known < measured
        else []
    )
