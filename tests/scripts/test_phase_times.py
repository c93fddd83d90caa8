# SPDX-License-Identifier: Apache-2.0
"""Stamps are put where phases of a kernel begin and end, and the table has the blocks' times."""

from __future__ import annotations

import phase_times
import pytest

KERNEL = """extern "C" __global__ void __launch_bounds__(64) {name}(float* a_ptr);
extern "C" __global__ void __launch_bounds__(64) {name}(float* a_ptr) {{
  float x;
  for (int64_t task = (int64_t)0; task < n; ++task) {{
    x = 1;
  }}
{barrier}  for (int64_t task_1 = (int64_t)0; task_1 < n; ++task_1) {{
    x = 2;
  }}
}}
"""
BARRIER = "  tvm_builtin_cuda_grid_sync();\n"


def source(*barriers: str) -> str:
    return "#include <x>\n" + "".join(
        KERNEL.format(name=f"kernel_{i}", barrier=each) for i, each in enumerate(barriers)
    )


def test_the_kernel_of_most_barriers_has_stamps() -> None:
    given = source("", BARRIER, "")
    text, name, labels = phase_times.instrument(given)
    assert name == "kernel_1"
    begins, ends = "phase 0 begins", "phase 0 ends"
    assert labels == [begins, "tasks", ends, "phase 1 begins", "tasks", "phase 1 ends"]
    stamps = [line for line in text.splitlines() if "  phase_stamp(" in line]
    assert stamps == [f"  phase_stamp({i});" for i in range(6)]
    assert (
        text.index("void phase_stamp") < text.index("kernel_0(float* a_ptr) {")
        and "phase_print(6);\n}" in text
    )
    without = [line for line in text.splitlines() if "phase_" not in line]
    kept = [line for line in given.splitlines() if line in without]
    assert kept == given.splitlines()
    one, two = text.index("phase_stamp(2)"), text.index("phase_stamp(3)")
    assert one < text.index(BARRIER) < two


def test_a_program_without_barriers_is_refused() -> None:
    with pytest.raises(ValueError, match="no kernel has a grid barrier"):
        phase_times.instrument(source("", ""))


def test_the_table() -> None:
    shown = phase_times.table(["phase 0 begins", "tasks"], "noise\nPHASE 0 0 1500 3000\nPHASE 1 32 64 96\n")
    assert [line.split()[-3:] for line in shown.splitlines()[1:]] == [
        ["0.00", "1.50", "3.00"],
        ["0.03", "0.06", "0.10"],
    ]
