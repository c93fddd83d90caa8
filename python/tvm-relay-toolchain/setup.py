# SPDX-License-Identifier: Apache-2.0
"""Puts tvm_relay_toolchain.pth, which installs the import hook, beside the package (metadata: pyproject.toml)."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HOOK = "tvm_relay_toolchain.pth"


class BuildWithHook(build_py):
    """Build the package and, at the top of the wheel, the ``.pth`` file that Python reads when it starts."""

    def run(self) -> None:
        super().run()
        # An editable build leaves build_lib behind; what belongs into its wheel goes where installs go.
        folder = self.get_finalized_command("install").install_lib if self.editable_mode else self.build_lib
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.copy_file(HOOK, str(Path(folder, HOOK)))


setup(cmdclass={"build_py": BuildWithHook})
