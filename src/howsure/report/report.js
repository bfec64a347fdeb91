"use strict";
// Draws the charts, moves them with the slider, sorts tables. Texts are set as text, never as HTML.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const level = document.getElementById("level");
  const output = document.getElementById("output");
  const margin = { left: 58, right: 26, top: 8, bottom: 44 };

  function svg(name, attributes, parent) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (parent) parent.append(node);
    return node;
  }

  function element(name, text, parent) {
    const node = document.createElement(name);
    node.textContent = text;
    if (parent) parent.append(node);
    return node;
  }

  const current = () => data.views[level ? Number(level.value) : data.start][output ? Number(output.value) : 0];

  // A number as the axis means it: a share in percent, a logarithm as its power.
  function worded(axis, position) {
    if (axis.scale === "percent") return `${(100 * position).toFixed(1)} %`;
    const value = axis.scale === "log" ? 10 ** position : position;
    return String(Number(value.toPrecision(3)));
  }

  function tipOf(chart, series, i) {
    if (series.tips.length) return series.tips[i];
    const at = `${chart.x.label} ${worded(chart.x, series.x[i])}`;
    return `${series.name}: ${at}, ${chart.y.label} ${worded(chart.y, series.y[i])}`;
  }

  // Shapes differ as well as colours, for readers who see none.
  function dot(parent, role, x, y) {
    const look = { class: `dot role-${role}` };
    if (role === "bad") {
      svg("path", { ...look, d: `M${x - 4},${y - 4}l8,8m0,-8l-8,8` }, parent);
    } else if (role === "now") {
      svg("path", { ...look, d: `M${x},${y - 6}l6,6l-6,6l-6,-6z` }, parent);
    } else {
      svg("circle", { ...look, cx: x, cy: y, r: role === "first" ? 4 : 3 }, parent);
    }
  }

  function pathOf(points) {
    return points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");
  }

  function swatch(series) {
    const box = svg("svg", { width: 26, height: 12, "aria-hidden": "true" });
    const places = series.mark === "bars" ? [13] : [2, 24];
    const edges = [1, 11].map((y) => places.map((x) => [x, y]));
    drawMark(box, series, [[2, 6], [24, 6]], ...edges, [[13, 6]]);
    return box;
  }

  function drawMark(parent, series, line, upper, lower, dots) {
    const role = `role-${series.role}`;
    if (series.mark === "band") {
      svg("path", { class: `band ${role}`, d: `${pathOf([...lower, ...[...upper].reverse()])}Z` }, parent);
    } else if (series.mark === "bars") {
      const d = lower.map(([x, y], i) => `M${x.toFixed(1)},${y.toFixed(1)}V${upper[i][1].toFixed(1)}`).join("");
      svg("path", { class: `bar-line ${role}`, d }, parent);
    } else if (series.mark === "points") {
      for (const [x, y] of dots) dot(parent, series.role, x, y);
    } else {
      svg("path", { class: `${series.mark} ${role}`, d: pathOf(line) }, parent);
    }
  }

  function drawAxes(root, chart, place, size) {
    const right = size.width - margin.right, bottom = size.height - margin.bottom;
    const room = (right - margin.left) / 52;
    const skip = Math.ceil(chart.x.ticks.length / room);
    chart.x.ticks.forEach(([position, label], i) => {
      const x = place.x(position);
      svg("line", { class: "grid", x1: x, x2: x, y1: margin.top, y2: bottom }, root);
      if (i % skip) return;
      svg("text", { x, y: bottom + 16, "text-anchor": "middle" }, root).textContent = label;
    });
    for (const [position, label] of chart.y.ticks) {
      const y = place.y(position);
      svg("line", { class: "grid", x1: margin.left, x2: right, y1: y, y2: y }, root);
      svg("text", { x: margin.left - 6, y: y + 4, "text-anchor": "end" }, root).textContent = label;
    }
    const middle = (margin.left + right) / 2, centre = (margin.top + bottom) / 2;
    svg("text", { x: middle, y: size.height - 6, "text-anchor": "middle" }, root).textContent = chart.x.label;
    const turned = { transform: `translate(12 ${centre}) rotate(-90)`, "text-anchor": "middle" };
    svg("text", turned, root).textContent = chart.y.label;
  }

  function scales(chart, size) {
    const along = (axis, low, high) => (v) => low + ((v - axis.low) / (axis.high - axis.low)) * (high - low);
    return {
      x: along(chart.x, margin.left, size.width - margin.right),
      y: along(chart.y, size.height - margin.bottom, margin.top),
    };
  }

  const shown = new Map(); // figure -> the points that can be read, and which one is

  function draw(chart) {
    const figure = document.getElementById(`chart-${chart.key}`);
    if (!figure) return;
    const plot = figure.querySelector(".plot"), legend = figure.querySelector(".legend");
    plot.replaceChildren();
    legend.replaceChildren();
    figure.querySelector("figcaption").textContent = chart.caption;
    figure.querySelector(".tip").hidden = true;
    shown.set(figure, { points: [], at: -1, ring: null });
    if (!chart.series.length) return;
    const width = Math.max(240, plot.clientWidth || 420);
    const size = { width, height: Math.min(340, Math.max(230, width * 0.66)) };
    const root = svg("svg", { viewBox: `0 0 ${size.width} ${size.height}`, "aria-hidden": "true" }, plot);
    const place = scales(chart, size);
    drawAxes(root, chart, place, size);
    const box = svg("svg", {
      x: margin.left - 8, y: 0, width: size.width - margin.left - margin.right + 16,
      height: size.height - margin.bottom + 8, overflow: "hidden",
    }, root);
    const inside = svg("g", { transform: `translate(${8 - margin.left} 0)` }, box);
    const points = [];
    for (const series of chart.series) {
      const at = (values) =>
        series.x.map((x, i) => [place.x(x), place.y(values[i])]).filter(([x, y]) => isFinite(x + y));
      const line = at(series.y);
      drawMark(inside, series, line, series.upper.length ? at(series.upper) : [], line, line);
      if (series.name) element("span", "", legend).append(swatch(series), series.name);
      if (!["line", "points"].includes(series.mark)) continue;
      series.x.forEach((x, i) => {
        points.push({ x: place.x(x), y: place.y(series.y[i]), text: tipOf(chart, series, i) });
      });
    }
    points.sort((a, b) => a.x - b.x);
    const ring = svg("circle", { class: "hover", r: 7, visibility: "hidden" }, root);
    shown.set(figure, { points, at: -1, ring, size });
  }

  function read(figure, index) {
    const state = shown.get(figure), tip = figure.querySelector(".tip");
    const point = state && state.points[index];
    tip.hidden = !point;
    if (!point) {
      if (state && state.ring) state.ring.setAttribute("visibility", "hidden");
      return;
    }
    state.at = index;
    for (const [key, value] of [["cx", point.x], ["cy", point.y], ["visibility", "visible"]]) {
      state.ring.setAttribute(key, value);
    }
    tip.textContent = point.text;
    const plot = figure.querySelector(".plot"), ratio = plot.clientWidth / state.size.width;
    const left = plot.offsetLeft + point.x * ratio, top = plot.offsetTop + point.y * ratio;
    tip.style.left = `${Math.max(4, Math.min(left + 12, figure.clientWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = `${Math.max(0, top - tip.offsetHeight - 12)}px`;
  }

  function nearest(figure, event) {
    const state = shown.get(figure), root = figure.querySelector("svg[viewBox]");
    if (!state || !root) return -1;
    const box = root.getBoundingClientRect(), ratio = state.size.width / box.width;
    const x = (event.clientX - box.left) * ratio, y = (event.clientY - box.top) * ratio;
    const far = (p) => (p.x - x) ** 2 + (p.y - y) ** 2;
    let best = -1;
    state.points.forEach((p, i) => {
      if (best < 0 || far(p) < far(state.points[best])) best = i;
    });
    return best;
  }

  function listen(figure) {
    const plot = figure.querySelector(".plot");
    plot.addEventListener("pointermove", (event) => read(figure, nearest(figure, event)));
    plot.addEventListener("pointerdown", (event) => read(figure, nearest(figure, event)));
    plot.addEventListener("pointerleave", () => read(figure, -1));
    plot.addEventListener("blur", () => read(figure, -1));
    plot.addEventListener("keydown", (event) => {
      const state = shown.get(figure);
      const steps = { ArrowRight: 1, ArrowLeft: -1 };
      if (event.key === "Escape") read(figure, -1);
      if (!(event.key in steps) || !state) return;
      event.preventDefault();
      const last = state.points.length - 1;
      read(figure, Math.max(0, Math.min(last, state.at + steps[event.key])));
    });
  }

  function show() {
    const view = current();
    const summary = document.getElementById("summary");
    summary.replaceChildren(...view.headline.map((line) => element("p", line)));
    const rows = document.querySelectorAll("#metrics tbody tr");
    view.metrics.forEach((texts, i) => texts.forEach((text, k) => {
      rows[i].cells[k].textContent = text;
    }));
    view.charts.forEach(draw);
    if (data.search) draw(data.search);
    if (!level) return;
    const name = data.levels[Number(level.value)];
    level.setAttribute("aria-valuetext", name);
    document.getElementById("level-name").textContent = name;
  }

  const collator = new Intl.Collator(undefined, { numeric: true });

  function compare(one, two) {
    const numbers = [one, two].map((cell) => cell.dataset.value);
    if (numbers.every((value) => value !== undefined)) {
      const [a, b] = numbers.map(Number);
      return a === b ? 0 : a < b ? -1 : 1;
    }
    return collator.compare(one.textContent, two.textContent);
  }

  function sortBy(head) {
    const body = head.closest("table").tBodies[0];
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentNode.cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const column = head.cellIndex, sign = down ? -1 : 1;
    body.append(...[...body.rows].sort((a, b) => sign * compare(a.cells[column], b.cells[column])));
  }

  function isDark() {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  const theme = document.getElementById("theme");
  const nameTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    nameTheme();
  });
  for (const control of [level, output]) if (control) control.addEventListener("input", show);
  const form = document.getElementById("controls");
  if (form) form.addEventListener("submit", (event) => event.preventDefault());
  for (const button of document.querySelectorAll(".sortable th button")) {
    button.addEventListener("click", () => sortBy(button.closest("th")));
  }
  document.querySelectorAll("figure").forEach(listen);
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    show();
  });
  // Browsers may bring back an old position of the slider; the page shows what it says.
  nameTheme();
  show();
})();
