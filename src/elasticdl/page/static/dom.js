// Elements and text formats. Text from a log becomes a text node or a property, never HTML.

/** Return an element. `on...` properties are listeners; null children are left out. */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Replace the children of an element; null children are left out. */
export function fill(element, ...children) {
  element.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
}

const nameOf = (element) => element.getAttribute("aria-label") ?? element.textContent;

/** Redraw a section, keeping its focus, scroll positions and open details. */
export function redrawn(section, draw) {
  const focused = section.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  const boxes = () => [...section.querySelectorAll("[role=region]")];
  const details = () => [...section.querySelectorAll("details")];
  const scrolled = new Map(boxes().map((box) => [nameOf(box), [box.scrollLeft, box.scrollTop]]));
  const opened = new Map(details().map((each) => [nameOf(each.firstElementChild), each.open]));
  draw();
  for (const box of boxes()) [box.scrollLeft, box.scrollTop] = scrolled.get(nameOf(box)) ?? [0, 0];
  for (const each of details()) each.open = opened.get(nameOf(each.firstElementChild)) ?? each.open;
  if (focused !== null && !section.contains(document.activeElement)) {
    [...section.querySelectorAll("a, button, input, summary, [tabindex]")]
      .find((element) => nameOf(element) === focused)?.focus({ preventScroll: true });
  }
}

/** Return an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Return a table in a box that scrolls by itself. Cells are texts or elements. */
export function table(label, head, rows, isNumber = () => false) {
  return el("div", { class: "wide", tabIndex: 0, role: "region", "aria-label": label },
    el("table", {},
      el("thead", {}, el("tr", {}, ...head.map((name, at) =>
        el("th", { scope: "col", class: isNumber(at) ? "number" : "" }, name)))),
      el("tbody", {}, ...rows.map((cells) =>
        el("tr", {}, ...cells.map((cell, at) =>
          el("td", { class: isNumber(at) ? "number" : "" }, cell ?? "")))))));
}

/** Return a value by its name, which may be that of a property that all objects have. */
export function own(values, name) {
  return Object.hasOwn(values, name) ? values[name] : null;
}

export function number(value, digits = 4) {
  if (value === null || value === undefined) return "none";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(digits - 1);
  return Number(value.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 6 });
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "unknown";
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (seconds < 600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (Math.abs(count) >= 1000 && at < units.length - 1) { count /= 1000; at += 1; }
  return `${at ? count.toFixed(1) : count} ${units[at]}`;
}

const pad = (value) => String(value).padStart(2, "0");

export function clock(seconds) {
  const at = new Date(seconds * 1000);
  return `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

export function moment(seconds) {
  if (!seconds) return "";
  const at = new Date(seconds * 1000);
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${clock(seconds)}`;
}

/** Return the value of a CSS variable, so that charts use the colours of the theme. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
