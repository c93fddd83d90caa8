# SPDX-License-Identifier: Apache-2.0
"""Loops and recurrent layers as private Relax functions. Their code does not grow with the number of steps."""
