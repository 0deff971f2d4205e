"""Images of jobs: the user's model zoo, this version of ElasticDL, and its tested dependencies.

    zoo            --zoo_files, requirements--+
    this ElasticDL --wheel, lock--------------+--context--> tar --docker--> REPOSITORY@sha256:...
    base image     --dockerfile---------------+

`build.py` combines the parts, `docker.py` is the client of the container engine; all other modules
are pure or only read files. Callers: `api.py`.
"""
