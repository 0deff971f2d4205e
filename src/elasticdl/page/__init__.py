"""The job page: what a job is doing and why it slowed down, from its log of events alone.

    events.jsonl --log_reader--> bytes --parse--> events --history--> History
    History + what lies in the output --view--> JSON --server--> a browser

Everything left of `server` is pure but for `log_reader` and `outputs`, which read. The page is
served by a process of its own: it reads the log as anybody may, so a training that is watched and
one that is not do the same.

Callers: `cli/`.
"""
