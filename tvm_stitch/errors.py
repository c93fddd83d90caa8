# SPDX-License-Identifier: Apache-2.0
"""The errors that users of the package catch."""

from __future__ import annotations

import tvm


@tvm.error.register_error  # keeps its type on the way through a pass
class StitchError(RuntimeError):
    """Something that could not be stitched under ``StitchConfig(strict=True)``."""
