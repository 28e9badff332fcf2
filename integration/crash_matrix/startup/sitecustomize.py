"""Each Python process that a Spark JVM of the crash matrix starts passes the trap, and so do its forks.

Python imports this at its start. Spark starts more than one kind of process: workers of tasks, and those in which a
format's START and commit run.
"""

import os
from pathlib import Path

from integration.crash_matrix.trap import Trap

from onceward.core.kit import crash_points as steps

folder, *ports = os.environ["CRASH_MATRIX_TRAP"].split(os.pathsep)
steps._hook = Trap(Path(folder), tuple(map(int, ports)))
