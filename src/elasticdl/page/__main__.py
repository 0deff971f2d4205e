"""`python -m elasticdl.page OUTPUT LOG LISTEN`: serves the page of a job that is about to start.

Started by `web_server.PageProcess`, never by users, who run `elasticdl job page`.
"""

from __future__ import annotations

import sys

from elasticdl.page.web_server import serve_beside

if __name__ == "__main__":
    serve_beside(*sys.argv[1:])
