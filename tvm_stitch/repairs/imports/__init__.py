# SPDX-License-Identifier: Apache-2.0
"""Repairs of calls that importers emit: each writes a call as other operators, for ``MendImports``."""
