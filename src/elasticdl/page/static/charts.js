// Curves, drawn by uPlot. A chart is created once and updated as long as its series are the same.

import { clock, colour, el, moment, number } from "./dom.js";

// Same width as the gutter of the lanes, so that the time axes of charts and lanes are aligned.
export const LEFT = 64;
export const RIGHT = 14;
const HEIGHT = 200;

/**
 * One chart in an element.
 *
 * `options`: title, unit of x ("time" or a word), `height`, `log` for a logarithmic axis,
 * `onselect(from, to)` is called with the range that was dragged over.
 */
export class Chart {
  constructor(parent, options) {
    this.options = options;
    this.box = el("figure", { class: "chart" });
    this.caption = el("figcaption", {}, options.title);
    this.place = el("div", {
      class: "plot", tabIndex: 0, role: "img", "aria-label": options.title,
      onkeydown: (event) => this.move(event),
    });
    this.box.append(this.caption, this.place);
    parent.append(this.box);
    this.key = "";
    new ResizeObserver(() => this.resize()).observe(this.place);
  }

  /**
   * Draw curves: [{name, colour, x, y, bad, points, dash}], and marks: [{x, colour, text}].
   * `range` is the [from, to] of x; null is all of it.
   */
  draw(curves, marks = [], range = null) {
    this.last = [curves, marks, range];
    this.marks = marks.concat(curves.flatMap((curve) =>
      (curve.bad ?? []).map((x) => ({ x, colour: "lost", text: "not finite" }))));
    this.range = range;
    const data = uPlot.join(curves.map((curve) => [curve.x, curve.y]));
    const key = JSON.stringify(curves.map((curve) => [curve.name, curve.colour, curve.points]));
    this.place.setAttribute("aria-label", `${this.options.title}. ${describe(curves)}`);
    if (key === this.key && this.plot) {
      this.plot.setData(data, true);
      return;
    }
    this.key = key;
    this.plot?.destroy();
    this.plot = new uPlot(this.settings(curves), data, this.place);
  }

  redraw() {
    this.key = "";
    if (this.last) this.draw(...this.last);
  }

  resize() {
    const width = this.place.clientWidth;
    if (this.plot && width && width !== this.plot.width) {
      this.plot.setSize({ width, height: this.plot.height });
    }
  }

  settings(curves) {
    const isTime = this.options.unit === "time";
    const axis = {
      stroke: colour("soft"), grid: { stroke: colour("line"), width: 1 },
      ticks: { stroke: colour("line"), width: 1 }, font: "12px system-ui, sans-serif",
    };
    return {
      width: this.place.clientWidth || 300,
      height: this.options.height ?? HEIGHT,
      padding: [8, RIGHT, 0, 0],
      cursor: { drag: { x: Boolean(this.options.onselect), y: false, setScale: false } },
      scales: {
        x: { time: isTime, range: (_, low, high) => this.range ?? wide(low, high) },
        y: { distr: this.options.log ? 3 : 1, range: (_, low, high) => this.heights(low, high) },
      },
      axes: [
        { ...axis, space: isTime ? 70 : 50,
          values: (plot, splits) => splits.map(isTime ? times(plot) : (v) => Number.isInteger(v) ? number(v) : ""),
        },
        { ...axis, size: LEFT, values: (_, splits) => splits.map((v) => v === null ? "" : number(v, 3)) },
      ],
      series: [
        { label: isTime ? "time" : this.options.unit,
          value: (_, x) => x === null ? "" : isTime ? clock(x) : number(x) },
        ...curves.map((curve) => ({
          label: curve.name, stroke: colour(curve.colour), width: curve.width ?? 1.5,
          dash: curve.dash, spanGaps: true,
          points: curve.points || curve.x.length < 2
            ? { show: true, size: 6, fill: colour(curve.colour) } : { show: false },
          value: (_, y) => y === null || y === undefined ? "" : number(y),
        })),
      ],
      hooks: {
        draw: [(plot) => this.drawMarks(plot)],
        setSelect: [(plot) => this.select(plot)],
      },
    };
  }

  heights(low, high) {
    if (low === null || high === null) return [0, 1];
    if (this.options.log) return [low, high === low ? low * 10 : high];
    if (this.options.fromZero) low = Math.min(0, low);
    const margin = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    return [this.options.fromZero && low === 0 ? 0 : low - margin, high + margin];
  }

  drawMarks(plot) {
    const context = plot.ctx;
    const { left, top, width, height } = plot.bbox;
    const ratio = devicePixelRatio;
    context.save();
    context.textAlign = "left";
    context.font = `${11 * ratio}px system-ui, sans-serif`;
    // A text that would overlap another one is moved to the next line.
    const lines = [];
    for (const mark of this.marks) {
      const x = plot.valToPos(mark.x, "x", true);
      if (x < left || x > left + width) continue;
      context.strokeStyle = context.fillStyle = colour(mark.colour);
      context.lineWidth = 1.5 * ratio;
      context.setLineDash(mark.dash ? [4 * ratio, 4 * ratio] : []);
      context.beginPath();
      context.moveTo(x, top);
      context.lineTo(x, top + height);
      context.stroke();
      if (!mark.text) continue;
      const long = context.measureText(mark.text).width + 8 * ratio;
      const from = x + long < left + width ? x : x - long;
      let line = lines.findIndex((taken) => taken.every(([a, b]) => from >= b || from + long <= a));
      if (line < 0) line = lines.push([]) - 1;
      lines[line].push([from, from + long]);
      context.fillText(mark.text, from + 4 * ratio, top + (12 + 13 * line) * ratio);
    }
    context.restore();
  }

  select(plot) {
    const { left, width } = plot.select;
    if (width < 5) return;
    const from = plot.posToVal(left, "x");
    const to = plot.posToVal(left + width, "x");
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.options.onselect?.(from, to);
  }

  /** Move the cursor by the keyboard. */
  move(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 };
    if (!(event.key in steps) || !this.plot) return;
    event.preventDefault();
    const last = this.plot.data[0].length - 1;
    const now = this.plot.cursor.idx ?? 0;
    const at = Math.min(last, Math.max(0, now + steps[event.key]));
    const left = this.plot.valToPos(this.plot.data[0][at], "x");
    this.plot.setCursor({ left, top: 10 });
  }
}

/** Return the time format of a chart's axis; it includes the day if the range spans days. */
function times(plot) {
  const { min, max } = plot.scales.x;
  return max - min > 86_400 ? (at) => moment(at).slice(5, 16) : clock;
}

function wide(low, high) {
  if (low === null) return [0, 1];
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

function describe(curves) {
  return curves.filter((curve) => curve.y.length).map((curve) => {
    const finite = curve.y.filter((y) => y !== null);
    return `${curve.name}: ${finite.length} points, minimum ${number(Math.min(...finite))}, `
      + `maximum ${number(Math.max(...finite))}, last ${number(finite.at(-1))}.`;
  }).join(" ");
}
