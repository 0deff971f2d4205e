"""What the ledger costs a step, and whether it stays right, with up to ten thousand workers.

The real `Ledger` and `ShardPlan` with simulated workers (`benchmarks.ledger_simulation`). What is
measured is the ledger's own work in a step, in wall time: `release`, `assign`, `advance` and
`release_missing`,
once; every worker does it in each step. Two kinds of steps are told apart: those with shards that
nobody has been given yet (the middle of an epoch), and those in which leases are split (its end).

There is no peer: the bars are a millisecond, a megabyte, and no batch twice or missing. Each figure
is of `RUNS` seeds: the median of their means, the slowest step of all. The pictures in
`docs/images/` are drawn from the same figures.
"""

import statistics
from dataclasses import replace
from pathlib import Path

from benchmarks.ledger_simulation import Scenario, simulate

PICTURES = Path(__file__).parent.parent / "docs" / "images"
RUNS = 5
BAR_US = 1000
BAR_BYTES = 1_000_000
BILLION = 10**9
WORKERS = (10, 30, 100, 300, 1_000, 3_000, 10_000)
RECORDS = (10**5, 10**6, 10**7, 10**8, 10**9)
FAILURE_RATES = (1e-5, 1e-4, 1e-3, 1e-2)
# Of ten thousand workers one dies in each step; one step in a hundred is committed by nobody.
USUAL = Scenario(
    10_000, BILLION, failure_rate=1e-4, failed_commit_rate=0.01, joining_steps=32, max_steps=3_000
)
# Where an epoch is not simulated as a whole: as many shards for each worker before it ends.
SHARDS_EACH = 10


def run():
    print(f"{'':<28}{'middle us':>10}{'end us':>8}{'p99 us':>8}{'slowest':>8}{'end idle':>9}")
    result = {
        "whole_epoch": measure("whole epoch", USUAL),
        "by_workers": {n: measure(f"{n} workers", near_the_end(num_workers=n)) for n in WORKERS},
        "by_workers_never_splitting": {
            n: measure(f"{n} workers, never splitting", near_the_end(num_workers=n, splits=False))
            for n in WORKERS
        },
        "by_records_1000_workers": {
            n: measure(f"{n:.0e} records", near_the_end(num_workers=1_000, num_records=n))
            for n in RECORDS
        },
        "by_failure_rate_10000_workers": {
            rate: measure(f"failure rate {rate:g}", near_the_end(failure_rate=rate))
            for rate in FAILURE_RATES
        },
    }
    draw(result)
    return bars(result) | result


def near_the_end(**changes):
    """Return a scenario that begins where each worker has some shards to go, or several epochs."""
    scenario = replace(USUAL, max_steps=600, **changes)
    first_shard = scenario.plan.num_shards - SHARDS_EACH * scenario.num_workers
    if first_shard < 0:
        return replace(scenario, num_epochs=1_000)
    return replace(scenario, first_shard=first_shard)


def measure(name, scenario):
    """Run a scenario with several seeds; return what came of them together."""
    reports = [simulate(replace(scenario, seed=seed)) for seed in range(RUNS)]
    figures = {
        phase: phase_of([getattr(report, phase) for report in reports])
        for phase in ("middle", "end")
    }
    for key in ("num_batches", "num_twice", "num_missing", "num_deaths", "num_failed_commits"):
        figures[key] = sum(getattr(report, key) for report in reports)
    figures["state_bytes"] = max(report.state_bytes for report in reports)
    steps = [(p.num_steps, p.mean_us) for r in reports for p in (r.middle, r.end)]
    figures["mean_us"] = round(sum(n * us for n, us in steps) / sum(n for n, _ in steps), 1)
    show(name, figures)
    return figures


def phase_of(phases):
    """Return the figures of one phase over several runs; None where it did not come to pass."""
    phases = [phase for phase in phases if phase.num_steps]
    if not phases:
        return None
    return {
        "num_steps": statistics.median(phase.num_steps for phase in phases),
        "mean_us": round(statistics.median(phase.mean_us for phase in phases), 1),
        "p99_us": round(statistics.median(phase.p99_us for phase in phases), 1),
        "max_us": round(max(phase.max_us for phase in phases), 1),
        "idle_share": round(statistics.median(phase.idle_share for phase in phases), 4),
        "runs_mean_us": [round(phase.mean_us, 1) for phase in phases],
    }


