# SPDX-License-Identifier: Apache-2.0
"""Find attention in Relax functions, and call one kernel for it."""
