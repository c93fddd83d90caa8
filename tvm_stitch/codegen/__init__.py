# SPDX-License-Identifier: Apache-2.0
"""From a KernelPlan to TIR: GPU and CPU, and what they share."""
