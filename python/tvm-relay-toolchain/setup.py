# SPDX-License-Identifier: Apache-2.0
"""Installs tvm_relay_toolchain.pth, which installs the import hook, next to the package (metadata: pyproject.toml)."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HOOK = "tvm_relay_toolchain.pth"


class BuildWithHook(build_py):
    """Builds the package and puts the ``.pth`` file, which Python reads when it starts, at the top of the wheel."""

    def run(self) -> None:
        super().run()
        # An editable build does not use build_lib. The contents of its wheel go to the installation folder.
        folder = self.get_finalized_command("install").install_lib if self.editable_mode else self.build_lib
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.copy_file(HOOK, str(Path(folder, HOOK)))


setup(cmdclass={"build_py": BuildWithHook})
