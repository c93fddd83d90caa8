# SPDX-License-Identifier: Apache-2.0
"""``tvm-stitch run``: call a compiled model with inputs from files, or with random ones."""

from __future__ import annotations

import argparse
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...deploy.cpu_flags import why_not_here
from ...deploy.folder import NotCompiled, find_library
from ...support.failures import reraise_fatal
from ..errors import Failure, UsageError
from ..options import add_shape, add_timing, check_timing, parse_shapes, path_of
from ..outputs import check_files, files_for
from ..progress import Progress

if TYPE_CHECKING:
    import numpy as np

    from ...execution.tensors import TensorSpec

SUMMARY = "run a compiled model, on given or on random inputs, and say what it returned and how long it took"


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    command.add_argument(
        "model", metavar="MODEL", type=path_of, help="the folder that compile wrote, or a library of a model"
    )
    command.add_argument(
        "-i",
        "--input",
        metavar="[NAME=]FILE",
        action="append",
        default=[],
        help="an array: x=x.npy, or .npz with all arrays by name; may be given several times "
        "(default: random inputs)",
    )
    command.add_argument(
        "-o", "--output", metavar="FILE.npz", type=path_of, help="write what the model returned"
    )
    command.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        help="the device of a library without a manifest (default: cpu); a manifest names the device itself",
    )
    add_shape(command)
    add_timing(command)


def check(args: argparse.Namespace) -> None:
    """Raise a UsageError for invalid options."""
    check_timing(args)
    check_files({"-o": args.output}, [args.model, *(_input_path(word) for word in args.input)])
    parse_shapes(args.shape)
    _find(args.model)


def run(args: argparse.Namespace, progress: Progress) -> tuple[dict[str, Any], str]:
    """Run a model. Return its outputs' description and its time, as data and as text."""
    shapes = parse_shapes(args.shape)
    library, manifest = _find(args.model)
    with files_for({"-o": args.output}) as files:
        given = _given(args.input, [spec["name"] for spec in manifest.get("inputs", [])])
        given = _state(library, manifest) | given
        inputs = _inputs(manifest, given, shapes, args.seed)
        device = _device(manifest, args.device)
        if reason := why_not_here(manifest.get("cpu_flags", [])):
            raise Failure(f"{library} does not run here: {reason}")
        with progress(f"loading {library}"):
            runner = _load(library, device, list(inputs.values()))
        from ...execution.timing import interleaved

        outputs = _first_call(runner, inputs)
        with progress(f"timing {args.repeats} calls"):
            (times,) = interleaved([runner], args.repeats)
        names = [spec["name"] for spec in manifest.get("outputs", [])]
        if len(names) != len(outputs):
            names = [f"output{i}" for i in range(len(outputs))]
        if "-o" in files:
            import numpy as np

            with files["-o"].open("wb") as file:  # savez adds .npz to a name
                np.savez(file, **dict(zip(names, outputs)))
    random = [name for name in inputs if name not in given]
    data = {
        "library": str(library),
        "device": device,
        "inputs": {name: _described(array) for name, array in inputs.items()},
        "random_inputs": random,
        "seed": args.seed,
        "outputs": {name: _described(array) for name, array in zip(names, outputs)},
        "repeats": args.repeats,
        **times.to_dict(),
    }
    low, high = times.middle
    lines = [f"{name}: {_summary(array)}" for name, array in zip(names, outputs)]
    if random:
        lines.append(f"inputs: {', '.join(random)} random, seed {args.seed}")
    lines.append(
        f"median {times.median * 1e3:.3f} ms of {args.repeats} calls on {device}, the middle half "
        f"{low * 1e3:.3f} to {high * 1e3:.3f} ms"
    )
    return data, "\n".join(lines)


def _find(path: Path) -> tuple[Path, dict[str, Any]]:
    """Return a library, and the data of its manifest, which are empty without a manifest."""
    try:
        return find_library(path)
    except NotCompiled as error:
        raise UsageError(str(error)) from None


def _input_path(word: str) -> Path:
    """Return the file of an ``--input``."""
    try:
        return path_of(word.rpartition("=")[2])
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"--input: {error}") from None


def _given(words: list[str], known: list[str]) -> dict[str, np.ndarray]:
    """Return arrays from files, by input. Without a name, the array of a .npy file is for the next input."""
    import numpy as np

    given: dict[str, np.ndarray] = {}
    for word in words:
        name, equals, _ = word.rpartition("=")
        path = _input_path(word)
        if path.exists() and not path.is_file():
            raise UsageError(f"--input: {path} is not a regular file; give a .npy or .npz file")
        try:
            loaded = np.load(path, allow_pickle=False)
        except FileNotFoundError:
            raise UsageError(f"--input: no file {path}; give a .npy or .npz file") from None
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise UsageError(f"--input: {path} is not a .npy or .npz file of NumPy's ({error})") from None
        arrays = dict(loaded) if isinstance(loaded, np.lib.npyio.NpzFile) else None
        if arrays is None:
            free = [each for each in known if each not in given]
            arrays = {name if equals else free[0] if free else f"input{len(given)}": loaded}
        elif equals:
            raise UsageError(f"--input: {path} names its arrays itself; leave {name}= out")
        for each in arrays:
            if each in given:
                raise UsageError(f"--input: {each} is given twice; give it once")
        given |= arrays
    return given


