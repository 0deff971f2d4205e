"""A party of the tests, as a process of its own: answers at once, or when it is let.

    python party.py FOLDER NAME ADDRESS KEYS

While there is FOLDER/hold it gives no answer, and FOLDER/held says that it has been asked.
"""

import logging
import signal
import sys
import time
from pathlib import Path

from elasticdl.engines.federated.flower.client_daemon import ClientDaemon
from elasticdl.engines.federated.flower.keys import PartyKeys
from elasticdl.engines.federated.flower.supernode import Supernode


def main(folder, name, address, keys):
    logging.basicConfig(level=logging.INFO)
    asked = 0

    def answer(arrays, facts):
        nonlocal asked
        asked += 1
        while (folder / "hold").exists():
            (folder / "held").touch()
            time.sleep(0.02)
        doubled = {key: array * 2 for key, array in arrays.items()}
        told = {"party": name, "at": folder.name, "asked": asked, "was told": dict(facts)}
        return doubled, told

    socket_path = folder / "s"
    with ClientDaemon(socket_path, name, answer) as daemon:
        signal.signal(signal.SIGTERM, lambda *_: daemon.stop())
        read = PartyKeys.read(Path(keys)) if keys else None
        supernode = Supernode(folder / "supernode", address, read, socket_path)
        supernode.start()
        try:
            daemon.run()
        finally:
            supernode.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
