"""`elasticdl`, where a party writes down when it was asked and when it had answered.

    timed_party.py federated party PARTY.yml

The product tells its seconds to the aggregator only. So this wraps `Party.answer` from outside, and
into `$BENCHMARK_TIMES/NAME.jsonl` go lines of the clock:

    {"kind": ..., "round": ..., "begin": ..., "end": ...}
"""

import functools
import json
import os
import time
from pathlib import Path

from elasticdl.cli.main import main
from elasticdl.engines.federated.client.party import Party


def timed(answer):
    @functools.wraps(answer)
    def wrapper(self, request):
        begin = time.time()
        answered = answer(self, request)
        line = {
            "kind": request.kind,
            "round": request.round,
            "begin": begin,
            "end": time.time(),
        }
        with Path(os.environ["BENCHMARK_TIMES"], f"{self.name}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        return answered

    return wrapper


Party.answer = timed(Party.answer)
main()
