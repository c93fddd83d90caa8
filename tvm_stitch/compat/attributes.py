# SPDX-License-Identifier: Apache-2.0
"""Python values as attributes of modules. TVM compares and saves modules without them."""

from __future__ import annotations

from typing import Any

try:
    from tvm_ffi.dataclasses import Object, field, py_class
except ImportError:  # older TVMs have another FFI
    import itertools
    from collections import OrderedDict

    import tvm

    MOST_CARRIED = 256
    """Values that are kept. A compile of one module needs fewer."""
    _kept: OrderedDict[str, Any] = OrderedDict()
    _numbers = itertools.count()

    def carried(value: Any) -> Any:
        """Return an object of TVM that carries a Python value. These TVMs hash and save none but their own objects, so
        it is a string that names a value which is kept here."""
        key = f"value {next(_numbers)}"
        _kept[key] = value
        while len(_kept) > MOST_CARRIED:
            _kept.popitem(last=False)
        return tvm.runtime.String(key)

    def carried_value(attribute: Any) -> Any:
        """Return the value that an object of :func:`carried` carries, or None if it is no longer kept."""
        return _kept.get(str(attribute))

else:

    @py_class(type_key="tvm_stitch.Carried", frozen=True)
    class _Carried(Object):
        value: Any = field(structural_eq="ignore", repr=False, default=None)

        def __data_to_json__(self) -> str:
            return ""

        @staticmethod
        def __data_from_json__(_data: str) -> _Carried:
            return _Carried(None)

    def carried(value: Any) -> Any:
        """Return an object of TVM that carries a Python value."""
        return _Carried(value)

    def carried_value(attribute: Any) -> Any:
        """Return the value that an object of :func:`carried` carries, or None if it was saved and loaded."""
        return attribute.value
