// The page of jobs that run together: two charts and a slider. Text is set as text, never as HTML.
"use strict";

(() => {
  const { curves, best, names, real, lines, points, makespan } = JSON.parse(document.getElementById("document").textContent);
  const element = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [900, 300, 62, 14, 12, 34];

  const seconds = (value) => `${value.toFixed(value < 100 ? 1 : 0)}\u00a0s`;

  function add(parent, name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }

  // About four round numbers between two.
  function ticks(from, to) {
    const rough = (to - from) / 4 || 1;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].find((times) => times * unit >= rough * 0.999) * unit;
    const found = [];
    for (let at = Math.ceil(from / step - 1e-6); at * step <= to + step * 1e-6; at += 1) found.push(at * step);
    return found;
  }

  const plain = (value) => String(Number(value.toPrecision(6)));

  // A chart with axes from one corner to the other; returns where it is and how numbers lie in it.
  function chart(place, [x0, x1], [y0, y1]) {
    const svg = add(place, "svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" });
    const x = (value) => LEFT + ((value - x0) / (x1 - x0 || 1)) * (WIDTH - LEFT - RIGHT);
    const y = (value) => HEIGHT - BOTTOM - ((value - y0) / (y1 - y0 || 1)) * (HEIGHT - TOP - BOTTOM);
    add(svg, "path", { class: "axis", d: `M${LEFT} ${TOP}V${HEIGHT - BOTTOM}H${WIDTH - RIGHT}` });
    for (const at of ticks(x0, x1)) {
      const isLast = x(at) > WIDTH - RIGHT - 20;
      add(svg, "text", { x: x(at), y: HEIGHT - 12, "text-anchor": isLast ? "end" : "middle" }, plain(at));
    }
    for (const at of ticks(y0, y1)) add(svg, "text", { x: LEFT - 8, y: y(at) + 4, "text-anchor": "end" }, plain(at));
    return { svg, x, y };
  }

  const job = (n) => `job-${n % 4}`;
  const path = (view, line) => line.map(([across, up], n) => `${n ? "L" : "M"}${view.x(across)} ${view.y(up)}`).join("");

  // ---- makespan over the offset; B first is left of 0

  // Corners from left to right, each [signed offset, makespan, time of A, time of B].
  const corners = [
    ...(curves.B || []).map(([offset, ...rest]) => [-offset, ...rest]).reverse(),
    ...(curves.A || []).slice(curves.B ? 1 : 0),
  ];

  function at(offset) {
    const next = corners.findIndex(([where]) => where >= offset);
    if (next <= 0) return corners[next < 0 ? corners.length - 1 : 0];
    const [one, other] = [corners[next - 1], corners[next]];
    const part = other[0] > one[0] ? (offset - one[0]) / (other[0] - one[0]) : 1;
    return one.map((value, n) => value + part * (other[n] - value));
  }

  // Beyond its last corners, each second of offset costs one.
  if (real && curves.A && corners[corners.length - 1][0] < real.offset) {
    const [offset, span, ...times] = corners[corners.length - 1];
    corners.push([real.offset, span + real.offset - offset, ...times]);
  }
  if (real && curves.B && real.offset < corners[0][0]) {
    const [offset, span, ...times] = corners[0];
    corners.unshift([real.offset, span + offset - real.offset, ...times]);
  }

  if (corners.length) {
    const ends = [corners[0][0], corners[corners.length - 1][0]];
    const across = real ? [Math.min(ends[0], real.offset), Math.max(ends[1], real.offset)] : ends;
    const spans = corners.map(([, span]) => span).concat(real ? [real.makespan] : []);
    const low = Math.min(...spans);
    const high = Math.max(...spans);
    const room = (high - low || high) * 0.08;
    const view = chart(element("chart-curve"), across, [Math.max(0, low - room), high + room]);
    add(view.svg, "path", { class: "line job-0", d: path(view, corners) });
    const asked = add(view.svg, "path", { class: "asked" });
    const dot = add(view.svg, "circle", { class: "dot", r: 6 });
    if (real) add(view.svg, "circle", { class: "real job-1", r: 5, cx: view.x(real.offset), cy: view.y(real.makespan) });
    const [input, reset] = [element("slider-offset"), element("reset")];
    Object.assign(input, { min: 0, max: 400, step: 1 });
    let offset = best;
    const place = (value) => Math.round((400 * (value - ends[0])) / (ends[1] - ends[0] || 1));
    const show = () => {
      const [, span, first, second] = at(offset);
      const [leads, follows] = offset < 0 ? [names[1], names[0]] : names;
      element("value-offset").textContent = seconds(Math.abs(offset));
      input.setAttribute("aria-valuetext", `${leads} first, ${follows} ${seconds(Math.abs(offset))} later`);
      element("result-head").textContent = `${leads} first, ${follows} ${seconds(Math.abs(offset))} later`;
      element("result-makespan").textContent = seconds(span);
      element("result-words").textContent = `${names[0]} takes ${seconds(first)}, ${names[1]} ${seconds(second)}; the best is ${seconds(makespan)}.`;
      asked.setAttribute("d", `M${view.x(offset)} ${TOP}V${HEIGHT - BOTTOM}`);
      dot.setAttribute("cx", view.x(offset));
      dot.setAttribute("cy", view.y(span));
      reset.disabled = offset === best;
    };
    input.value = place(best);
    input.addEventListener("input", () => {
      offset = ends[0] + ((ends[1] - ends[0]) * Number(input.value)) / 400;
      show();
    });
    reset.addEventListener("click", () => {
      offset = best;
      input.value = place(best);
      show();
    });
    show();
  }

  // ---- progress

  const all = [...lines, ...points].flat();
  const last = Math.max(...all.map(([moment]) => moment), 1e-9);
  const view = chart(element("chart-progress"), [0, last], [0, Math.max(...all.map(([, passes]) => passes), 1)]);
  lines.forEach((line, n) => add(view.svg, "path", { class: `line ${job(n)}`, d: path(view, line) }));
  points.forEach((some, n) => {
    for (const [moment, passes] of some) {
      add(view.svg, "circle", { class: `real ${job(n)}`, r: 3.5, cx: view.x(moment), cy: view.y(passes) });
    }
  });

  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  element("theme").textContent = isDark() ? "Light" : "Dark";
  element("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    element("theme").textContent = isDark() ? "Light" : "Dark";
  });
  document.body.dataset.ready = "true";
})();
