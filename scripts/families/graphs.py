# SPDX-License-Identifier: Apache-2.0
"""Networks on graphs and recommenders, by the torch_geometric package and PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .spec import Architecture, Tensors, ids

NODES, FEATURES = 10, 8


def _edges(n: int) -> torch.Tensor:
    return torch.randint(0, NODES, (2, n))


def _basic(name: str, **options: Any) -> Architecture:
    def build() -> Any:
        from torch_geometric.nn import models

        return Tensors(getattr(models, name)(FEATURES, 16, num_layers=2, out_channels=4, **options))

    return Architecture(
        name.lower(),
        "graphs",
        "torch_geometric",
        build,
        lambda n: (torch.randn(NODES, FEATURES), _edges(n)),
        "edges",
        ((), (1,)),
        (20, 13),
    )


def _layer(name: str, *sizes: int, **options: Any) -> Architecture:
    def build() -> Any:
        from torch_geometric import nn

        return Tensors(getattr(nn, name)(*sizes, **options))

    return Architecture(
        name.lower(),
        "graphs",
        "torch_geometric",
        build,
        lambda n: (torch.randn(NODES, FEATURES), _edges(n)),
        sizes=(20, 13),
    )


def _lightgcn() -> Any:
    from torch_geometric.nn.models import LightGCN

    return Tensors(LightGCN(NODES, 16, 2))


def _schnet() -> Any:
    from torch_geometric.nn.models import SchNet

    return SchNet(16, 16, 2, 8, 4.0)


def _bags() -> Any:
    return torch.nn.EmbeddingBag(50, 8, mode="mean")


def _metapath() -> Callable[[], Any]:
    def build() -> Any:
        from torch_geometric.nn import models

        return Tensors(models.MLP([FEATURES, 16, 4], norm="layer_norm"))

    return build


ARCHITECTURES = (
    _basic("GCN"),
    _basic("GraphSAGE"),
    _basic("GIN"),
    _basic("GAT", heads=2),
    _basic(
        "PNA",
        aggregators=["mean", "max", "min", "std"],
        scalers=["identity", "amplification"],
        deg=torch.ones(8),
    ),
    _basic("EdgeCNN"),
    _layer("TransformerConv", FEATURES, 4, heads=2),
    _layer("TAGConv", FEATURES, 4),
    _layer("ARMAConv", FEATURES, 4),
    _layer("ChebConv", FEATURES, 4, K=2),
    _layer("GatedGraphConv", 16, num_layers=2),
    _layer("ResGatedGraphConv", FEATURES, 4),
    Architecture(
        "mlp",
        "graphs",
        "torch_geometric",
        _metapath(),
        lambda n: (torch.randn(n, FEATURES),),
        "batch",
        ((0,),),
        (6, 5),
    ),
    Architecture(
        "lightgcn", "recommenders", "torch_geometric", _lightgcn, lambda n: (_edges(n),), sizes=(20, 13)
    ),
    Architecture(
        "embedding-bag", "recommenders", "torch", _bags, lambda n: (ids(n, 6, below=50),), "batch", ((0,),)
    ),
)
