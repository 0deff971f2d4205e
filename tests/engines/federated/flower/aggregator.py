"""An aggregator of the tests, as a process of its own: asks whoever is there, until it is ended.

python aggregator.py FOLDER PORT
"""

import signal
import sys
import threading
from pathlib import Path

from elasticdl.engines.federated.flower.exchange import Exchange
from elasticdl.engines.federated.flower.keys import AggregatorKeys
from elasticdl.engines.federated.flower.superlink import Superlink


def main(folder, port):
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    keys = AggregatorKeys.read(folder / "keys/aggregator")
    with Exchange(Superlink(folder / "agg", keys, port=port)) as parties:
        print("started", flush=True)
        parties.wait_for(1, 60)
        for name, *_ in parties.ask({"north": ({}, {})}, 60):
            print(name, "answered", flush=True)
        ended.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
