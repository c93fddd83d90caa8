# SPDX-License-Identifier: Apache-2.0
"""Emit TIR from a KernelPlan: GPU and CPU emitters, and the code that they share."""
