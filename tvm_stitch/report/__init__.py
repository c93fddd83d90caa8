# SPDX-License-Identifier: Apache-2.0
"""What a model became, as plain data, and the views of it: text, an HTML page, a trace, and the answer about a pair."""