def show(name, figures):
    middle, end = figures["middle"] or {"mean_us": 0, "p99_us": 0, "max_us": 0}, figures["end"]
    p99, slowest = (max(middle[key], end[key]) for key in ("p99_us", "max_us"))
    print(
        f"{name:<28}{middle['mean_us']:>10.0f}{end['mean_us']:>8.0f}{p99:>8.0f}{slowest:>8.0f}"
        f"{end['idle_share']:>9.1%}"
    )


def bars(result):
    """Return the promises and whether they are kept: over the whole epoch, and nothing wrong."""
    whole = result["whole_epoch"]
    groups = [group for name, group in result.items() if name != "whole_epoch"]
    everything = [whole, *(figures for group in groups for figures in group.values())]
    wrong = sum(figures["num_twice"] + figures["num_missing"] for figures in everything)
    largest = max(figures["state_bytes"] for figures in everything)
    checked = sum(figures["num_batches"] for figures in everything)

    def bar(ours, limit):
        return {"ours": ours, "bar": limit, "met": ours <= limit}

    return {
        "mean_us": bar(whole["mean_us"], BAR_US),
        "mean_us_middle": bar(whole["middle"]["mean_us"], BAR_US),
        "mean_us_end": bar(whole["end"]["mean_us"], BAR_US),
        "state_bytes": bar(largest, BAR_BYTES),
        "batches_twice_or_missing": bar(wrong, 0) | {"num_batches_checked": checked},
    }


# --- pictures ---------------------------------------------------------------------------------


def draw(result):
    import matplotlib as mpl

    # The same figures make the same file, so that only a change of them is a change of it.
    with mpl.rc_context({"svg.hashsalt": "ledger", "font.size": 10, "svg.fonttype": "none"}):
        workers, records = result["by_workers"], result["by_records_1000_workers"]
        failures = result["by_failure_rate_10000_workers"]
        cost("cost-by-workers", workers, "workers (a billion records)", yscale="log")
        cost("cost-by-records", records, "records (1,000 workers)", ylim=(0, None))
        label = "part of 10,000 workers that dies in each step"
        cost("cost-by-failure-rate", failures, label, ylim=(0, None))
        end_of_epoch(workers, result["by_workers_never_splitting"])


def cost(name, group, x_label, **limits):
    """Draw mean and 99th percentile of both phases against what the group varies."""
    axes = plot(x_label, "ledger work in a step (us)")
    axes.axhline(BAR_US, color="gray", linewidth=1, linestyle="--", label="a millisecond")
    for phase, title, color in (
        ("middle", "shards left to deal", "tab:blue"),
        ("end", "all dealt, leases split", "tab:orange"),
    ):
        points = {x: figures[phase] for x, figures in group.items() if figures[phase]}
        for key, kind, style in (("mean_us", "mean", "o-"), ("p99_us", "99th percentile", ".:")):
            ys = [figures[key] for figures in points.values()]
            axes.plot(list(points), ys, style, color=color, label=f"{title}: {kind}")
    axes.set(xscale="log", **limits)
    save(axes, name)


def end_of_epoch(split, whole):
    """Draw how long an epoch's end takes, with and without splitting."""
    axes = plot("workers", "steps from the last shard dealt\nto the last batch committed")
    for group, title in ((whole, "shards stay whole"), (split, "shards are split")):
        steps = [figures["end"]["num_steps"] for figures in group.values()]
        axes.plot(list(group), steps, "o-", label=title)
    axes.set(xscale="log", ylim=(0, None))
    save(axes, "end-of-epoch")


def plot(x_label, y_label):
    from matplotlib.figure import Figure

    axes = Figure(figsize=(6.4, 3.6), layout="constrained").add_subplot()
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def save(axes, name):
    axes.legend(fontsize=8, frameon=False)
    PICTURES.mkdir(exist_ok=True)
    axes.figure.savefig(PICTURES / f"ledger-{name}.svg", metadata={"Date": None})
