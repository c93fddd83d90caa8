# SPDX-License-Identifier: Apache-2.0
"""Wheel and source distribution: what is in them, and that they install and run in a fresh environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import tvm_stitch
from tests.kept import kept_files

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
(LEAST,) = re.fullmatch(r">=(3\.\d+)", PROJECT["requires-python"]).groups()
SIBLINGS = {"cuda-emulator": "$(EMULATOR)", "stitch-testing": "$(TESTING)"}
"""Distributions that the tests need next to the package, and the Makefile's names for their folders."""
OFFLINE = re.compile(
    r"failure in name resolution|NewConnectionError|Connection refused|Network is unreachable"
)
TOP = ("tvm_stitch", "tvm_stitch_command.py", f"tvm_stitch-{tvm_stitch.__version__}.dist-info")


# -- said once ------------------------------------------------------------------------------------------------
def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_the_range_of_pythons_is_the_same_everywhere() -> None:
    for page in ("README.md", "docs/user-guide/quick-start.md", "CONTRIBUTING.md"):
        assert f"Python {LEAST} or newer" in text(page), page
    assert f"version_info < ({LEAST.replace('.', ', ')})" in text("Makefile")
    for name in ("tvm-relay-toolchain", *SIBLINGS):
        assert f'requires-python = "{PROJECT["requires-python"]}"' in text(f"python/{name}/pyproject.toml")
    assert f"\n            {LEAST}\n" in text(".github/workflows/ci.yml")


def test_the_version_has_one_source() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert f"\n## {tvm_stitch.__version__}" in text("CHANGELOG.md")


def test_requirements_are_those_of_their_users() -> None:
    """An install compiles ONNX models. Only the tuner needs an old release of TVM's FFI."""
    extras = PROJECT["optional-dependencies"]
    assert {"onnx", "apache-tvm-ffi"} < set(PROJECT["dependencies"])
    assert [name for name, needs in extras.items() if any("apache-tvm-ffi==" in n for n in needs)] == ["tune"]
    assert {"cloudpickle", "psutil", "xgboost"} < set(extras["tune"]), "the tuner imports them when it runs"
    named = [name for name in extras if f"`{name}`" in text("docs/user-guide/quick-start.md")]
    assert named == list(extras)


def test_every_minor_version_is_named() -> None:
    minors = [re.search(r":: (3\.\d+)$", each) for each in PROJECT["classifiers"]]
    assert [m[1] for m in minors if m] == ["3.11", "3.12", "3.13"]


def test_both_ci_files_run_the_same() -> None:
    steps = re.findall(r"^ +- run: (.+)$", text(".github/workflows/ci.yml"), re.M)
    assert steps == [".ci/run", "make lint", "make site"] and os.access(ROOT / ".ci/run", os.X_OK)


