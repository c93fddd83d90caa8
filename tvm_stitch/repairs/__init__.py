# SPDX-License-Identifier: Apache-2.0
"""Repairs of faults of TVM, one fault a file, in four folders. The two modules of this folder are shared by all.

``tir`` and ``relay`` rewrite expressions and kernels that codegen emits, so they import no layer above ``graph``.
``schedule`` rewrites the functions that TVM schedules, ``legalize`` the Relax operators that TVM legalizes.
"""
