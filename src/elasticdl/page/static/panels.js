// The sections of a job that are text and tables. Each function replaces its section's contents.

import { bytes, clock, duration, el, fill, moment, number, own, svg, table } from "./dom.js";

const STATES = {
  starting: "◔", running: "▶", finished: "✓", failed: "✕", interrupted: "❚❚", killed: "✕", unknown: "?",
};
const MOST_FINDINGS = 8;
const LEVELS = { bad: "✕ bad", warning: "! warning", note: "i note", good: "✓ good" };

export function head(section, data, now) {
  const left = data.eta_s === null ? null : Math.max(0, data.ends_at - now);
  const percent = data.share === null ? null : Math.floor(100 * data.share);
  const cards = [
    ["Progress", data.progress || "unknown", `${data.is_federated ? "round" : "step"} ${number(data.step)}`],
    endCard(data, left),
    ["Loss", number(data.loss), data.is_federated ? "of the last round" : "mean of the epoch so far"],
    data.is_federated ? null : ["Speed", data.examples_per_s === null ? "unknown"
      : `${number(data.examples_per_s, 3)}/s`,
    data.state === "running" ? "examples, over 15 s" : "examples, on average"],
    data.workers_wanted ? workersCard(data) : null,
    ["Attempt", number(data.attempt), data.host ? `${data.host}, process ${data.pid}` : ""],
  ].filter((card) => card);
  fill(section,
    el("h1", {}, data.name,
      el("span", { class: `state ${data.state}` }, `${STATES[data.state]} ${data.state}`)),
    el("p", { class: "message" }, data.message),
    percent === null ? null : el("div", { class: "progress" },
      el("progress", { max: 1, value: data.share, "aria-label": "Progress of the job" }),
      el("span", {}, `${percent} %`)),
    el("dl", { class: "cards" }, ...cards.map(([name, value, beside]) =>
      el("div", {}, el("dt", {}, name), el("dd", {}, value), el("dd", { class: "small" }, beside)))),
    ...damage(data),
    ...data.notes.map((note) => el("p", { class: "notice" }, note)),
  );
}

function endCard(data, left) {
  if (data.state === "running") {
    return left === null ? ["Ends", "unknown", `not enough ${data.is_federated ? "rounds" : "steps"} yet`]
      : ["Ends", `in ${duration(left)}`, `at ${moment(data.ends_at)}`];
  }
  const ended = data.ended ?? data.last_time;
  return [data.ended ? "Ended" : "Last event", ended ? moment(ended) : "none",
    data.started ? `after ${duration(ended - data.started)}` : ""];
}

function workersCard(data) {
  const [least, most] = data.workers_wanted;
  if (data.state !== "running") {
    return ["Workers", `${data.workers_lost} lost`, `of up to ${most} at a time`];
  }
  const joining = data.workers_joining ? `${data.workers_joining} joining, ` : "";
  return ["Workers", `${data.workers} of ${most}`,
    `${joining}${data.workers_lost} lost so far; at least ${least}`];
}

function damage(data) {
  const notices = [];
  if (data.num_damaged) {
    notices.push(el("details", { class: "notice" },
      el("summary", {}, `${number(data.num_damaged)} damaged lines of events.jsonl were skipped; `
        + "their events are missing here."),
      el("ul", {}, ...data.damaged.map((line) => el("li", {}, line)))));
  }
  if (data.num_unknown) {
    notices.push(el("p", { class: "notice" }, `${number(data.num_unknown)} events have an unknown `
      + "type or format, probably from a newer elasticdl; they are listed below but not drawn."));
  }
  return notices;
}

export function findings(section, data) {
  section.hidden = !data.length;
  const item = (finding) => el("li", { class: finding.level },
    el("span", { class: "level" }, LEVELS[finding.level]), finding.text);
  const [shown, more] = [data.slice(0, MOST_FINDINGS), data.slice(MOST_FINDINGS)];
  fill(section.querySelector(".body"),
    el("ul", { class: "findings" }, ...shown.map(item)),
    more.length ? el("details", {}, el("summary", {}, "More findings"),
      el("ul", { class: "findings" }, ...more.map(item))) : null);
}

