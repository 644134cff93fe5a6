// The page of a simulated schedule: leases on GPUs, completion times, and what was given. Text is set as text, never as HTML.
"use strict";

(() => {
  const { bars, rows, until, models, times, used } = JSON.parse(document.getElementById("document").textContent);
  const element = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  const [WIDTH, LEFT, RIGHT, TOP, BOTTOM] = [900, 72, 14, 12, 34];

  function add(parent, name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }

  const short = (value) => String(Number(value.toPrecision(3)));
  const colour = (model) => `hsl(${Math.round((model * 360) / models.length)} 55% 50%)`;

  // Round numbers from one to another, six or so.
  function round(from, to) {
    const rough = (to - from) / 6 || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((times) => times * power >= rough * (1 - 1e-9)) * power;
    const found = [];
    for (let place = Math.ceil(from / step - 1e-9); place * step <= to + step * 1e-9; place += 1) found.push(place * step);
    return found;
  }

  // The same on an axis of powers of ten: 1, 2 or 5 of each, or the ends where there is none of them.
  function roundPowers(from, to) {
    const found = [];
    for (let power = Math.floor(from); power <= to; power += 1) found.push(power, power + Math.log10(2), power + Math.log10(5));
    const seen = found.filter((place) => place >= from - 1e-9 && place <= to + 1e-9);
    return seen.length > 7 ? seen.filter((place) => Number.isInteger(place)) : seen.length ? seen : [from, to];
  }

  // Axes with x from one number to another; `label` says what stands at one of the places.
  function chart(place, height, [x0, x1], [y0, y1], places = round(x0, x1), label = (value) => `${short(value)} h`) {
    const svg = add(place, "svg", { viewBox: `0 0 ${WIDTH} ${height}`, "aria-hidden": "true" });
    const x = (value) => LEFT + ((value - x0) / (x1 - x0 || 1)) * (WIDTH - LEFT - RIGHT);
    const y = (value) => height - BOTTOM - ((value - y0) / (y1 - y0 || 1)) * (height - TOP - BOTTOM);
    add(svg, "path", { class: "axis", d: `M${LEFT} ${TOP}V${height - BOTTOM}H${WIDTH - RIGHT}` });
    for (const across of places) {
      const isLast = x(across) > WIDTH - RIGHT - 20;
      add(svg, "text", { x: x(across), y: height - 12, "text-anchor": isLast ? "end" : "middle" }, label(across));
    }
    return { svg, x, y };
  }

  function upright(view, [y0, y1]) {
    for (const up of round(y0, y1)) {
      add(view.svg, "text", { x: LEFT - 8, y: view.y(up) + 4, "text-anchor": "end" }, short(up));
    }
  }

  const path = (view, line) => line.map(([across, up], n) => `${n ? "L" : "M"}${view.x(across).toFixed(1)} ${view.y(up).toFixed(1)}`).join("");

  // ---- leases
  const high = rows.length > 64 ? 4 : 10;
  const gantt = chart(element("chart-gantt"), rows.length * high + TOP + BOTTOM, [0, until], [rows.length, 0]);
  rows.forEach((name, row) => {
    if (name) add(gantt.svg, "text", { x: LEFT - 6, y: gantt.y(row) + 11, "text-anchor": "end", "font-size": 11 }, name);
  });
  for (const [row, count, begin, end, model, job, cpus] of bars) {
    const left = gantt.x(Math.min(begin, until));
    const bar = add(gantt.svg, "rect", {
      class: "bar", x: left.toFixed(1), y: gantt.y(row), height: count * high, fill: colour(model),
      width: Math.max(0.5, gantt.x(Math.min(end, until)) - left).toFixed(1),
    });
    add(bar, "title", {}, `job ${job}, ${models[model]}: ${cpus} CPUs for each GPU, ${short(begin)} to ${short(end)} h`);
  }
  models.forEach((name, number) => {
    const item = document.createElement("li");
    const key = document.createElement("span");
    key.className = "key";
    key.style.background = colour(number);
    item.append(key, name);
    element("legend").append(item);
  });

  // ---- completion times, on a logarithmic axis
  const spots = times.map(([hours, part]) => [Math.log10(Math.max(hours, 1e-3)), part]);
  const [first, last] = [spots[0][0], spots[spots.length - 1][0]];
  const distribution = chart(element("chart-times"), 300, [first, last], [0, 1], roundPowers(first, last), (power) => `${short(10 ** power)} h`);
  upright(distribution, [0, 1]);
  add(distribution.svg, "path", { class: "line c0", d: path(distribution, spots) });

  // ---- what was given
  const hours = [used[0][0], used[used.length - 1][0]];
  const given = chart(element("chart-used"), 260, hours, [0, 1]);
  upright(given, [0, 1]);
  [0, 1, 2].forEach((n) => add(given.svg, "path", { class: `line c${n}`, d: path(given, used.map((row) => [row[0], row[n + 1]])) }));
  const most = Math.max(1, ...used.map((row) => row[4]));
  const queue = chart(element("chart-waiting"), 160, hours, [0, most]);
  upright(queue, [0, most]);
  add(queue.svg, "path", { class: "line c0", d: path(queue, used.map((row) => [row[0], row[4]])) });

  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  element("theme").textContent = isDark() ? "Light" : "Dark";
  element("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    element("theme").textContent = isDark() ? "Light" : "Dark";
  });
  document.body.dataset.ready = "true";
})();
