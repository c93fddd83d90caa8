# SPDX-License-Identifier: Apache-2.0
"""The table of operators: each overload has one entry, and exists."""

from __future__ import annotations

import torch
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from tvm_stitch.importers.torch.converters import own_converters, torch_converters
from tvm_stitch.importers.torch.importing.table import REFUSED, THEIRS, UNKNOWN, reason_for


def test_no_operator_is_both_imported_and_refused() -> None:
    imported = THEIRS | set(own_converters())
    assert not imported & set(REFUSED)
    assert THEIRS <= set(ExportedProgramImporter().create_convert_map())


def test_refused_operators_exist() -> None:
    for name in REFUSED:
        packet = name.split(".")[0]
        assert "." not in name or "::" in name or hasattr(torch.ops.aten, packet), name


def test_reasons() -> None:
    assert "random" in reason_for("randn.default") and reason_for("no_such.default") == UNKNOWN


def test_converters_for_tvms_importer_refuse_what_it_misreads() -> None:
    converters = torch_converters()
    assert {"bernoulli.p", "randn.default", "add_.Tensor", "softsign.default"} <= set(converters)
    assert not set(converters) & THEIRS
