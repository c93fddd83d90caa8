# SPDX-License-Identifier: Apache-2.0
"""Replace Relax operators that TVM imports, legalizes or fuses wrongly."""
