"""`python -m elasticdl.page OUTPUT`: the page of a training in a process beside it."""

from __future__ import annotations

import sys

from elasticdl.page.serving import serve_beside

if __name__ == "__main__":
    serve_beside(sys.argv[1])
