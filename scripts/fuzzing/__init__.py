# SPDX-License-Identifier: Apache-2.0
"""A fuzzer of the whole compiler with its own oracle: cases are plain data, built, run, judged and shrunk."""