export function checkpoints(section, data, unit) {
  section.hidden = !data.rows.length;
  const rows = data.rows.toReversed().map((each) => [
    number(each.step), moment(each.time), bytes(each.num_bytes), duration(each.blocked_s),
    each.is_best ? "★ best" : "", each.is_kept ? "kept" : "deleted",
  ]);
  fill(body(section), el("p", {}, data.summary), table("Checkpoints, newest first",
    [unit, "written", "size", "training paused", "best", "on disk"], rows,
    (at) => at === 0 || at === 2 || at === 3));
}

export function evaluations(section, data, best, reportUrl, unit) {
  const reports = Object.keys(data.reports);
  section.hidden = !data.rows.length && !data.final && !reports.length;
  const parts = [];
  if (reports.length) {
    parts.push(el("p", {}, "Reports with all examples: ", ...reports.flatMap((name, at) => [
      at ? ", " : "", el("a", { href: reportUrl(name), target: "_blank", rel: "noopener" }, name)])));
  }
  if (data.final) {
    parts.push(el("p", {}, "At the end: ", el("strong", {}, metricsText(data.final))));
  }
  if (data.rows.length) {
    const names = [...new Set(data.rows.flatMap((row) => Object.keys(row.metrics)))].slice(0, 12);
    const rows = data.rows.toReversed().map((row) => [
      number(row.step) + (row.step === best ? " ★ best" : ""), moment(row.time),
      ...names.map((name) => number(own(row.metrics, name))),
    ]);
    parts.push(table("Evaluations, newest first", [unit, "when", ...names], rows,
      (at) => at > 1));
  }
  fill(body(section), ...parts);
}

function metricsText(metrics) {
  return Object.entries(metrics).slice(0, 12).map(([name, value]) => `${name} ${number(value)}`)
    .join(", ");
}

export function shards(section, data) {
  section.hidden = !data;
  if (!data) return;
  const words = ["queued", "leased", "returned", "done"];
  const side = 11;
  const place = body(section);
  const width = Math.max(side, place.clientWidth || section.clientWidth || 320);
  const across = Math.max(1, Math.min(60, Math.floor(width / side)));
  const cells = [...data.cells];
  const map = svg("svg", {
    class: "shards", width: across * side, height: Math.ceil(cells.length / across) * side,
    role: "img",
    "aria-label": words.map((word) => `${data.counts[word]} ${word}`).join(", "),
  }, ...cells.map((state, at) => cell(data, words[state], at, across, side)));
  const each = data.per_cell === 1 ? "Each square is a shard"
    : `Each square is ${number(data.per_cell)} shards`;
  const unknown = data.is_known ? "" : " This log does not contain the number of shards; only "
    + "shards already started are drawn.";
  fill(place,
    el("p", { class: "about" }, `Epoch ${data.epoch + 1}${data.num_epochs ? ` of ${number(data.num_epochs)}` : ""}. `
      + `${each}${data.batches_per_shard ? ` of ${data.batches_per_shard} batches` : ""}.${unknown}`),
    el("ul", { class: "legend" }, ...words.map((word) => el("li", {},
      svg("svg", { width: 12, height: 12, "aria-hidden": "true" },
        svg("rect", { class: `shard ${word}`, width: 10, height: 10 })),
      `${number(data.counts[word])} ${word}`))),
    map);
}

function cell(data, word, at, across, side) {
  const first = at * data.per_cell;
  const rank = data.per_cell === 1 ? data.holders[first] : undefined;
  const name = data.per_cell === 1 ? `shard ${first}` : `shards ${first} to ${first + data.per_cell - 1}`;
  return svg("rect", {
    class: `shard ${word}`, x: (at % across) * side, y: Math.floor(at / across) * side,
    width: side - 1.5, height: side - 1.5,
  }, svg("title", {}, `${name}: ${word}${rank === undefined ? "" : `, worker ${rank}`}`));
}

