# SPDX-License-Identifier: Apache-2.0
"""A target in a few words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def target_words(kind: str, attrs: Mapping[str, Any]) -> str:
    """``"cuda sm_90"``, ``"llvm skylake-avx512"`` or ``"llvm"``: the kind of a target, and the device it names.

    Args:
        kind: what TVM calls the kind of target.
        attrs: its attributes.
    """
    named = [str(attrs[key]) for key in ("arch", "mcpu") if key in attrs and str(attrs[key])]
    return " ".join([kind, *named[:1]])
