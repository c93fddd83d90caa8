# SPDX-License-Identifier: Apache-2.0
"""Parts of mutation testing: mutations and their tables, runs of tests, and the page with the results."""
