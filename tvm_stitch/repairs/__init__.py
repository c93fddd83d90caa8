# SPDX-License-Identifier: Apache-2.0
"""Repairs of TVM: one fault a file, in four folders; the two modules here are shared by them.

``tir`` and ``relay`` rewrite expressions and kernels that codegen emits, so they import no layer above ``graph``.
``schedule`` rewrites the functions that TVM schedules, ``legalize`` the Relax operators that TVM legalizes.
"""
