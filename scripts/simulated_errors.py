#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Errors of half models as a GPU computes them, simulated on a CPU, next to PyTorch's.

    python scripts/simulated_errors.py --models timm:gernet_s,timm:densenet121
    python scripts/simulated_errors.py --models timm:hrnet_w18_small --dtype bfloat16 --seeds 4

The build has the libraries' calls and the kernels that a CUDA target gets, with their roundings
(``models.simulated``). Each seed has other weights and other inputs, and each draw other inputs. Parameters are rounded
to the type first, so all errors are those of the arithmetic, against the same model in float64. Errors are relative to
the greatest value of a result: the root mean square of all elements, and the greatest of a draw. Both are root mean
squares over the draws.

Exit code: 0 no error is more than --most times PyTorch's in root mean square, 1 one is, 2 a usage error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)
import numpy as np
from models.errors import relative_error, root_mean_square
from models.registry import check_packages, find
from models.spec import MissingPackages, Model, make

KINDS = (root_mean_square, relative_error)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--models", required=True, help="comma-separated names of bench_models.py, such as timm:gernet_s")
    add("--size", default="full", choices=["full", "small"], help="size of the models (default: %(default)s)")
    add("--dtype", default="float16", choices=["float16", "bfloat16"])
    add("--batch", type=int, default=4, help="batch size (default: %(default)s)")
    add("--seeds", type=int, default=2, help="number of weights (default: %(default)s)")
    add("--draws", type=int, default=2, help="inputs of each seed (default: %(default)s)")
    add("--most", type=float, default=1.2, help="most times PyTorch's error (default: %(default)s)")
    args = parser.parse_args(argv)
    names = args.models.split(",")
    models = [model for model in map(find, names) if model is not None]
    if len(models) != len(names) or min(args.batch, args.seeds, args.draws) < 1:
        parser.error("unknown model, or a number below 1")
    try:
        check_packages(models)
    except MissingPackages as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    heads = [f"{what}{who}" for what in ("rms", "greatest") for who in ("", ", PyTorch's", ", ratio")]
    print(f"{'model':28}" + "".join(f"{head:>21}" for head in heads), flush=True)
    worst = 0.0
    for model in models:
        found = np.array(list(_errors(model, args)))  # draws x contenders x kinds
        ours, theirs = np.sqrt(np.square(found).mean(0))
        cells = [f"{n:21.2e}" if i % 3 < 2 else f"{n:21.2f}" for i, n in enumerate(_cells(ours, theirs))]
        print(f"{model.name:28}" + "".join(cells), flush=True)
        worst = max(worst, ours[0] / theirs[0])
    return 0 if worst <= args.most else 1


def _cells(ours: np.ndarray, theirs: np.ndarray) -> Iterator[float]:
    for mine, other in zip(ours, theirs):
        yield from (mine, other, mine / other)


def _errors(model: Model, args: Any) -> Iterator[list[list[float]]]:
    """Yield for each draw the errors of this package's build and of PyTorch."""
    import ml_dtypes
    import torch
    from models.importing import import_torch
    from models.simulated import RoundedOperators, SimulatedBuild
    from models.torch_contenders import tensor_draws, to_arrays

    half = ml_dtypes.bfloat16 if args.dtype == "bfloat16" else np.float16
    for seed in range(args.seeds):
        made = make(model, args.size, args.batch, args.dtype, seed)
        build = SimulatedBuild(import_torch(made, args.dtype, "half"))
        with torch.no_grad():
            program = torch.export.export(made.module, tuple(made.inputs)).run_decompositions({})
            peer = RoundedOperators(program.module(), getattr(torch, args.dtype))
            draws = tensor_draws(made.inputs, args.draws)
            theirs = [to_arrays(peer.run(*inputs)) for inputs in draws]
            module = made.module.double()
            wide = [[x.double() if x.is_floating_point() else x for x in inputs] for inputs in draws]
            exact = [to_arrays(module(*inputs)) for inputs in wide]
        for inputs, other, want in zip(draws, theirs, exact):
            arrays = [x.numpy().astype(half) if x.is_floating_point() else x.numpy() for x in inputs]
            yield [[kind(got, want) for kind in KINDS] for got in (build(arrays), other)]


if __name__ == "__main__":
    sys.exit(main())
