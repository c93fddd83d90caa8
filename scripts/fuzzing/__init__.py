# SPDX-License-Identifier: Apache-2.0
"""A fuzzer of the whole compiler with an oracle of its own: cases as plain data, built, run, judged and shrunk."""
