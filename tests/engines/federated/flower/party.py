"""A party of the tests, as a process of its own: answers at once, or as its file says.

    python party.py FOLDER NAME ADDRESS KEYS

It writes its process' number into FOLDER/pid. FOLDER/slow holds seconds to wait before an answer.
"""

import logging
import os
import signal
import sys
import time
from pathlib import Path

from elasticdl.engines.federated.flower.keys import PartyKeys
from elasticdl.engines.federated.flower.resident import Resident
from elasticdl.engines.federated.flower.supernode import Supernode


def main(folder, name, address, keys):
    logging.basicConfig(level=logging.INFO)
    asked = 0

    def answer(arrays, facts):
        nonlocal asked
        asked += 1
        if (folder / "slow").exists():
            time.sleep(float((folder / "slow").read_text()))
        doubled = {key: array * 2 for key, array in arrays.items()}
        return doubled, {"party": name, "asked": asked, "was told": dict(facts), "at": time.time()}

    socket_path = folder / "s"
    with Resident(socket_path, name, answer) as resident:
        signal.signal(signal.SIGTERM, lambda *_: resident.stop())
        read = PartyKeys.read(Path(keys)) if keys else None
        supernode = Supernode(folder / "supernode", address, read, socket_path)
        supernode.start()
        (folder / "pid").write_text(str(os.getpid()))
        try:
            resident.run()
        finally:
            supernode.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
