# SPDX-License-Identifier: Apache-2.0
"""Relay's graphs and plans equal those of Relax.

tests/stitch_testing/workloads/test_canonical.py compares Relax's with the same file.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stitch_testing.workloads.equivalents import describe_workload, workloads

EXPECTED = json.loads((Path(__file__).parents[1] / "data" / "same_plans.json").read_text())
WORKLOADS = workloads()


@pytest.mark.parametrize("name", WORKLOADS)
def test_relay_gives_the_graphs_and_plans_on_file(name: str) -> None:
    assert describe_workload(WORKLOADS[name]) == EXPECTED[name]
