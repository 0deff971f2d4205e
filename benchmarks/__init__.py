"""Speed, side by side with a named peer in the same run, as a ratio.

    python -m benchmarks              all of them
    python -m benchmarks training     one of them

Each is a module with `run() -> dict`; its result is printed and kept in `results/NAME.json`
together with the machine it was measured on. Machines are noisy: every figure is a median of
several runs, and ours and the peer's take turns.
"""
