# SPDX-License-Identifier: Apache-2.0
"""Compare recurrent layers on a GPU with cuDNN: one build for all lengths and batches.

    python scripts/bench_recurrent_gpu.py                           # LSTM, GRU and RNN, hidden 128 to 512
    python scripts/bench_recurrent_gpu.py LSTM --sizes 256x26x1 --dtype float16

A size is hidden units x steps x batch. Models have weights drawn at random, as many input features as hidden units, and
symbolic length and batch. ``GRU2`` is a GRU whose reset gate applies to the state before the product. A step then has
two products. cuDNN has no such layer, so its GRU is shown instead. cuDNN is PyTorch's layer in a CUDA graph. Both take
turns by blocks of calls, with the second-level cache flushed before each block. ``kernel`` is the time of our kernel of
all steps alone, without the product of the inputs. Errors are the greatest ones against float64.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import _checkout  # noqa: F401  (puts the packages on the path)
from _gpu import need_gpu
from _table import aligned, geometric_mean
from bench_recurrent import model_of

KINDS = ("LSTM", "GRU", "GRU2", "RNN")
SIZES = ["256x26x1", "256x26x16", "512x26x1", "128x64x8", "256x128x64"]
TORCH_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "GRU2": (1, 0, 2), "RNN": (0,)}
"""Gates of an ONNX layer in PyTorch's order."""
KERNEL = re.compile(r"(lstm|gru|rnn)_kernel\d*_kernel")
"""Names of our kernels of all steps."""
CALLS = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each layer and size, and return 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "kinds", nargs="*", default=["LSTM", "GRU", "RNN"], metavar="KIND", help=", ".join(KINDS)
    )
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="hidden x steps x batch, as 256x26x1")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16"))
    parser.add_argument("--direction", default="forward", choices=("forward", "reverse", "bidirectional"))
    parser.add_argument("--blocks", type=int, default=7, help="blocks of calls of each")
    options = parser.parse_args(arguments)
    unknown = [kind for kind in options.kinds if kind not in KINDS]
    if unknown:
        parser.error(f"no layer: {unknown}")
    sizes = [tuple(map(int, size.split("x"))) for size in options.sizes]
    need_gpu()
    head = ["layer", "hidden", "steps", "batch", "kernel, us", "ours, us", "cuDNN, us", "ratio", "error"]
    body, ratios = [], []
    for kind in options.kinds:
        for hidden in dict.fromkeys(size[0] for size in sizes):
            layer = _Layers(kind, hidden, options.direction, options.dtype)
            for _, steps, batch in (size for size in sizes if size[0] == hidden):
                own, ours, theirs, error = layer.measured(steps, batch, options.blocks)
                ratios.append(theirs / ours)
                times = [f"{own:.1f}", f"{ours:.1f}", f"{theirs:.1f}", f"{theirs / ours:.2f}"]
                body.append([kind, *map(str, (hidden, steps, batch)), *times, f"{error:.0e}"])
                print("  ".join(body[-1]), file=sys.stderr, flush=True)
    print(aligned(head, body))
    print(f"geometric mean of the ratios {geometric_mean(ratios):.2f}")
    return 0


