"""Job page: shows what a job is doing and why it slowed down, from the files of its output.

    events.jsonl --log_reader--> bytes --parse--> events --history--> JobHistory
    JobHistory + other files of the output --view--> JSON --web_app--> static/page.js in a browser

The modules from `parse` to `view` are pure; `log_reader` and `outputs` read the files. The page
is served by a separate process, which only reads files, so watching a job does not slow it down.

Callers: `cli/`.
"""