def _state(library: Path, manifest: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the first values of the buffers that the model changes, by the names of their inputs."""
    if not manifest.get("call", {}).get("state"):
        return {}
    from ...front.saved import read_state

    try:
        values = read_state(library.parent, manifest).values()
    except NotCompiled as error:
        raise UsageError(str(error)) from None
    return {spec["name"]: value for spec, value in zip(manifest["inputs"][-len(values) :], values)}


def _inputs(
    manifest: dict[str, Any], given: dict[str, np.ndarray], shapes: dict[str, tuple[int, ...]], seed: int
) -> dict[str, np.ndarray]:
    """Return all inputs in order: the given ones, checked, and random ones for the rest."""
    from ...execution.tensors import SymbolicShape, TensorSpec, make_inputs

    if "inputs" not in manifest:
        if not given:
            raise UsageError(
                "a library without its manifest.json does not say what it takes; give --input FILE"
            )
        return given
    specs = [TensorSpec(s["name"], tuple(s["shape"]), s["dtype"]) for s in manifest["inputs"]]
    listed = "; ".join(map(str, specs))
    for name in [*given, *shapes]:
        if name not in {spec.name for spec in specs}:
            raise UsageError(f"the model has no input '{name}'; its inputs are {listed}")
    checked = {s.name: _checked(s, given[s.name]) for s in specs if s.name in given}
    wanted = []
    sizes = {d: n for s in specs if s.name in checked for d, n in zip(s.shape, checked[s.name].shape)}
    for spec in specs:
        if spec.name in shapes and not spec.takes(shapes[spec.name]):
            raise UsageError(f"shape {list(shapes[spec.name])} does not fit the input {spec}")
        if spec.name in shapes and spec.name in checked and shapes[spec.name] != checked[spec.name].shape:
            raise UsageError(
                f"--shape gives {spec.name} the shape {list(shapes[spec.name])}, its --input has "
                f"{list(checked[spec.name].shape)}; leave one of them out"
            )
        shape = shapes.get(spec.name, tuple(sizes.get(d, d) for d in spec.shape))
        wanted.append(TensorSpec(spec.name, shape, spec.dtype))
    try:
        random = make_inputs([spec for spec in wanted if spec.name not in checked], seed)
    except SymbolicShape as error:
        raise UsageError(f"{error}: {error.spec.shape_option}, each N a number, or --input") from None
    return {spec.name: checked.get(spec.name, random.get(spec.name)) for spec in specs}  # type: ignore[misc]


def _checked(spec: TensorSpec, array: np.ndarray) -> np.ndarray:
    """Return an array that fits an input. NumPy's files do not know bfloat16, and store it as two bytes."""
    if spec.dtype == "bfloat16" and array.dtype.kind == "V" and array.dtype.itemsize == 2:
        array = array.view(spec.numpy_dtype)
    if str(array.dtype) != spec.dtype or not spec.takes(array.shape):
        got = f"{array.dtype}[{', '.join(map(str, array.shape))}]"
        raise UsageError(f"the input {spec} is given as {got}; convert the array before it is saved")
    return array


def _device(manifest: dict[str, Any], asked: str | None) -> str:
    """Return the device that the model was compiled for."""
    import tvm

    kind = manifest.get("target", {}).get("kind")
    device = {"llvm": "cpu", "c": "cpu", None: asked or "cpu"}.get(kind, kind)
    if asked and asked != device:
        raise UsageError(f"--device {asked}: the model was compiled for {device}; leave --device out")
    if not tvm.device(str(device), 0).exist:
        raise Failure(
            f"no {device} device here, for which the model was compiled; run it on a machine with one, or "
            "compile the model again without --target"
        )
    return str(device)


def _load(library: Path, device: str, inputs: list[np.ndarray]) -> Any:
    """Return the model, ready to be called.

    Raises:
        UsageError: if the library does not hold a model.
    """
    import tvm

    from ...execution.runner import Runner

    try:
        module = tvm.runtime.load_module(str(library.absolute()))
        module["vm_load_executable"]
    except (AttributeError, RuntimeError) as error:
        reason = str(error).splitlines()[-1].rpartition("is false: ")[2]
        raise UsageError(f"{library} is not a compiled model: {reason}") from None
    return Runner(module, tvm.target.Target("cuda" if device == "cuda" else "llvm"), inputs)


def _first_call(runner: Any, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of a model.

    Raises:
        UsageError: if it rejects the inputs, which could not be checked before.
    """
    try:
        return list(runner.outputs())
    except (RuntimeError, TypeError, ValueError) as error:
        reraise_fatal(error)
        if not (complaint := _UNFIT.search(str(error))):
            raise
        given = ", ".join(f"{name}: {a.dtype}{list(a.shape)}" for name, a in inputs.items())
        raise UsageError(
            f"the model does not take {given}: {complaint[0].removeprefix('match_cast error,').strip()}"
        ) from None


# Messages of TVM's virtual machine about arguments that do not fit a function or a parameter.
_UNFIT = re.compile(
    r"Invoking function .* were provided|expect \w+ with \w+ .*|shape\[\d+\] mismatch .*|match_cast error.*"
)


def _described(array: np.ndarray) -> dict[str, Any]:
    import numpy as np

    description: dict[str, Any] = {"shape": list(array.shape), "dtype": str(array.dtype)}
    if array.size:
        wide = array.astype(np.float64)
        finite = wide[np.isfinite(wide)]
        description["not_finite"] = int(wide.size - finite.size)
        if finite.size:
            description |= {
                "min": float(finite.min()),
                "mean": float(finite.mean()),
                "max": float(finite.max()),
            }
    return description


def _summary(array: np.ndarray) -> str:
    description = _described(array)
    text = f"{description['dtype']}[{', '.join(map(str, description['shape']))}]"
    if "min" in description:
        text += f", {description['min']:.6g} to {description['max']:.6g}, mean {description['mean']:.6g}"
    if description.get("not_finite"):
        text += f", {description['not_finite']} not finite"
    return text