export function rounds(section, data) {
  section.hidden = !data;
  if (!data) return;
  const names = [...new Set(data.parties.flatMap((party) => Object.keys(party.metrics)))].slice(0, 6);
  const parties = data.parties.map((party) => [
    party.name, party.num_examples === null ? "unknown" : number(party.num_examples),
    number(party.answered), number(party.left_out), party.why,
    ...names.map((name) => number(own(party.metrics, name))),
  ]);
  const telling = names.length ? "" : " The parties do not share their own metrics, or this log does not contain them.";
  const titles = names.map((name) => name.startsWith("val_") ? `validation ${name.slice(4)}` : `training ${name}`);
  if (!data.rounds.length) {
    fill(body(section), el("p", { class: "about" }, "No round has ended yet."),
      table("Parties", ["party", "examples"], parties.map((row) => row.slice(0, 2)), (at) => at === 1));
    return;
  }
  fill(body(section),
    table("Parties", ["party", "examples", "answers used", "left out", "last reason",
      ...titles], parties, (at) => at !== 0 && at !== 4),
    el("p", { class: "about" }, `${number(data.rounds.length)} rounds; a column is a round, a row a party. `
      + `■ model used, ✕ left out, · not selected.${telling}`),
    answers(data),
    el("details", { open: data.rounds.length <= 10 }, el("summary", {}, "All rounds"),
      table("Rounds, newest first", ["round", "ended", "took", "examples", "metrics", "left out"],
        data.rounds.toReversed().map((each) => [
          number(each.number), moment(each.time), duration(each.seconds), number(each.num_examples),
          metricsText(each.metrics),
          Object.entries(each.left_out).map(([name, why]) => `${name}: ${why}`).join("; "),
        ]), (at) => at === 0 || at === 2 || at === 3)));
}

function answers(data) {
  const signs = ["·", "■", "✕"];
  const words = ["not selected", "model used", "left out"];
  return table("Which party answered in which round", ["party", ...data.rounds.map((each) => number(each.number))],
    data.parties.map((party, row) => [party.name, ...data.rounds.map((each) => {
      const answer = each.answers[row] ?? 0;
      const why = own(each.left_out, party.name);
      return el("span", {
        class: `answer a${answer}`, title: `round ${each.number}: ${why ?? words[answer]}`,
      }, signs[answer]);
    })]));
}

export function events(section, data) {
  section.hidden = !data.length;
  const place = body(section);
  const list = place.querySelector("ol");
  const atEnd = !list || list.scrollTop + list.clientHeight > list.scrollHeight - 30;
  const lines = data.map(([time, kind, text]) => el("li", { class: kind },
    el("time", {}, clock(time)), el("span", {}, text)));
  const fresh = el("ol", { class: "events", tabIndex: 0, "aria-label": "Events" }, ...lines);
  fill(place,
    el("p", { class: "about" }, "The latest events and messages, without steps. What the model's code prints is not "
      + "stored in the output folder; on Kubernetes: elasticdl job logs NAME --cluster=kubernetes."),
    fresh);
  fresh.scrollTop = atEnd ? fresh.scrollHeight : list.scrollTop;
}

export function about(section, data) {
  section.hidden = false;
  const facts = [
    ["Training data", data.data], ["Validation data", data.validation_data],
    ["Model", data.model_def], ["Model code from", data.model_zoo], ["Framework", data.framework],
    ["Records per epoch", data.num_records ? number(data.num_records) : ""],
    ["Minibatch", data.minibatch_size ? number(data.minibatch_size) : ""],
    ["Resumes within an epoch", data.resume],
    ["Output", data.output], ["Job", data.job_id], ["Held by", data.holder],
    ["Versions", Object.entries(data.versions).map(([name, version]) => `${name} ${version}`).join(", ")
      || "not in this log"],
    ["Trusted code", data.trust_used.join("; ")],
  ].filter(([, value]) => value);
  fill(body(section), 
    el("dl", { class: "facts" }, ...facts.flatMap(([name, value]) =>
      [el("dt", {}, name), el("dd", {}, value)])),
    Object.keys(data.definition).length
      ? el("details", {}, el("summary", {}, "Complete definition (job.json, without passwords)"),
        el("pre", { tabIndex: 0, role: "region", "aria-label": "job.json" }, JSON.stringify(data.definition, null, 2)))
      : null);
}

function body(section) {
  return section.querySelector(".body");
}
