# SPDX-License-Identifier: Apache-2.0
"""The sizes of a comparison's workload, and the command-line options that set them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

Work = TypeVar("Work")


@dataclass(frozen=True)
class Sizes:
    """Extents, by default those of BERT base. ``rows`` is for the subgraph, which is no model."""

    layers: int = 1
    batch: int = 1
    sequence: int = 128
    hidden: int = 768
    heads: int = 12
    ffn: int = 3072
    vocabulary: int = 30522
    rows: int = 4096
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("layers", "batch", "sequence", "hidden", "heads", "ffn", "vocabulary", "rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def head(self) -> int:
        """Return the width of one attention head. ValueError if the heads do not divide ``hidden``."""
        if self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})")
        return self.hidden // self.heads

    def title(self, model: str) -> str:
        """Return the model with its sizes, in words."""
        layers = f"{self.layers} layer" + ("s" if self.layers > 1 else "")
        return (
            f"{model}, {layers}, batch {self.batch}, sequence {self.sequence}, hidden {self.hidden}, float32"
        )

    def bert_config(self) -> Any:
        """Return the configuration of the BERT model of these sizes."""
        from tvm_stitch.testing.workloads.bert import BertConfig

        sizes = asdict(self)
        del sizes["rows"]
        return BertConfig(**sizes)


_OPTIONS = {
    "layers": "layers of the model",
    "batch": "batch size",
    "sequence": "tokens in a sequence",
    "hidden": "width of the model, and of the subgraph's rows",
    "heads": "attention heads",
    "ffn": "width of the feed-forward part",
    "vocabulary": "tokens known (bert)",
    "rows": "rows of the subgraph add_layernorm_softmax",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for every size."""
    for name, words in _OPTIONS.items():
        parser.add_argument(
            f"--{name}", type=int, default=getattr(Sizes, name), help=f"{words} (default: %(default)s)"
        )


def chosen(
    name: str, sizes: Sizes, makers: Sequence[Callable[[Sizes], Work]], read: Callable[[str], Work]
) -> Work:
    """Make the workload of that name with one of the makers, or read it from a file.

    Raises:
        ValueError: when there is no such workload.
    """
    if name.endswith(".onnx"):
        return read(name)
    known = {maker.__name__: maker for maker in makers}
    if name not in known:
        raise ValueError(f"no workload '{name}': choose {', '.join(known)}, or a file MODEL.onnx")
    return known[name](sizes)


def sizes_from(args: argparse.Namespace) -> Sizes:
    """Return the sizes of the parsed options.

    Raises:
        ValueError: for sizes that do not fit together.
    """
    return Sizes(**{name: getattr(args, name) for name in _OPTIONS})