# -- built ----------------------------------------------------------------------------------------------------
def _build(tree: Path, out: Path) -> None:
    """Build both distributions of a tree, by the backend that it names, without a network."""
    code = f"from setuptools import build_meta as b; b.build_sdist({str(out)!r}); b.build_wheel({str(out)!r})"
    out.mkdir()
    subprocess.run([sys.executable, "-c", code], cwd=tree, check=True, capture_output=True, timeout=120)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution of a clean copy."""
    tree = tmp_path_factory.mktemp("tree")
    for name in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "MANIFEST.in",
        "tvm_stitch_command.py",
    ):
        shutil.copy(ROOT / name, tree / name)
    shutil.copytree(ROOT / "tvm_stitch", tree / "tvm_stitch", ignore=shutil.ignore_patterns("__pycache__"))
    _build(tree, tree / "dist")
    return tree / "dist"


def _wheel(folder: Path) -> Path:
    (found,) = folder.glob("*.whl")
    return found


def test_the_wheel_has_the_package_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(_wheel(built)) as archive:
        names = set(archive.namelist())
    assert {name.split("/")[0] for name in names} == set(TOP)
    ours = {str(p.relative_to(ROOT)) for p in kept_files(ROOT / "tvm_stitch")}
    assert {name for name in names if name.startswith("tvm_stitch/")} == ours
    assert _wheel(built).stat().st_size < 2e6
    licences = {name for name in names if "/licenses/" in name}
    assert len(licences) == 2, "ours, and those of the page's libraries"


@pytest.mark.parametrize("name", SIBLINGS)
def test_siblings_are_distributions_of_their_own(name: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(
        ROOT / "python" / name, tree, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    )
    _build(tree, tree / "dist")
    with zipfile.ZipFile(_wheel(tree / "dist")) as archive:
        contents = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = tree / "src" / name.replace("-", "_")
    ours = {str(p.relative_to(tree / "src")) for p in kept_files(package)}
    assert contents == ours and any(path.endswith("py.typed") for path in contents)
    assert any(path.endswith(".cc") for path in contents) == (name == "cuda-emulator")


def test_both_environments_of_the_tests_get_the_siblings() -> None:
    installed = [line for line in text("Makefile").splitlines() if "--editable ." in line]
    assert len(installed) == 2
    for name, variable in SIBLINGS.items():
        assert f"\n{variable[2:-1]} := python/{name}\n" in text("Makefile")
        assert all(f"--editable {variable}" in line for line in installed)
        assert text("Makefile").count(f" {variable}/pyproject.toml") == 2


def test_the_source_distribution_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    assert (tree / "CHANGELOG.md").is_file()
    _build(tree, tree / "dist")
    contents = []
    for wheel in (_wheel(built), _wheel(tree / "dist")):
        with zipfile.ZipFile(wheel) as file:
            contents.append({i.filename: i.CRC for i in file.infolist() if not i.filename.endswith("RECORD")})
    assert contents[0] == contents[1]


# -- installed ------------------------------------------------------------------------------------------------
def _pythons() -> list[str]:
    """Return the oldest and the newest supported Pythons here: those on the path, and those next to this one."""
    found: dict[tuple[int, int], str] = {}
    names = [f"python3.{minor}" for minor in range(int(LEAST.split(".")[1]), 20)]
    beside = Path(sys.base_prefix).parent.glob("*/bin/python3")
    for python in [sys.executable, *filter(None, map(shutil.which, names)), *map(str, beside)]:
        code = "import sys, venv; print(*sys.version_info[:2])"
        asked = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            major, minor = map(int, asked.stdout.split())
            found.setdefault((major, minor), python)
    supported = sorted(version for version in found if version >= tuple(map(int, LEAST.split("."))))
    return [found[version] for version in dict.fromkeys([supported[0], supported[-1]])]


_USE = """
import numpy as np, tvm, tvm_stitch
from tvm import relax
x = relax.Var("x", relax.TensorType((4, 8), "float32"))
builder = relax.BlockBuilder()
with builder.function("main", [x]):
    with builder.dataflow():
        y = builder.emit_output(relax.op.nn.softmax(x, -1))
    builder.emit_func_output(y)
vm = relax.VirtualMachine(tvm_stitch.compile(builder.get()), tvm.cpu())
print(np.round(vm["main"](tvm.runtime.tensor(np.ones((4, 8), "float32"))).numpy().sum()))
assert tvm_stitch.explain(builder.get(), "cuda -arch=sm_90").to_html().startswith("<!doctype html>")
import onnx
from tvm_stitch.testing.workloads.bert import BertConfig, build_bert
small = BertConfig(layers=1, hidden=32, heads=2, sequence=16, ffn=64, vocabulary=64)
onnx.save(build_bert(small), "model.onnx")
"""


@pytest.mark.parametrize("python", _pythons(), ids=lambda python: Path(python).resolve().name)
def test_it_installs_and_runs_in_a_fresh_environment(python: str, built: Path, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    subprocess.run([python, "-m", "venv", str(tmp_path / "venv")], check=True, env=env, timeout=120)
    bin_folder = tmp_path / "venv" / "bin"
    pip = [str(bin_folder / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    pip.append("--no-compile")  # else it compiles every module, which takes more than half of its time
    done = subprocess.run(
        [*pip, str(_wheel(built))], capture_output=True, text=True, check=False, env=env, timeout=600
    )
    if done.returncode and OFFLINE.search(done.stdout + done.stderr):
        pytest.skip("offline")
    assert done.returncode == 0, done.stderr
    told = subprocess.run(
        [str(bin_folder / "tvm-stitch"), "--version"], capture_output=True, text=True, check=True, env=env
    )
    assert told.stdout.startswith(f"tvm-stitch {tvm_stitch.__version__}\n")
    used = subprocess.run(
        [str(bin_folder / "python"), "-c", _USE], capture_output=True, text=True, check=False, env=env,
        cwd=tmp_path, timeout=120,
    )  # fmt: skip
    assert (used.returncode, used.stdout) == (0, "4.0\n"), used.stderr
    for words in (["compile", "model.onnx", "-o", "out"], ["run", "out"]):
        done = subprocess.run(
            [str(bin_folder / "tvm-stitch"), *words], capture_output=True, text=True, check=False, env=env,
            cwd=tmp_path, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
