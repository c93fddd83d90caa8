# SPDX-License-Identifier: Apache-2.0
"""The fastest of some algorithms is found, and what was found is shared by processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tvm_ffi

import tvm_stitch.compute.cuda
from tvm_stitch.deploy.embedded import Embedded

HEADERS = Path(tvm_stitch.compute.cuda.__file__).parent / "native"

SOURCE = r"""
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>
#include <tvm/ffi/tvm_ffi.h>
#include "FOLDER/choices.h"
#include "FOLDER/fastest.h"

namespace ffi = tvm::ffi;

// measure(index, calls) -> milliseconds; negative: failed
int64_t Fastest(int64_t count, ffi::Function measure) {
  return tvm_stitch::Fastest(count, [&](size_t i, int calls) {
    auto spent = measure(static_cast<int64_t>(i), calls).cast<double>();
    return spent < 0 ? tvm_stitch::kFailed : static_cast<float>(spent);
  });
}

tvm_stitch::Choices& Opened(const ffi::String& title) {
  static std::unordered_map<std::string, std::unique_ptr<tvm_stitch::Choices>> opened;
  auto& found = opened[title];
  if (found == nullptr) found = std::make_unique<tvm_stitch::Choices>(title);
  return *found;
}

int64_t Find(ffi::String title, ffi::String key) { return Opened(title).Find(key, -1); }
void Keep(ffi::String title, ffi::String key, int64_t choice) { Opened(title).Keep(key, choice); }

TVM_FFI_DLL_EXPORT_TYPED_FUNC(fastest, Fastest)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(find, Find)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(keep, Keep)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("tuning") / "tuning.cc"
    source.write_text(SOURCE.replace("FOLDER", str(HEADERS)))
    headers = tuple(HEADERS / name for name in ("choices.h", "fastest.h"))
    return Embedded(source, "a test", headers)._build()[1]


@pytest.fixture
def functions(library: Path) -> Any:
    return tvm_ffi.load_module(str(library))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TVM_STITCH_CACHE_DIR", str(tmp_path / "a" / "b"))
    return tmp_path / "a" / "b" / "algorithms"


class Times:
    """Milliseconds of each algorithm. A first call of each takes longer, and each call some time to launch."""

    def __init__(self, *each: float) -> None:
        self.each = each
        self.calls: list[tuple[int, int]] = []

    def __call__(self, index: int, calls: int) -> float:
        is_first = all(i != index for i, _ in self.calls)
        self.calls.append((index, calls))
        return self.each[index] + (1.0 if is_first else 0.004 if calls == 1 else 0.0)


@pytest.mark.parametrize(
    ("times", "best"),
    [
        ((0.010,), 0),
        ((0.010, 0.008, 0.009), 1),
        ((0.010, 0.0098), 0),  # not clearly faster than the library's own choice
        ((-9.0, 0.02, 0.01), 2),
        ((-9.0, -9.0), 0),
        ((3.0, 1.0, 2.0), 1),
    ],
)
def test_the_fastest_is_found(functions: Any, times: tuple[float, ...], best: int) -> None:
    assert functions["fastest"](len(times), Times(*times)) == best


def test_what_is_hopeless_is_measured_no_longer_and_others_take_turns(functions: Any) -> None:
    times = Times(0.010, 0.100, 0.009)
    functions["fastest"](3, times)
    assert [i for i, _ in times.calls] == [0, 0, 1, 1, 2, 2, *[0, 2] * 4]
    assert {calls for _, calls in times.calls[6:]} == {7, 10}
    slow = Times(5.0, 6.0)
    functions["fastest"](2, slow)
    assert {calls for _, calls in slow.calls} == {1}


def test_a_disturbance_decides_nothing(functions: Any) -> None:
    class Disturbed(Times):
        def __call__(self, index: int, calls: int) -> float:
            busy = len(self.calls) in (8, 9)
            return super().__call__(index, calls) + (0.05 if busy else 0.0)

    assert functions["fastest"](2, Disturbed(0.010, 0.008)) == 1
    assert functions["fastest"](2, Disturbed(0.008, 0.010)) == 0


def test_choices_are_kept(functions: Any, folder: Path) -> None:
    assert functions["find"]("kept 1.2", "1,2") == -1
    functions["keep"]("kept 1.2", "1,2", 3)
    assert functions["find"]("kept 1.2", "1,2") == 3
    assert functions["find"]("kept 1.2", "1,22") == -1
    (found,) = folder.iterdir()
    assert found.name == "kept-1.2.txt" and found.read_text() == "1,2 3\n"
    assert found.stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("children_without_torch")
def test_processes_share_choices(functions: Any, library: Path, folder: Path) -> None:
    assert functions["find"]("shared", "a") == -1  # the file is open before others write
    program = (
        "import sys, tvm_ffi\n"
        "functions = tvm_ffi.load_module(sys.argv[1])\n"
        "for i in range(200):\n"
        "    functions['keep']('shared', sys.argv[2] * 40 + str(i), i)\n"
    )
    others = [subprocess.Popen([sys.executable, "-c", program, str(library), name]) for name in "ab"]
    assert [other.wait() for other in others] == [0, 0]
    for name in "ab":
        assert [functions["find"]("shared", name * 40 + str(i)) for i in range(200)] == list(range(200))


def test_what_is_no_choice_is_passed_over(functions: Any, folder: Path) -> None:
    folder.mkdir(parents=True)
    file = folder / "torn.txt"
    file.write_text("a 1\nb\n c 2\nd x\ne 3x\nf -1\ng 4\nh 5")
    found = {key: functions["find"]("torn", key) for key in "abcdefgh"}
    assert found == {**dict.fromkeys("bcdefh", -1), "a": 1, "g": 4}
    with file.open("a") as rest:
        rest.write("6\n")
    assert functions["find"]("torn", "h") == 56


@pytest.mark.parametrize("what", ["link", "writable by others", "no folder"])
def test_without_a_file_of_ones_own_nothing_is_kept(
    functions: Any, folder: Path, tmp_path: Path, what: str
) -> None:
    folder.parent.mkdir(parents=True)
    title, target = what, tmp_path / "other"
    target.write_text("a 1\n")
    if what == "no folder":
        folder.write_text("")
    else:
        folder.mkdir()
        file = folder / f"{title.replace(' ', '-')}.txt"
        if what == "link":
            file.symlink_to(target)
        else:
            file.write_text("a 1\n")
            file.chmod(0o622)
    assert functions["find"](title, "a") == -1
    functions["keep"](title, "b", 2)
    assert functions["find"](title, "b") == 2  # in this process
    assert target.read_text() == "a 1\n"
