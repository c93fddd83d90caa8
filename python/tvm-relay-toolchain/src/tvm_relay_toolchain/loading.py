# SPDX-License-Identifier: Apache-2.0
"""Import the chosen TVM: libraries first, then the package itself."""

from __future__ import annotations

from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from types import ModuleType

from . import environment, libraries, locate, shims
from .errors import ToolchainError


class WheelTvmLoader(SourceFileLoader):
    """Loads ``tvm/__init__.py`` of the wheel after the libraries to which it is linked.

    The work is done by the import itself: ``importlib.util.find_spec("tvm")`` changes nothing.
    """

    def __init__(self, tvm: locate.TvmInstall, hooked: bool) -> None:
        super().__init__("tvm", str(tvm.package / "__init__.py"))
        self._tvm, self._hooked = tvm, hooked

    def exec_module(self, module: ModuleType) -> None:
        """Prepare the process and run the module.

        Raises:
            ToolchainError: if a shared library is missing.
        """
        prepare(self._tvm, self._hooked)
        try:
            super().exec_module(module)
        except OSError as error:
            raise ToolchainError(
                f"TVM's libraries in {self._tvm.library_dir} do not load: {error}. They need Linux on x86-64 with "
                "glibc 2.34 or newer, and libz, libtinfo 6 and libstdc++ of the system (on Debian and Ubuntu: "
                "apt install zlib1g libtinfo6 libstdc++6)"
            ) from error


def prepare(tvm: locate.TvmInstall, hooked: bool) -> None:
    """Load the libraries to which the wheel's TVM is linked, and set the environment of its worker processes.

    Args:
        tvm: the wheel's TVM.
        hooked: whether the import hook runs in every process of this Python.

    Raises:
        ToolchainError: if a CUDA library is missing.
    """
    driver = libraries.preload()
    environment.export(tvm, driver, hooked)
    shims.apply()


def tvm_spec(hooked: bool) -> ModuleSpec | None:
    """Return the spec of the chosen TVM, or None if there is none, or if other finders are to load it.

    ``hooked`` says whether the import hook runs in every process of this Python.
    """
    tvm = locate.choose()
    if tvm is None:
        return None
    if tvm.origin == "wheel":
        loader: SourceFileLoader | None = WheelTvmLoader(tvm, hooked)
    else:
        if tvm.has_relay:
            shims.apply()
        if tvm.origin == "path":
            return None
        loader = None
    return spec_from_file_location(
        "tvm", tvm.package / "__init__.py", loader=loader, submodule_search_locations=[str(tvm.package)]
    )
