# SPDX-License-Identifier: Apache-2.0
"""The errors that users of the package catch."""

from __future__ import annotations


class StitchError(RuntimeError):
    """An operator or scope could not be stitched under ``StitchConfig(strict=True)``.

    It keeps its type on the way through a pass, because ``interrupts`` registers it with TVM.
    """
