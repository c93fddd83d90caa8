# SPDX-License-Identifier: Apache-2.0
"""Running extremes and logarithms of running sums."""

from __future__ import annotations

import math

import torch

from tests.importers.torch.programs import compare


def test_running_extremes() -> None:
    x = torch.randn(3, 7)
    x[0, 2], x[1, 3] = math.nan, x[1, 1]
    compare(
        {
            "greatest": lambda x: [*x.cummax(1), *x.cummax(0), *(x * 4).nan_to_num().long().cummax(-1)],
            "least": lambda x: [*x.cummin(1), *x.cummin(0)],
            "alone": lambda x: [*x[0, 0].cummax(0), *x[:, :1].cummin(1)],
        },
        x,
    )


def test_logarithms_of_running_sums() -> None:
    x = torch.randn(3, 9) * 40  # sums of exponentials overflow
    compare({"logcumsumexp": lambda x: [x.logcumsumexp(1), x.logcumsumexp(0)]}, x, tolerance=1e-5)
