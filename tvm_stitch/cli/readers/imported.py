# SPDX-License-Identifier: Apache-2.0
"""The result of reading a model file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from ...execution.tensors import TensorSpec
    from ...front.signature import Signature

    Inputs = Mapping[str, np.ndarray]

RUNTIME_ADVICE = "ONNX models are compared with ONNX Runtime: pip install onnxruntime"


@dataclass(frozen=True)
class PeerCall:
    """A model in another runtime, with inputs for it.

    Attributes:
        run: calls the model once, as a user's program does, and returns the runtime's own results.
        arrays: converts the value that ``run`` returned to arrays: the results, then changed buffers and inputs.
        restore: gives changed buffers and inputs their first values again, or None if the model changes none.
    """

    run: Callable[[], Any]
    arrays: Callable[[Any], list[np.ndarray]]
    restore: Callable[[], None] | None = None

    def __call__(self) -> list[np.ndarray]:
        """Call the model once on its first values, and return all results as arrays."""
        if self.restore is not None:
            self.restore()
        return self.arrays(self.run())


@dataclass(frozen=True)
class Model:
    """An imported model.

    ``signature`` says how it is called. ``peer`` returns a call of another runtime on given inputs. ``peer_name`` is
    the name of that runtime.
    """

    mod: Any
    signature: Signature
    peer_name: str
    peer: Callable[[Inputs], PeerCall]

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """All inputs of the function ``main``."""
        return self.signature.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """All results of the function ``main``."""
        return self.signature.outputs
