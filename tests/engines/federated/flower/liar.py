"""A party of the tests that misbehaves in each round in another way; a process of its own.

python liar.py CONFIG

round 1  NaN            round 3  what it said in round 2, again      round 5  kills itself
round 2  a wrong shape  round 4  stops (SIGSTOP), and answers late   after    is honest
"""

import os
import signal
import sys
from dataclasses import replace

import numpy as np

from elasticdl import federated
from elasticdl.engines.federated.client.party import Party

_honest = Party.answer
_said = {}


def answer(self, request):
    reply = _said[request.round] = _honest(self, request)
    if request.kind != "train":
        return reply
    match request.round:
        case 1:
            return _changed(reply, lambda array: array * np.float32("nan"))
        case 2:
            return _changed(reply, lambda array: array[..., :1].copy())
        case 3:
            return _said[2]
        case 4:
            os.kill(os.getpid(), signal.SIGSTOP)
        case 5:
            os.kill(os.getpid(), signal.SIGKILL)
    return reply


def _changed(reply, function):
    return replace(
        reply, weights={n: function(a) if a.ndim == 2 else a for n, a in reply.weights.items()}
    )


if __name__ == "__main__":
    Party.answer = answer
    federated.party(sys.argv[1])
