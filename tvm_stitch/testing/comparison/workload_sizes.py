# SPDX-License-Identifier: Apache-2.0
"""The sizes of a comparison's workload, and the command-line options that set them."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sizes:
    """Extents; the defaults are those of BERT base. ``rows`` is that of the subgraph, which is no model."""

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
        """The width of one attention head; ValueError if the heads do not divide ``hidden``."""
        if self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})")
        return self.hidden // self.heads

    def title(self, model: str) -> str:
        """The model with its sizes, in words."""
        layers = f"{self.layers} layer" + ("s" if self.layers > 1 else "")
        return (
            f"{model}, {layers}, batch {self.batch}, sequence {self.sequence}, hidden {self.hidden}, float32"
        )

    def bert_config(self) -> Any:
        """The configuration of the BERT model of these sizes."""
        from ..bert import BertConfig

        return BertConfig(
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            sequence=self.sequence,
            ffn=self.ffn,
            vocabulary=self.vocabulary,
            batch=self.batch,
            seed=self.seed,
        )


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


def sizes_from(args: argparse.Namespace) -> Sizes:
    """The sizes that were asked for.

    Raises:
        ValueError: for sizes that do not fit together.
    """
    return Sizes(**{name: getattr(args, name) for name in _OPTIONS})
