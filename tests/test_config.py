# SPDX-License-Identifier: Apache-2.0
"""StitchConfig: defaults, and errors that name the choices."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tvm_stitch import StitchConfig

NAMES = [f.name for f in dataclasses.fields(StitchConfig)]


def test_defaults() -> None:
    config = StitchConfig()
    assert not config.strict and config.epilogues and config.horizontal_fusion
    assert {f.name: f.default for f in dataclasses.fields(config)} == config.to_dict()


def test_plain_data() -> None:
    config = StitchConfig(strict=True, max_operators=7)
    shown = json.loads(json.dumps(config.to_dict()))
    assert shown["strict"] is True and shown["max_operators"] == 7
    assert StitchConfig(**shown) == config


def test_equality_and_immutability() -> None:
    assert StitchConfig() == StitchConfig() and StitchConfig(horizontal_fusion=False) != StitchConfig()
    assert hash(StitchConfig()) == hash(StitchConfig())
    with pytest.raises(dataclasses.FrozenInstanceError):
        StitchConfig().strict = True  # type: ignore[misc]


def test_the_old_name_of_an_option_still_works() -> None:
    with pytest.warns(DeprecationWarning, match="'remote' is called 'horizontal_fusion' now"):
        config = StitchConfig(remote=False)
    assert config == StitchConfig(horizontal_fusion=False) and "remote" not in config.to_dict()
    with pytest.warns(DeprecationWarning), pytest.raises(ValueError, match="give 'horizontal_fusion' only"):
        StitchConfig(remote=False, horizontal_fusion=True)


def test_an_option_without_effect_is_taken_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="'deterministic' has no effect"):
        assert StitchConfig(deterministic=False) == StitchConfig()


def test_an_unknown_option_names_the_nearest_and_all() -> None:
    with pytest.raises(
        ValueError, match="unknown option 'max_operator'; did you mean 'max_operators'?"
    ) as error:
        StitchConfig(max_operator=3)
    assert all(name in str(error.value) for name in NAMES)
    with pytest.raises(ValueError, match=r"unknown option 'zzz' \(options: "):
        StitchConfig(zzz=1)


def test_options_go_by_name() -> None:
    with pytest.raises(TypeError):
        StitchConfig(True)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", [n for n in NAMES if isinstance(getattr(StitchConfig(), n), bool)])
@pytest.mark.parametrize("value", [1, 0, "yes", None])
def test_switches_take_booleans_only(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"option '{name}' must be True or False, not {value!r}"):
        StitchConfig(**{name: value})


@pytest.mark.parametrize("name", [n for n in NAMES if type(getattr(StitchConfig(), n)) is int])
@pytest.mark.parametrize("value", [0, -1, True, 2.5, "8", None])
def test_limits_take_positive_integers_only(name: str, value: object) -> None:
    if (name, value) == ("multiprocessors", 0):
        assert StitchConfig(multiprocessors=0) == StitchConfig()  # all of them
        return
    with pytest.raises(ValueError, match=f"option '{name}' must be an integer of at least [012], not"):
        StitchConfig(**{name: value})


def test_what_computes_operators_of_a_kind() -> None:
    config = StitchConfig(compute="libraries, attention=tvm,convolution = templates")
    found = [config.compute_of(kind) for kind in ("matmul", "convolution", "attention")]
    assert found == ["libraries", "templates", "tvm"] and config.of_tvm == {"attention"}
    assert StitchConfig(compute="attention=tvm").compute_of("matmul") == "auto"
    assert StitchConfig().of_tvm == set() and len(StitchConfig(compute="tvm").of_tvm) == 3


@pytest.mark.parametrize(
    "value",
    [
        "tvn",
        "auto, softmax=tvm",
        "attention=",
        "auto,",
        "",
        "=tvm",
        "tvm, auto",
        "auto, matmul=tvm, matmul=auto",
        None,
        1,
    ],
)
def test_a_bad_choice_names_the_choices(value: object) -> None:
    with pytest.raises(ValueError, match="option 'compute' must be one of 'auto', .*'auto, attention=tvm'"):
        StitchConfig(compute=value)
