# SPDX-License-Identifier: Apache-2.0
"""What a child process answers with: crashes and hangs where the test asks for them."""

from __future__ import annotations

import os
import time

from fuzzing import workers
from fuzzing.workers import Answer, Work


def answer(work: Work) -> Answer:
    """Ends the process or sleeps for a backend of that name."""
    if work.settings.backend == "crash":
        os.abort()
    if work.settings.backend == "hang":
        time.sleep(600)
    return workers.answer(work)
