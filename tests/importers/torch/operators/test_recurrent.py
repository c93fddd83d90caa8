# SPDX-License-Identifier: Apache-2.0
"""PyTorch's LSTM, GRU and RNN in float64 against compiled ones, with symbolic numbers of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.export import Dim, export  # noqa: E402
from tvm.relax.frontend.torch import from_exported_program  # noqa: E402

import tvm_stitch  # noqa: E402
from tests.relax.loops.modules import run  # noqa: E402
from tvm_stitch.importers import torch as importers  # noqa: E402
from tvm_stitch.importers.torch.archive import load_program  # noqa: E402
from tvm_stitch.importers.torch.converters import torch_converters  # noqa: E402
from tvm_stitch.importers.torch.operators.recurrent import (  # noqa: E402
    register_operators,
    symbolic_steps,
)

FEATURES, HIDDEN = 6, 10
CASES: list[tuple[str, dict[str, Any]]] = [
    ("LSTM", {"num_layers": 2, "bidirectional": True}),
    ("LSTM", {"proj_size": 4, "bidirectional": True, "batch_first": True}),
    ("GRU", {"bidirectional": True, "dropout": 0.5, "num_layers": 2}),
    ("GRU", {"bias": False, "batch_first": True}),
    ("RNN", {"nonlinearity": "relu"}),
    ("RNN", {"bias": False, "num_layers": 2}),
]


class Layer(nn.Module):
    """A recurrent layer, with its first states as inputs if ``states``."""

    def __init__(self, kind: str, options: dict[str, Any]):
        super().__init__()
        self.layer = getattr(nn, kind)(FEATURES, HIDDEN, **options)

    def forward(self, x: Any, *states: Any) -> Any:
        """Return all states of the last layer, and the last states."""
        return self.layer(x, *states)


def flat(results: Any) -> list[Any]:
    return [x for each in results for x in (flat(each) if isinstance(each, tuple) else [each])]


def matches(executable: Any, module: Any, *inputs: Any) -> bool:
    """Return whether results equal those of PyTorch in float64."""
    wanted = [each.detach().numpy() for each in flat(module.double()(*(x.double() for x in inputs)))]
    module.float()
    found = run(executable, [tvm.runtime.tensor(x.numpy()) for x in inputs])
    assert [a.shape for a in found] == [b.shape for b in wanted]
    return all(np.allclose(a.numpy(), b, rtol=0, atol=2e-6) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_all_lengths(kind: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    module = Layer(kind, options).eval()
    steps, batch = Dim("steps", min=1, max=400), Dim("batch", min=1, max=64)
    order = (batch, steps) if options.get("batch_first") else (steps, batch)
    with symbolic_steps():
        program = export(module, (torch.randn(7, 3, FEATURES),), dynamic_shapes={"x": dict(enumerate(order))})
    executable = tvm_stitch.compile(from_exported_program(program, custom_convert_map=torch_converters()))
    for shape in ((1, 1), (2, 5), (300, 3)):
        sizes = reversed(shape) if options.get("batch_first") else shape
        assert matches(executable, module, torch.randn(*sizes, FEATURES))


def test_a_fixed_length_with_given_states() -> None:
    """PyTorch's own operator, which is decomposed to one step after the other unless it is kept."""
    torch.manual_seed(0)
    module = Layer("GRU", {}).eval()
    inputs = (torch.randn(7, 3, FEATURES), torch.randn(1, 3, HIDDEN))
    mod = importers.from_exported_program(export(module, inputs))
    assert any(gvar.name_hint == "gru_layer" for gvar in mod.functions)
    assert matches(tvm_stitch.compile(mod), module, *inputs)


def test_a_saved_program(tmp_path: Any) -> None:
    module = Layer("LSTM", {}).eval()
    with symbolic_steps():
        program = export(module, (torch.randn(7, 3, FEATURES),))
    torch.export.save(program, tmp_path / "layer.pt2")
    register_operators()
    loaded = load_program(tmp_path / "layer.pt2")  # as the command line reads it
    x = torch.randn(7, 3, FEATURES)
    assert all(torch.equal(a, b) for a, b in zip(flat(loaded.module()(x)), flat(module(x)), strict=True))


def test_dropout_in_training_is_refused() -> None:
    module = Layer("LSTM", {"num_layers": 2, "dropout": 0.5}).train()
    with symbolic_steps():
        program = export(module, (torch.randn(7, 3, FEATURES),))
    with pytest.raises(ValueError, match=r"dropout 0.5 in training; export the module in eval\(\) mode"):
        from_exported_program(program, custom_convert_map=torch_converters())


def test_layers_outside_of_the_context_are_pytorchs() -> None:
    with symbolic_steps():
        pass
    program = export(Layer("RNN", {}).eval(), (torch.randn(7, 3, FEATURES),))
    assert "tvm_stitch" not in str(program.graph)
