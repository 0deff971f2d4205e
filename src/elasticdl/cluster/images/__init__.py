"""Images of jobs: the user's model zoo on ElasticDL of this version on what it was tested with.

    zoo            --zoo_files, requirements--+
    this ElasticDL --wheel, lock--------------+--context--> tar --docker--> REPOSITORY@sha256:...
    base image     --dockerfile---------------+

`build.py` puts it together, `docker.py` is the client of the container engine; all others are
pure or only read files. Callers: `api.py`.
"""
