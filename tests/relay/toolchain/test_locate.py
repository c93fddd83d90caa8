# SPDX-License-Identifier: Apache-2.0
"""The TVM that is imported: another one is never hidden unasked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .conftest import SOURCE, Run

Fake = Callable[[bool], Path]
PRINT = "import tvm\nprint(tvm.__file__)\n"
ACTIVATE = (
    "import tvm_relay_toolchain as toolchain\n"
    "try:\n    found = toolchain.activate({})\n    print(found.tvm.origin, found.tvm.version)\n"
    "except toolchain.ToolchainError as error:\n    print('error:', error)\n"
)


def test_a_tvm_on_the_path_is_not_shadowed(run: Run, fake_tvm: Fake) -> None:
    root = fake_tvm(False)
    done = run(PRINT, PYTHONPATH=str(root / "python"))
    assert done.stdout.strip() == str(root / "python/tvm/__init__.py"), done.stderr


def test_one_without_relay_is_an_error_only_when_relay_is_asked_for(run: Run, fake_tvm: Fake) -> None:
    done = run(ACTIVATE.format(""), PYTHONPATH=str(fake_tvm(False) / "python"))
    assert done.stdout.startswith("error: TVM 0.99 in ") and "has no Relay" in done.stdout, done.stderr
    assert "activate(force=True)" in done.stdout


def test_one_with_relay_is_used_as_it_is(run: Run, fake_tvm: Fake) -> None:
    done = run(ACTIVATE.format(""), PYTHONPATH=str(fake_tvm(True) / "python"))
    assert done.stdout.strip() == "path 0.99", done.stderr


def test_force_hides_it_with_a_warning_also_in_children(run: Run, fake_tvm: Fake) -> None:
    code = (
        ACTIVATE.format("force=True") + PRINT + "import subprocess, sys\n"
        "print(subprocess.run([sys.executable, '-c', 'import tvm; print(tvm.__version__)'], "
        "capture_output=True, text=True, check=True).stdout)\n"
    )
    done = run(code, PYTHONPATH=str(fake_tvm(False) / "python"))
    lines = done.stdout.split("\n")
    assert lines[0] == "wheel 0.17.dev0", done.stderr
    assert "bitblas/3rdparty/tvm" in lines[1] and lines[2] == "0.17.dev0"
    assert "TVM 0.99 in" in done.stderr and "is hidden by TVM 0.17.dev0" in done.stderr


def test_force_comes_too_late_after_the_import(run: Run, fake_tvm: Fake) -> None:
    done = run("import tvm\n" + ACTIVATE.format("force=True"), PYTHONPATH=str(fake_tvm(True) / "python"))
    assert "is imported already" in done.stdout, done.stderr


def test_tvm_home_names_a_build(run: Run, fake_tvm: Fake) -> None:
    root = fake_tvm(True)
    done = run(PRINT, TVM_HOME=str(root))
    assert done.stdout.strip() == str(root / "python/tvm/__init__.py"), done.stderr
    done = run(ACTIVATE.format(""), TVM_LIBRARY_PATH=str(root / "build"))
    assert done.stdout.strip() == "environment 0.99", done.stderr


def test_tvm_home_without_relay_is_passed_over(run: Run, fake_tvm: Fake) -> None:
    done = run(ACTIVATE.format(""), TVM_HOME=str(fake_tvm(False)))
    assert done.stdout.strip() == "wheel 0.17.dev0", done.stderr


def test_a_folder_named_tvm_is_no_tvm(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tvm").mkdir()
    done = run(PRINT)
    assert "bitblas/3rdparty/tvm" in done.stdout, done.stderr


def test_nothing_installed_says_what_to_install(run: Run) -> None:
    done = run(ACTIVATE.format(""), "-S", PYTHONPATH=str(SOURCE))
    assert (
        done.stdout.strip()
        == "error: no TVM with Relay was found: pip install --no-deps bitblas==0.1.0.post1"
    )
    done = run(PRINT, "-S", PYTHONPATH=str(SOURCE))
    assert "ModuleNotFoundError: No module named 'tvm'" in done.stderr


def test_a_missing_cuda_runtime_says_what_to_install(run: Run, tmp_path: Path) -> None:
    package = tmp_path / "site" / "bitblas" / "3rdparty" / "tvm" / "python" / "tvm"
    (package / "relay").mkdir(parents=True)
    for init in (package, package / "relay", tmp_path / "site" / "bitblas"):
        (init / "__init__.py").write_text("")
    hidden = (
        "from tvm_relay_toolchain import libraries\n"
        "real = libraries.ctypes.CDLL\n"
        "def load(name, *rest):\n"
        "    if 'libcudart' in str(name):\n        raise OSError(name)\n"
        "    return real(name, *rest)\n"
        "libraries.ctypes.CDLL = load\n"
    )
    path = f"{SOURCE}:{tmp_path / 'site'}"
    done = run(hidden + ACTIVATE.format(""), "-S", PYTHONPATH=path)
    assert "error: libcudart.so.12 was not found" in done.stdout, done.stderr
    assert "pip install nvidia-cuda-runtime-cu12==" in done.stdout
