"""An S3 server for tests: moto, with puts to one object one after another, as S3 does them.

    python s3_server.py [ADDRESS]     prints its port, serves until it is ended; on 127.0.0.1

Buckets: `honest` is S3. `plain` ignores conditions, as some stores with S3's API do. `lossy` loses
the first answer to each put of a lock: it is done, and the client hears of an error.
"""

from __future__ import annotations

import io
import sys
import threading

from moto.server import create_backend_app
from werkzeug.serving import make_server

BUCKETS = ("honest", "plain", "lossy")
CONDITIONS = ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH")


class Store:
    """A WSGI application."""

    def __init__(self) -> None:
        self._moto = create_backend_app("s3")
        self._lock = threading.Lock()
        self._lost: set[bytes] = {b""}
        client = self._moto.test_client()
        for bucket in BUCKETS:
            assert client.put(f"/{bucket}").status_code == 200

    def __call__(self, environ, start_response):
        bucket = environ["PATH_INFO"].split("/")[1]
        if bucket == "plain":
            for condition in CONDITIONS:
                environ.pop(condition, None)
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        # Looking at the condition and writing are two steps in moto.
        with self._lock:
            if (
                bucket != "lossy"
                or not environ["PATH_INFO"].endswith(".lock")
                or body in self._lost
            ):
                return list(self._moto(environ, start_response))
            self._lost.add(body)
            list(self._moto(environ, lambda *_: None))
        start_response("500 Internal Server Error", [("Content-Length", "0")])
        return []


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1"
    server = make_server(address, 0, Store(), threaded=True)
    print(server.port, flush=True)
    server.serve_forever()
