// The page of a job: gets the list of jobs from the server, follows one of them, and draws its
// sections. The server decides what is shown (page/view.py).

import { Chart } from "./charts.js";
import { COLOURS, Comparison, DASHES } from "./compare.js";
import { el, redrawn } from "./dom.js";
import { Lanes } from "./lanes.js";
import * as panels from "./panels.js";

const byId = (id) => document.getElementById(id);
const address = new URL(location.href);
const token = address.searchParams.get("token");
const state = { sections: {}, job: address.searchParams.get("job"), range: null, offset: 0 };
const charts = new Map();
const MOST_PARTIES = 12;
let source = null;
let lanes = null;
let comparison = null;

/** Return the URL of a request, with the token for browsers that do not keep the cookie. */
function answer(path, parameters = {}) {
  const url = new URL(path, location.href);
  url.search = new URLSearchParams({ ...parameters, ...(token ? { token } : {}) });
  return url.href;
}

// --- drawing ---------------------------------------------------------------------------------

function chartIn(parent, name, options) {
  if (!charts.has(name)) charts.set(name, new Chart(parent, options));
  return charts.get(name);
}

function drawCurves(data) {
  const section = byId("curves");
  const names = Object.keys(data.metrics);
  section.hidden = !names.length;
  const marks = data.starts.map((step) => ({ x: step, colour: "soft", dash: true, text: "resumed" }));
  if (data.best_step !== null) {
    marks.push({ x: data.best_step, colour: "best", text: "★ best checkpoint" });
  }
  for (const name of names) {
    const kinds = data.metrics[name];
    const curves = [];
    if (kinds.steps) curves.push({ ...kinds.steps, name: `${name}, steps`, colour: "pale", width: 1 });
    if (kinds.train) curves.push({ ...kinds.train, name: `${name}, training`, colour: "train", points: kinds.train.x.length < 60 });
    if (kinds.validation) {
      curves.push({ ...kinds.validation, name: `${name}, validation`, colour: "validation", dash: [6, 3], width: 2, points: kinds.validation.x.length < 60 });
    }
    chartIn(section.querySelector(".charts"), `metric ${name}`, { title: name, unit: data.unit })
      .draw(curves, marks);
  }
  for (const [key, chart] of charts) {
    if (key.startsWith("metric ")) chart.box.hidden = !names.includes(key.slice(7));
  }
}

function drawClock(data) {
  const section = byId("clock");
  section.hidden = !data.lanes.length && !data.speed.x.length;
  if (section.hidden) return;
  const body = section.querySelector(".body");
  if (!lanes) {
    body.append(ranges());
    lanes = new Lanes(body);
  }
  const range = rangeOf(data);
  lanes.draw(data, range);
  const options = { unit: "time", height: 130, fromZero: true, onselect: (from, to) => choose([from, to]) };
  const marks = data.stalls.map((stall) => ({ x: stall.stop, colour: "stall", dash: true }));
  chartIn(body, "speed", { ...options, title: "Examples per second, all workers" }).draw(
    [{ ...data.speed, name: "examples/s", colour: "train" }],
    [...marks, ...data.marks.filter(([, kind]) => kind === "attempt").slice(1)
      .map(([x]) => ({ x, colour: "soft", dash: true, text: "restarted" }))], range);
  const times = [{ ...data.step_time, name: "mean step time, s", colour: "train" }];
  if (data.longest_pause) {
    times.push({ ...data.longest_pause, name: "longest pause between steps, s", colour: "validation", width: 1 });
  }
  chartIn(body, "step time", { ...options, title: "Step time: stalls appear as peaks" })
    .draw(times, marks, range);
}

const unit = () => state.sections.head?.is_federated ? "round" : "step";

function drawRounds(data) {
  const section = byId("rounds");
  panels.rounds(section, data);
  const curves = (data?.parties ?? []).filter((party) => party.curve.x.length).map((party, at) => ({
    ...party.curve, name: party.name, colour: COLOURS[at % COLOURS.length],
    dash: DASHES[Math.floor(at / COLOURS.length) % DASHES.length], points: party.curve.x.length < 60,
  }));
  if (!curves.length) return;
  const title = `Validation ${data.metric} of the global model at each party`;
  chartIn(section.querySelector(".charts"), "parties", { title, unit: "round" })
    .draw(curves.slice(0, MOST_PARTIES));
}

function rangeOf(data) {
  const end = Math.max(data.end, data.begin + 1);
  if (state.range === null) return [data.begin, end];
  if (typeof state.range === "number") return [Math.max(data.begin, end - state.range), end];
  return state.range;
}

function ranges() {
  const buttons = [["All", null], ["Last hour", 3600], ["10 min", 600], ["1 min", 60]];
  return el("p", { class: "ranges", role: "group", "aria-label": "Time range" },
    ...buttons.map(([text, range]) => el("button", { type: "button", onclick: () => choose(range) }, text)),
    el("span", { class: "about" }, "or drag over a chart below"));
}

