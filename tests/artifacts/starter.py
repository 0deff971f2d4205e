"""A process on another machine, as far as its locks can tell, that does what its stdin says.

python starter.py URI HOST LEASE_S

claim      -> held GENERATION | busy MESSAGE        (after `ready`)
save STEP  -> saved | lost MESSAGE
"""

from __future__ import annotations

import socket
import sys

HOST, LEASE_S = sys.argv[2], float(sys.argv[3])
socket.gethostname = lambda: HOST

import numpy as np  # noqa: E402

from elasticdl.artifacts import output_lease  # noqa: E402
from elasticdl.artifacts.checkpoint_store import Checkpoint, CheckpointStore  # noqa: E402
from elasticdl.artifacts.claim import claim  # noqa: E402
from elasticdl.artifacts.folder import OutputFolder  # noqa: E402
from elasticdl.errors import OutputBusyError, OutputLostError  # noqa: E402
from elasticdl.job import Job, ModelReference  # noqa: E402

output_lease.LEASE_S = LEASE_S
JOB = Job(
    command="train",
    data="data",
    output="output",
    model=ModelReference(zoo="zoo", model_def="mnist", params={}),
)


def main() -> None:
    folder = OutputFolder(sys.argv[1])
    folder.exists("anything")
    store = CheckpointStore(folder)
    print("ready", flush=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        try:
            if command == "claim":
                held = claim(folder, JOB)
                print("held", held.generation, flush=True)
            elif command == "save":
                state = {"host": np.frombuffer(HOST.encode(), np.uint8)}
                store.save(Checkpoint(int(arguments[0]), state, {"host": HOST}))
                print("saved", flush=True)
            elif command == "release":
                held.release()
                print("released", flush=True)
        except OutputBusyError as error:
            print("busy", error, flush=True)
        except OutputLostError as error:
            print("lost", error, flush=True)


main()
