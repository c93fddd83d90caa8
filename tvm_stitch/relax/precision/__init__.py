# SPDX-License-Identifier: Apache-2.0
"""Mixed precision of half types."""
