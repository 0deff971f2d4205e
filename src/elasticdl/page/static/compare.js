// Several jobs side by side: one row each, their losses in one chart, and the differences between
// their definitions.

import { Chart } from "./charts.js";
import { duration, el, moment, number, table } from "./dom.js";

export const COLOURS = ["c1", "c2", "c3", "c4", "c5", "c6"];
export const DASHES = [undefined, [6, 3], [2, 3]];

export class Comparison {
  /** `choose(name)` shows a job. */
  constructor(section, choose) {
    this.section = section;
    this.choose = choose;
    this.chosen = null;
    this.rows = el("div");
    this.differences = el("details", {}, el("summary", {}, "Differences between their definitions"));
    section.querySelector("#compare-body").append(this.rows);
    section.hidden = false;
    this.chart = new Chart(section.querySelector("#compare-body"), {
      title: "Loss by step of the selected jobs", unit: "step",
    });
    section.querySelector("#compare-body").append(this.differences);
  }

  redraw() {
    this.chart.redraw();
  }

  show(jobs) {
    this.chosen ??= new Set(jobs.slice(0, 6).map((job) => job.name));
    this.jobs = jobs;
    const rows = jobs.map((job) => [
      el("input", {
        type: "checkbox", checked: this.chosen.has(job.name), "aria-label": `Compare ${job.name}`,
        onchange: (event) => {
          if (event.target.checked) this.chosen.add(job.name);
          else this.chosen.delete(job.name);
          this.draw();
        },
      }),
      el("button", { type: "button", class: "link", onclick: () => this.choose(job.name) }, job.name),
      el("span", { class: `state ${job.state}` }, job.state),
      job.progress, number(job.loss), number(job.val_loss), number(job.step),
      job.examples_per_s === null ? "" : number(job.examples_per_s, 3),
      number(job.workers_lost), duration(job.seconds), moment(job.started), job.model,
    ]);
    this.rows.replaceChildren(table("Jobs", ["compare", "job", "state", "progress", "loss",
      "validation loss", "step", "examples/s", "workers lost", "took", "started", "model"], rows,
    (at) => at >= 4 && at <= 8));
    this.draw();
  }

  draw() {
    const jobs = this.jobs.filter((job) => this.chosen.has(job.name));
    this.chart.draw(jobs.map((job, at) => ({
      ...job.loss_curve, name: job.name, colour: COLOURS[at % COLOURS.length],
      dash: DASHES[Math.floor(at / COLOURS.length) % DASHES.length],
    })));
    const names = [...new Set(jobs.flatMap((job) => Object.keys(job.params)))].sort();
    const text = (value) => typeof value === "string" ? value : JSON.stringify(value ?? null);
    const differing = names.filter((name) =>
      new Set(jobs.map((job) => text(job.params[name]))).size > 1);
    const summary = this.differences.firstElementChild;
    this.differences.replaceChildren(summary, differing.length
      ? table("Differences", ["", ...jobs.map((job) => job.name)], differing.map((name) =>
        [name, ...jobs.map((job) => text(job.params[name]))]))
      : el("p", {}, jobs.length > 1 ? "Only the output folder." : "Select two or more jobs."));
  }
}
