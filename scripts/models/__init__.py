# SPDX-License-Identifier: Apache-2.0
"""Whole models, and the compilers that `bench_models.py` compares on them."""
