"""Job page: shows what a job is doing and why it slowed down, from the files of its output.

    events.jsonl --log_reader--> bytes --parse--> events --history--> JobHistory
    JobHistory + other files of the output --view--> JSON --web_app--> static/page.js in a browser

All modules before `web_app` are pure, except `log_reader` and `outputs`, which read files. The page
is served by a separate process, which only reads files, so watching a job does not slow it down.

Callers: `cli/`.
"""
