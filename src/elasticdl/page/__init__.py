"""Job page: shows what a job is doing and why it slowed down, from its event log alone.

    events.jsonl --log_reader--> bytes --parse--> events --history--> JobHistory
    JobHistory + other files of the output --view--> JSON --web_app--> static/page.js in a browser

All modules before `web_app` are pure, except `log_reader` and `outputs`, which read files. A
separate process serves the page and only reads the log, so watching a job does not affect it.

Callers: `cli/`.
"""