class _Layers:
    """A layer as an executable of this package, as PyTorch's module, and in float64."""

    def __init__(self, kind: str, hidden: int, direction: str, dtype: str):
        import onnx
        import torch
        import tvm
        from tvm import relax

        import tvm_stitch
        from tvm_stitch.importers.onnx.load import from_onnx

        self.kind, self.hidden, self.direction = kind, hidden, direction
        self.dtype = getattr(torch, dtype)
        model = model_of("GRU" if kind == "GRU2" else kind, hidden, direction, dtype, linear=kind == "GRU")
        self.weights = {
            each.name: torch.tensor(onnx.numpy_helper.to_array(each)).cuda()
            for each in model.graph.initializer
        }
        config = tvm_stitch.StitchConfig(cuda_graph=True)
        built = tvm_stitch.compile(from_onnx(model), tvm.target.Target("cuda"), config)
        self.ours = relax.VirtualMachine(built, tvm.cuda())["main"]
        torch_kind = "GRU" if kind == "GRU2" else kind
        both = direction == "bidirectional"
        self.peer = getattr(torch.nn, torch_kind)(hidden, hidden, bidirectional=both).cuda().to(self.dtype)
        gates = TORCH_GATES[kind]
        with torch.no_grad():
            for number in range(2 if both else 1):
                suffix = "_l0" + "_reverse" * number
                for name, target in (("W", "weight_ih"), ("R", "weight_hh")):
                    parts = self.weights[name][number].chunk(len(gates))
                    getattr(self.peer, target + suffix).copy_(_ordered(parts, gates))
                halves = self.weights["B"][number].chunk(2)
                for half, target in zip(halves, ("bias_ih", "bias_hh"), strict=True):
                    getattr(self.peer, target + suffix).copy_(_ordered(half.chunk(len(gates)), gates))
        self.peer.flatten_parameters()

    def measured(self, steps: int, batch: int, blocks: int) -> tuple[float, float, float, float]:
        """Return microseconds of our kernels of steps, of our layer and of cuDNN's, and the greatest error."""
        import torch
        import tvm
        from _cuda_events import microseconds
        from _device_events import device_events

        generator = torch.Generator("cuda").manual_seed(0)
        x = torch.randn(steps, batch, self.hidden, device="cuda", generator=generator).to(self.dtype)
        given = tvm.runtime.from_dlpack(x)
        error = float((torch.from_dlpack(self.ours(given)[0]).double() - self._exact(x)).abs().max())
        with torch.no_grad():
            self.peer(x)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.peer(x)

        def several() -> None:
            for _ in range(CALLS):
                self.ours(given)
            torch.cuda.synchronize()

        several()
        of_steps = [seconds for name, seconds in device_events(several) if KERNEL.match(name)]
        calls: dict[str, Callable[[], Any]] = {"ours": lambda: self.ours(given), "cuDNN": graph.replay}
        spent = microseconds(calls, blocks, CALLS)
        launches = max(1, round(len(of_steps) / CALLS))
        own = statistics.median(of_steps) * launches * 1e6 if of_steps else float("nan")
        return own, spent["ours"], spent["cuDNN"], error

    def _exact(self, x: Any) -> Any:
        """Return the states <steps, directions, batch, hidden> in float64."""
        import torch

        directions = len(self.weights["W"])
        states = []
        for number in range(directions):
            backwards = self.direction == "reverse" or number == 1
            states.append(self._direction(x.double(), number, backwards))
        return torch.stack(states, 1)

    def _direction(self, x: Any, number: int, backwards: bool) -> Any:
        import torch

        steps, batch, _ = x.shape
        w, r, bias = (self.weights[name][number].double() for name in "WRB")
        of_input, of_state = bias.chunk(2)
        h = c = torch.zeros(batch, self.hidden, dtype=torch.float64, device="cuda")
        states = torch.zeros(steps, batch, self.hidden, dtype=torch.float64, device="cuda")
        into = x @ w.T + of_input
        gates = len(TORCH_GATES[self.kind])
        for step in reversed(range(steps)) if backwards else range(steps):
            own = into[step].chunk(gates, -1)
            seen = (h @ r.T + of_state).chunk(gates, -1)
            if self.kind == "LSTM":
                i, o, f, g = (a + b for a, b in zip(own, seen, strict=True))
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
            elif self.kind == "RNN":
                h = (own[0] + seen[0]).tanh()
            else:
                update, reset = ((own[i] + seen[i]).sigmoid() for i in (0, 1))
                before = (reset * h) @ r[2 * self.hidden :].T + of_state[2 * self.hidden :]
                new = (own[2] + (reset * seen[2] if self.kind == "GRU" else before)).tanh()
                h = (1 - update) * new + update * h
            states[step] = h
        return states


def _ordered(parts: Sequence[Any], gates: Sequence[int]) -> Any:
    import torch

    return torch.cat([parts[gate] for gate in gates])


if __name__ == "__main__":
    raise SystemExit(main())
