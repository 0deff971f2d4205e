// Workers as lanes over time. Drawn as SVG, so that it is sharp and accessible by keyboard: Tab moves
// from lane to lane, the arrow keys from segment to segment.

import { LEFT, RIGHT } from "./charts.js";
import { clock, duration, el, svg } from "./dom.js";

const HEIGHT = 22;
const KINDS = {
  starting: "starting",
  joining: "joining: receiving the state",
  training: "training",
  behind: "behind: no batch committed",
  lost: "lost, not yet replaced",
};

export class Lanes {
  constructor(parent) {
    this.info = el("p", { class: "info", "aria-live": "polite" },
      "Hover over a segment, or use Tab and the arrow keys, for details.");
    this.place = el("div", { class: "lanes" });
    this.more = el("p", { class: "about" });
    parent.append(legend(), this.place, this.info, this.more);
    new ResizeObserver(() => this.last && this.draw(...this.last)).observe(this.place);
  }

  /** Draw the lanes of a clock section within [from, to]. */
  draw(clockSection, range) {
    this.last = [clockSection, range];
    const width = this.place.clientWidth;
    if (!width) return;
    const focused = this.place.querySelector(".lane:focus")?.dataset.rank;
    const [from, to] = range;
    const place = (time) => LEFT + (Math.min(to, Math.max(from, time)) - from)
      / Math.max(1e-9, to - from) * (width - LEFT - RIGHT);
    const lanes = clockSection.lanes;
    const drawing = svg("svg", {
      width, height: lanes.length * HEIGHT + 4, role: "group", "aria-label": "Workers over time",
    }, patterns());
    lanes.forEach((lane, row) => drawing.append(this.lane(lane, row, place, from, to)));
    for (const stall of clockSection.stalls) {
      if (stall.stop < from || stall.start > to) continue;
      const text = `stall: no step committed for ${duration(stall.seconds)}: ${stall.cause}`;
      const [x, end] = [place(stall.start), place(stall.stop)];
      const mark = svg("rect", {
        class: "stall", x, y: 0, width: Math.max(2, end - x), height: lanes.length * HEIGHT,
      }, svg("title", {}, `${clock(stall.start)}: ${text}`));
      mark.addEventListener("pointerenter", () => this.tell(stall.start, stall.stop, text));
      drawing.append(mark);
    }
    this.place.replaceChildren(drawing);
    if (focused !== undefined) this.place.querySelector(`[data-rank="${focused}"]`)?.focus();
    const more = clockSection.num_more_lanes;
    this.more.textContent = more ? `${more.toLocaleString("en")} more workers are not shown.` : "";
  }

  lane(lane, row, place, from, to) {
    const y = row * HEIGHT + 2;
    const seen = lane.segments.filter(([start, stop]) => stop >= from && start <= to);
    const group = svg("g", {
      class: "lane", tabindex: 0, role: "img", "data-rank": lane.rank,
      "aria-label": `Worker ${lane.rank}: ` + seen.slice(-8).map(([start, , , text]) =>
        `${clock(start)} ${text}`).join("; "),
    }, svg("text", { x: LEFT - 8, y: y + HEIGHT / 2 + 2, "text-anchor": "end" }, `worker ${lane.rank}`));
    const shapes = seen.map(([start, stop, kind, text]) => {
      const x = place(start);
      const shape = svg("rect", {
        class: `segment ${kind}`, x, y, width: Math.max(1.5, place(stop) - x), height: HEIGHT - 5,
        "data-kind": kind,
      }, svg("title", {}, `${clock(start)}, ${duration(stop - start)}: ${text}`));
      shape.addEventListener("pointerenter", () => this.tell(start, stop, text));
      return shape;
    });
    group.append(...shapes);
    let at = shapes.length - 1;
    const show = () => {
      shapes.forEach((shape, number) => shape.classList.toggle("chosen", number === at));
      if (seen[at]) this.tell(seen[at][0], seen[at][1], seen[at][3]);
    };
    group.addEventListener("focus", show);
    group.addEventListener("blur", () => shapes.forEach((shape) => shape.classList.remove("chosen")));
    group.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      at = Math.min(shapes.length - 1, Math.max(0, at + step));
      show();
    });
    return group;
  }

  tell(start, stop, text) {
    this.info.textContent = `${clock(start)} to ${clock(stop)} (${duration(stop - start)}): ${text}`;
  }
}

function legend() {
  const items = Object.entries(KINDS).map(([kind, text]) => el("li", {}, key(kind), text));
  items.push(el("li", {}, key("stall"), "stall: no step committed"));
  return el("ul", { class: "legend" }, ...items);
}

function key(kind) {
  return svg("svg", { width: 22, height: 12, "aria-hidden": "true" },
    svg("rect", { class: kind === "stall" ? "stall" : `segment ${kind}`, width: 22, height: 12 }));
}

function patterns() {
  const hatch = (id, name, angle) => svg("pattern", {
    id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: `rotate(${angle})`,
  }, svg("rect", { class: `${name}-back`, width: 6, height: 6 }),
  svg("rect", { class: `${name}-line`, width: 2.5, height: 6 }));
  return svg("defs", {}, hatch("hatch-lost", "lost", 45), hatch("hatch-behind", "behind", -45),
    hatch("hatch-joining", "joining", 90));
}
