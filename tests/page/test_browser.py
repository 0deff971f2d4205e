"""The page in a real browser: what a person sees, by mouse and keyboard, desk and phone."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import yaml
from tests.engines.conftest import MODEL, write_records
from tests.engines.federated.conftest import TORCH_MODEL
from tests.page.conftest import (
    T0,
    as_log,
    elastic_events,
    elastic_job,
    finished_events,
    joined,
    left,
    shifted_to_now,
    started,
    step,
    write_output,
)
from tests.page.test_views import federated_events
from tests.page.test_web_app import served

from elasticdl import federated
from elasticdl.events import Evaluated, JobFailed, RoundFinished
from elasticdl.job import Federation

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
DRIVER = shutil.which("chromedriver")

pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None, reason="needs Chromium and chromedriver (see .ci/run)"
    ),
    pytest.mark.timeout(240),
]


class Browser:
    """A headless Chromium, and short words for what tests ask of it."""

    def __init__(self) -> None:
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.ChromeService(executable_path=DRIVER)
        self.driver = webdriver.Chrome(options=options, service=service)
        self.size(1280, 900)

    def size(self, width, height) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def theme(self, name) -> None:
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, url) -> None:
        # What the page before complains of, whose server has ended, is no complaint of this one.
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get(url)
        self.until("return document.body.dataset.ready === 'yes'")

    def js(self, script, *values):
        return self.driver.execute_script(script, *values)

    def until(self, script, timeout_s=20.0):
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.js(script)
            if found:
                return found
            if time.monotonic() > deadline:
                raise AssertionError(f"{script}\n{self.text('body')}\n{self.complaints()}")
            time.sleep(0.2)

    def text(self, selector) -> str:
        return self.js("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def press(self, *keys) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def complaints(self) -> list[str]:
        return [each["message"] for each in self.driver.get_log("browser")]


@pytest.fixture(scope="module")
def browser():
    browser = Browser()
    yield browser
    browser.driver.quit()


@pytest.fixture(scope="module")
def finished_url(tmp_path_factory):
    folder = write_output(tmp_path_factory.mktemp("browser") / "my_job", finished_events())
    with served(folder) as url:
        yield url


def kinds(browser) -> list[list[str]]:
    return browser.js(
        "return [...document.querySelectorAll('.lane')].map((lane) =>"
        " [...lane.querySelectorAll('rect')].map((each) => each.dataset.kind))"
    )


def test_a_finished_job_is_shown_without_browser_errors(browser, finished_url) -> None:
    browser.open(finished_url)

    assert "finished" in browser.text("#head")
    assert kinds(browser)[1] == ["starting", "joining", "training", "lost", "joining", "training"]
    assert browser.js("return document.querySelectorAll('canvas').length") >= 4
    assert "Worker 1 was lost" in browser.text("#findings")
    assert "★ best" in browser.text("#checkpoints")
    assert browser.js("return document.querySelectorAll('.shard').length") > 0
    assert browser.complaints() == []


def test_the_token_is_removed_from_the_url_and_reloading_works(browser, finished_url) -> None:
    browser.open(finished_url)
    address = browser.driver.current_url
    browser.driver.refresh()
    browser.until("return document.body.dataset.ready === 'yes'")

    assert "token" in finished_url
    assert "token" not in address
    assert "finished" in browser.text("#head")


def test_names_and_reasons_are_text_and_never_html(browser, tmp_path) -> None:
    evil = "<img src=x onerror='window.hacked=1'>"
    events = [
        *federated_events(),
        RoundFinished(time=T0 + 9, step=4, parties=(), left_out={evil: evil}, metrics={evil: 1.0}),
        JobFailed(time=T0 + 10, kind="DataError", message=evil),
    ]
    job = elastic_job("x", workers=None, federation=Federation(num_rounds=4, num_parties=2))
    with served(write_output(tmp_path / "<i>job", events, job)) as url:
        browser.open(url)

    assert browser.js("return window.hacked") is None
    assert browser.js("return document.querySelector('img, main i')") is None
    assert evil in browser.text("#head")
    assert evil in browser.text("#rounds")


def test_odd_metric_names_and_long_reasons_do_not_break_the_page(browser, tmp_path) -> None:
    names = ["constructor", "__proto__", "x" * 10_000, "\u202ename", "a\x00b"]
    metrics = {"loss": 0.5, **dict.fromkeys(names, 7.0)}
    events = [
        *elastic_events(),
        Evaluated(time=T0 + 21, step=16, epoch=0, metrics=metrics),
        left(1, 3, 22, reason="y" * 10_000, number=16),
    ]
    browser.size(390, 844)
    try:
        with served(write_output(tmp_path / "job", events)) as url:
            browser.open(url)
            wide = browser.js("return document.documentElement.scrollWidth")
            complaints = browser.complaints()
    finally:
        browser.size(1280, 900)

    assert complaints == []
    assert wide <= 390
    head = browser.text("#evaluations thead").split()
    assert {"constructor", "__proto__", "\\u202ename", "a\\x00b"} <= set(head)
    assert len(browser.text("#findings")) < 2000
    assert "train-1" in browser.text("#about")


def test_lanes_can_be_navigated_by_keyboard(browser, finished_url) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.open(finished_url)
    browser.js("document.querySelector('[data-rank=\"1\"]').focus()")
    last = browser.text(".info")
    browser.press(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    lost = browser.text(".info")
    browser.press(Keys.TAB)
    focused = browser.js("return document.activeElement.className")

    assert "training" in last
    assert "died" in lost
    assert focused


def test_every_control_is_reachable_by_keyboard_and_has_a_name(browser, finished_url) -> None:
    browser.open(finished_url)

    unnamed = browser.js(
        "return [...document.querySelectorAll('button, a, select, input, [tabindex=\"0\"]')]"
        ".filter((each) => !(each.innerText || each.getAttribute('aria-label')"
        " || each.labels?.length))"
        ".map((each) => each.outerHTML.slice(0, 100))"
    )
    assert unnamed == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_overflows_at_any_width_and_text_is_readable(
    browser, finished_url, theme, width
) -> None:
    browser.size(width, 844)
    browser.theme(theme)
    try:
        browser.open(finished_url)
        wide = browser.js("return document.documentElement.scrollWidth")
        contrasts = browser.js(CONTRASTS)
    finally:
        browser.size(1280, 900)
        browser.theme("")

    assert wide <= width
    # WCAG 2.1, AA.
    assert {name: value for name, value in contrasts.items() if value < 4.5} == {}


CONTRASTS = """
const light = (text) => {
  const [r, g, b] = text.match(/[\\d.]+/g).map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const found = {};
for (const selector of ['h1', '.message', 'dt', 'dd', '.level', '.about', '.legend', 'td', 'th',
  '.events time', '.state']) {
  const element = document.querySelector(selector);
  if (!element) continue;
  const [a, b] = [light(getComputedStyle(element).color),
    light(getComputedStyle(document.querySelector('main > section')).backgroundColor)];
  found[selector] = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}
return found;
"""


def test_the_theme_can_be_chosen_and_is_remembered(browser, finished_url) -> None:
    browser.open(finished_url)
    back = "return getComputedStyle(document.body).backgroundColor"
    before = browser.js(back)
    browser.js("const b = document.getElementById('theme'); b.click(); b.click()")
    dark = browser.js(back)
    browser.driver.refresh()
    browser.until("return document.body.dataset.ready === 'yes'")
    after = browser.js(back)
    browser.js("localStorage.clear()")

    assert before != dark == after


def test_jobs_of_a_folder_can_be_compared_and_selected(browser, tmp_path) -> None:
    write_output(tmp_path / "one", finished_events(), elastic_job("one"))
    write_output(
        tmp_path / "two", [started(model_def="other"), step(1)], elastic_job("two", data="b")
    )
    with served(tmp_path) as url:
        browser.open(url)
        names = browser.js(
            "return [...document.querySelectorAll('#compare button.link')].map((b) => b.innerText)"
        )
        differences = browser.js("return document.querySelector('#compare details').textContent")
        browser.js("document.querySelectorAll('#compare button.link')[1].click()")
        browser.until("return document.querySelector('#head h1').innerText.startsWith('two')")

        assert names == ["one", "two"]
        assert "data" in differences
        assert browser.complaints() == []


def test_events_are_shown_live(browser, tmp_path) -> None:
    output = write_output(tmp_path / "live", shifted_to_now(elastic_events()), held=True)
    with served(output) as url:
        browser.open(url)
        before = len(kinds(browser))
        with (output / "events.jsonl").open("ab") as log:
            log.write(as_log(shifted_to_now([joined(5, 9, 0)])))
        browser.until("return document.querySelector('[data-rank=\"5\"]')")

        assert before == 2
        assert "live" in browser.text("#connection")
    browser.until("return document.querySelector('#connection').className === 'lost'")


def test_a_wrong_token_is_answered_with_advice(browser, finished_url) -> None:
    browser.driver.delete_all_cookies()
    browser.driver.get(re.sub("token=.*", "token=wrong", finished_url))

    assert "Open the complete URL shown in the terminal" in browser.text("body")


# What a person asks about a job that nobody watched: where the answer is, and what it says.
QUESTIONS = {
    "is it running, and what is it waiting for?": (
        "elastic",
        "#head",
        r"killed.*without reporting why",
    ),
    "when was a worker lost, and why?": (
        "elastic",
        "#findings",
        r"Worker 1 was lost at 2023-11-1\d \d\d:\d\d:31, around step 10: it died",
    ),
    "how long did the others wait?": ("elastic", "#findings", r"The others waited 4\.0 s"),
    "when was it replaced?": ("elastic", "#findings", r"replaced after 5\.6 s"),
    "when did its replacement train?": (
        "elastic",
        "#findings",
        r"replacement trained after 6\.6 s",
    ),
    "why was it slow?": (
        "elastic",
        "#findings",
        r"No step was committed for 4\.0 s from .*: worker 1 died",
    ),
    "is it overfitting?": (
        "elastic",
        "#findings",
        r"Overfitting since step 8 \(2023-11-1\d \d\d:\d\d:38\)",
    ),
    "which checkpoint is the best?": (
        "elastic",
        "#checkpoints",
        r"The best checkpoint by val_loss \(0\.5\) is of step 4; it is no longer on disk",
    ),
    "which is it in the table?": ("elastic", "#checkpoints", r"\n4\t[^\n]*★ best"),
    "how much of the epoch is done?": (
        "elastic",
        "#shards",
        r"Epoch 1 of 2.*1 queued.*2 leased.*0 returned.*2 done",
    ),
    "on which data, with which model?": ("elastic", "#about", r"data/\*\.recordio.*small.*640"),
    "which party was left out, and why?": (
        "federated",
        "#findings",
        r"Party 'south' was left out of 1 round of 3 \(2\): no answer within 5 s",
    ),
    "how good is each party's model?": ("federated", "#rounds", r"north\t10\t3\t0\t.*0\.25"),
    "when will it end?": ("federated", "#head", r"Ends\s+in 2\.0 s"),
    "what was made again after the crash?": (
        "again",
        "#findings",
        r"10\.0 s after the last event of attempt 1\. It resumed from step 2; steps up to 3 were",
    ),
}


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    folder = tmp_path_factory.mktemp("questions")
    federation = Federation(num_rounds=4, num_parties=2)
    job = elastic_job("f", workers=None, federation=federation)
    again = [started(), step(1), step(2), step(3)]
    again += [started(at=13, attempt=2, resumed_from_step=2), step(3, at=14)]
    write_output(folder / "elastic", elastic_events())
    write_output(folder / "federated", shifted_to_now(federated_events()), job, held=True)
    write_output(folder / "again", again, elastic_job("a", workers=None))
    with served(folder) as url:
        yield lambda name: url.replace("/?", f"/?job={name}&")


@pytest.mark.parametrize("question", QUESTIONS)
def test_questions_about_an_unwatched_job_are_answered(browser, urls, question) -> None:
    job, selector, answer = QUESTIONS[question]

    browser.open(urls(job))

    assert re.search(answer, browser.text(selector), re.DOTALL), browser.text(selector)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_a_killed_worker_is_shown_in_its_lane(browser, tmp_path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "small.py").write_text(MODEL)
    (tmp_path / "data").mkdir()
    write_records(tmp_path / "data" / "a.recordio", 400)
    output = tmp_path / "out"
    command = [
        *(sys.executable, "-m", "elasticdl.cli.main", "train", "--page", "--num_workers=2"),
        *(f"--model_zoo={tmp_path / 'zoo'}", "--model_def=small", f"--data={tmp_path / 'data'}"),
        *(f"--output={output}", "--minibatch_size=10", "--num_epochs=100000"),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as training:
        try:
            line = next(line for line in training.stderr if line.startswith("Job page: "))
            browser.open(line.removeprefix("Job page: ").strip())
            browser.until(
                "return [...document.querySelectorAll('.lane')].filter((lane) =>"
                " lane.querySelector('[data-kind=training]')).length === 2",
                180,
            )
            events = [
                json.loads(each) for each in (output / "events.jsonl").read_text().splitlines()
            ]
            victim = next(e for e in events if e["event"] == "worker_joined" and e["rank"] == 1)
            os.kill(victim["pid"], signal.SIGKILL)
            browser.until("return document.querySelector('[data-rank=\"1\"] [data-kind=lost]')", 60)
            browser.until(
                "return /Worker 1 was lost.*its replacement trained/s.test("
                "document.querySelector('#findings').innerText)",
                180,
            )
            said = browser.text("#findings")
            browser.until("return document.querySelector('#head').innerText.includes('running')")
            complaints = browser.complaints()
        finally:
            training.send_signal(signal.SIGTERM)
            training.communicate(timeout=120)

    assert "it died" in said
    assert "The others waited" in said
    assert victim["started"] > 0
    assert complaints == []


# A party whose records are broken while there is a file; others are not looked at.
BROKEN_PARTY = """

import os
import time

whole_input_fn = input_fn


def input_fn(records, broken_while=""):
    time.sleep(0.02)
    if broken_while and os.path.exists(broken_while):
        raise ValueError("the scanner is broken")
    return whole_input_fn(records)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_federation_shows_excluded_parties_and_metrics(browser, tmp_path) -> None:
    pytest.importorskip("flwr")
    broken = tmp_path / "broken"
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "small.py").write_text(TORCH_MODEL + BROKEN_PARTY)
    write_records(tmp_path / "all.recordio", 60)
    made = federated.init(
        str(tmp_path / "fed"), data=str(tmp_path / "all.recordio"), num_parties=3,
        validation_data=str(tmp_path / "all.recordio"), model_zoo=str(tmp_path / "zoo"),
        model_def="small", num_rounds=100_000,
    )  # fmt: skip
    change(made.aggregator, ["hyperparams", "global", "perc_quorum"], 0.6)
    change(made.parties[1], ["model", "params"], {"broken_while": str(broken)})
    command = [
        *(sys.executable, "-m", "elasticdl.cli.main", "federated", "simulate", "--page"),
        *(str(made.aggregator), "--num_processes=1"),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as training:
        try:
            line = next(line for line in training.stderr if line.startswith("Job page: "))
            # What it prints meanwhile is not to fill the pipe.
            threading.Thread(target=training.stderr.read, daemon=True).start()
            browser.open(line.removeprefix("Job page: ").strip())
            browser.until("return document.querySelectorAll('#rounds .answer.a1').length >= 6", 180)
            before = browser.text("#rounds")
            broken.touch()
            browser.until("return document.querySelector('#rounds .answer.a2')", 60)
            broken.unlink()
            rounds, said = browser.text("#rounds"), browser.text("#findings")
            chart = browser.js(
                "return document.querySelector('#rounds .plot').getAttribute('aria-label')"
            )
            browser.until("return document.querySelector('#head').innerText.includes('running')")
            complaints = browser.complaints()
        finally:
            training.send_signal(signal.SIGTERM)
            training.wait(timeout=120)

    assert re.search(r"party1\t20\t\d+\t0\t\t", before)
    assert re.search(r"party1\t20\t\d+\t[1-9]\d*\t.*the scanner is broken", rounds)
    assert "Party 'party1' was left out of" in said
    assert "the scanner is broken" in said
    assert chart.startswith("Validation accuracy of the global model at each party. party0: ")
    assert "validation accuracy" in rounds
    assert complaints == []


def change(path, keys, value) -> None:
    """Change one value of a config."""
    values = yaml.safe_load(path.read_text())
    inner = values
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path.write_text(yaml.safe_dump(values))
