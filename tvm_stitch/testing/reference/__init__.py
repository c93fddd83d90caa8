# SPDX-License-Identifier: Apache-2.0
"""float64 references and error bounds of operators."""