function choose(range) {
  state.range = range;
  if (state.sections.clock) drawClock(state.sections.clock);
}

const now = () => Date.now() / 1000 + state.offset;

const draw = {
  head(data) {
    state.offset = data.now - Date.now() / 1000;
    panels.head(byId("head"), data, now());
    document.title = `${data.progress || data.state}: ${data.name}`;
  },
  findings: (data) => panels.findings(byId("findings"), data),
  curves: drawCurves,
  clock: drawClock,
  shards: (data) => panels.shards(byId("shards"), data),
  rounds: drawRounds,
  checkpoints: (data) => panels.checkpoints(byId("checkpoints"), data, unit()),
  evaluations: (data) => panels.evaluations(byId("evaluations"), data,
    state.sections.curves?.best_step, (name) => answer("report", { job: state.job, name }), unit()),
  events: (data) => panels.events(byId("events"), data),
  about: (data) => panels.about(byId("about"), data),
};

function take(sections) {
  Object.assign(state.sections, sections);
  for (const [name, data] of Object.entries(sections)) {
    if (name in draw) redrawn(byId(name), () => draw[name](data));
  }
  sectionLinks();
  document.body.dataset.ready = "yes";
}

function sectionLinks() {
  const shown = [...document.querySelectorAll("main > section[aria-labelledby]")]
    .filter((section) => !section.hidden);
  const key = shown.map((section) => section.id).join();
  const nav = byId("sections");
  if (nav.dataset.key === key) return;
  nav.dataset.key = key;
  nav.replaceChildren(...shown.map((section) =>
    el("a", { href: `#${section.id}` }, section.querySelector("h2").textContent)));
}

// --- following -------------------------------------------------------------------------------

function follow(job) {
  source?.close();
  if (job !== state.job) {
    state.sections = {};
    state.range = null;
    for (const chart of charts.values()) chart.box.remove();
    charts.clear();
    lanes = null;
    byId("clock").querySelector(".body").replaceChildren();
  }
  state.job = job;
  const mine = new EventSource(answer("events", { job }));
  source = mine;
  source.onmessage = (event) => {
    say("live", "● live");
    take(JSON.parse(event.data));
  };
  source.onerror = () => {
    say("lost", "○ disconnected: the server has stopped or is unreachable. Showing the last known state");
    // A refused request ends an event source; a cluster may have replaced the pod meanwhile.
    if (mine.readyState === EventSource.CLOSED) setTimeout(() => mine === source && follow(job), 3000);
  };
  const shown = new URL(location.href);
  shown.searchParams.delete("token");
  shown.searchParams.set("job", job);
  // The token is in a cookie now; remove it from the address bar and the history.
  history.replaceState(null, "", shown);
}

function say(kind, text) {
  const place = byId("connection");
  if (place.textContent !== text) place.textContent = text;
  place.className = kind;
}

async function list() {
  const response = await fetch(answer("jobs.json"));
  if (!response.ok) throw new Error(await response.text());
  const { jobs } = await response.json();
  if (jobs.length > 1) {
    comparison ??= new Comparison(byId("compare"), pick);
    redrawn(byId("compare"), () => comparison.show(jobs));
    const names = jobs.map((job) => job.name);
    const select = byId("job");
    if (select.options.length !== names.length) {
      select.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
      select.value = state.job ?? names[0];
      byId("chooser").hidden = false;
    }
  }
  return jobs;
}

function pick(name) {
  byId("job").value = name;
  follow(name);
  byId("head").scrollIntoView();
}

// --- themes ----------------------------------------------------------------------------------

const THEMES = ["auto", "light", "dark"];

function theme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  byId("theme").textContent = `Theme: ${name}`;
  try { localStorage.setItem("theme", name); } catch { /* a browser may keep nothing */ }
  for (const chart of charts.values()) chart.redraw();
  comparison?.redraw();
}

function themeBefore() {
  try { return localStorage.getItem("theme") ?? "auto"; } catch { return "auto"; }
}

byId("theme").addEventListener("click", (event) => {
  const before = event.target.textContent.split(": ")[1];
  theme(THEMES[(THEMES.indexOf(before) + 1) % THEMES.length]);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(themeBefore()));
byId("job").addEventListener("change", (event) => follow(event.target.value));
theme(themeBefore());

try {
  const jobs = await list();
  const known = jobs.some((job) => job.name === state.job);
  if (jobs.length) follow(known ? state.job : jobs[0].name);
  if (jobs.length > 1) setInterval(() => list().catch(() => {}), 10_000);
} catch (error) {
  byId("trouble").hidden = false;
  byId("trouble").textContent = error.message;
}
