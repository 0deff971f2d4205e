"""`python -m elasticdl.page OUTPUT LOG LISTEN`: serves the page of a job that is about to start.

    OUTPUT   output folder of the job
    LOG      local path of the job's event log
    LISTEN   address to listen on, HOST:PORT; port 0 chooses a free one

`web_server.PageProcess` starts this process. Users run `elasticdl job page` instead.
"""

from __future__ import annotations

import sys

from elasticdl.page.web_server import serve_beside

if __name__ == "__main__":
    serve_beside(*sys.argv[1:])
