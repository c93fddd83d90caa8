# SPDX-License-Identifier: Apache-2.0
"""The assertion of the tests that show a fault of TVM, under either TVM."""

from __future__ import annotations


def needed(has_fault: bool, repair: str) -> None:
    """Assert that TVM still has a fault. ``repair`` is the file that repairs it, in ``tvm_stitch/repairs``."""
    assert has_fault, f"TVM no longer needs this repair: remove tvm_stitch/repairs/{repair}"
