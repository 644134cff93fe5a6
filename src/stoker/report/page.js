// What moves in the page: sliders, charts, copying, light and dark. Text is set as text, never as HTML.
"use strict";

(() => {
  const { profiles, per, samples } = JSON.parse(document.getElementById("document").textContent);
  const { predict, forecast, asMeasured, onCores } = globalThis.stokerModel;
  const { bars, curves, show, timeText, wholePercents } = globalThis.stokerCharts;
  const element = (id) => document.getElementById(id);
  const profile = profiles[profiles.length - 1];
  const before = profiles.length > 1 ? profiles[0] : null;
  const LIMITS = { gpu: "the training loop", prep: "preparing samples", fetch: "reading from storage" };
  const PARTS = { host: "no part of it", tail: "from bytes on (--prep tail)", device: "from files on (--prep device)" };
  const FACTORS = [0.1, 0.2, 0.25, 0.33, 0.5, 0.67, 0.75, 1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32];
  const POINTS = 40;

  // ---- numbers for people

  function number(value) {
    if (!Number.isFinite(value)) return "unlimited";
    if (value >= 1e12 || (value > 0 && value < 0.001)) return value.toExponential(2);
    const digits = value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 3;
    return value.toLocaleString("en-US", { maximumFractionDigits: digits });
  }
  const percent = (part) => `${part > 0 && part < 0.005 ? "<1" : Math.round(100 * part)}\u00a0%`;
  const rateText = (rate) => `${number(rate)}\u00a0samples/s`;
  function bytes(count) {
    const units = [[1, "B"], [1e3, "KB"], [1e6, "MB"], [1e9, "GB"], [1e12, "TB"]];
    const [size, name] = units.findLast(([one]) => count >= one) || units[0];
    return `${number(count / size)}\u00a0${name}`;
  }
  const many = (count, word) => `${number(count)}\u00a0${word}${count === 1 ? "" : "s"}`;

  // ---- predictions

  // Odd numbers in a profile may have no answer; then there is nothing to draw.
  const answer = (found) => (Number.isFinite(found.rate) && found.rate > 0 ? found : null);
  function asked(one, share, sure = true) {
    const { rates, scale } = one.on_device[share.prep] || one;
    return one.predictable ? answer(forecast(rates, scale, share, sure ? one.confidence : {})) : null;
  }
  // What the stages alone would give, not in proportion to what was seen: the two are compared.
  const byStages = (one) => (one.predictable ? answer(predict(one.rates, asMeasured(one))) : null);
  const measured = asMeasured(profile);
  const now = asked(profile, measured);
  const sliders = {};

  function share() {
    const wanted = { ...measured };
    for (const [field, slider] of Object.entries(sliders)) {
      if (slider.changed()) wanted[field] = slider.value();
    }
    return wanted;
  }
  const changed = () => Object.values(sliders).some((slider) => slider.changed());

  // ---- sliders: each goes over a list of values, from the one that was measured

  const near = (values, value) => [...new Set([...values, value])].sort((one, other) => one - other);
  const upTo = (first, last) => Array.from({ length: last - first + 1 }, (_, step) => first + step);

  function slider(field, values, start, words, why) {
    const input = element(`slider-${field}`);
    const output = element(`value-${field}`);
    const begin = values.indexOf(start);
    Object.assign(input, { min: 0, max: values.length - 1, step: 1, value: begin, disabled: Boolean(why) });
    const value = () => values[Number(input.value)];
    const tell = () => {
      output.textContent = why || words(value());
      input.setAttribute("aria-valuetext", output.textContent);
    };
    input.addEventListener("input", () => {
      tell();
      refresh();
    });
    tell();
    sliders[field] = {
      value,
      changed: () => Number(input.value) !== begin,
      reset() {
        input.value = begin;
        tell();
      },
    };
  }

  const mostWorkers = Math.max(profile.workers, Math.min(256, Math.ceil(Math.max(8, 2 * profile.workers, 2 * profile.rates.cores))));

  function makeSliders() {
    const { rates, sample_bytes: size } = profile;
    const stored = rates.storage > 0 || Object.values(rates.storage_by_readers).some((rate) => rate > 0);
    const unknown = stored ? "" : "storage was not measured";
    const cores = rates.cores || 1;
    slider("workers", near(upTo(0, mostWorkers), profile.workers), profile.workers, (count) =>
      count ? many(count, "worker") : "0, in the loop itself");
    slider("cores", near(upTo(1, Math.max(mostWorkers, Math.min(256, Math.ceil(cores)))), cores), cores,
      (count) => many(count, "core"), rates.cores ? "" : "unknown");
    slider("cached", near(upTo(0, 100).map((part) => part / 100), profile.cached), profile.cached, (part) =>
      `${percent(part)}${profile.dataset_bytes ? ` (${bytes(part * profile.dataset_bytes)})` : ""}`, unknown);
    slider("storage_factor", FACTORS, 1, (by) =>
      `${by}\u00d7${size && rates.storage ? ` (${bytes(by * rates.storage * size)}/s)` : ""}`, unknown);
    slider("gpu_factor", FACTORS, 1, (by) => `${by}\u00d7 (${rateText(by * rates.gpu)})`);
    if (element("slider-prep")) slider("prep", ["host", ...Object.keys(profile.on_device)], "host", (part) => PARTS[part]);
    element("reset").addEventListener("click", () => {
      Object.values(sliders).forEach((one) => one.reset());
      refresh();
    });
  }

  // ---- what the sliders say

  function tellResult(wanted, found) {
    const tell = (id, words) => { element(id).textContent = words; };
    globalThis.stokerPage = { share: wanted, prediction: found };
    tell("result-head", changed() ? "Predicted with your changes" : "As it ran");
    tell("result-rate", found ? number(found.rate) : "no answer");
    for (const kind of ["compute", "prep", "fetch"]) element(`result-${kind}`).hidden = !found;
    element("reset").disabled = !changed();
    element("legend-changes").hidden = !changed();
    tell("legend-most", `the loop alone, ${rateText(profile.rates.gpu * wanted.gpu_factor)}`);
    if (!found) {
      tell("result-words", "The model has no answer for these values.");
      return;
    }
    const times = found.rate / now.rate;
    const effect = !changed() ? "" : Math.abs(times - 1) < 0.005 ? " No faster and no slower than now." :
      ` ${number(Math.round(100 * times) / 100)} times as fast as now.`;
    const sure = found.high > found.low ? `${number(found.low)} to ${number(found.high)} with 95\u00a0% confidence.` : "";
    const guess = found.extrapolated ? " Partly extrapolated beyond what was measured." : "";
    const stall = found.prep_stall + found.fetch_stall;
    tell("result-words",
      `${sure}${effect} The limit is ${LIMITS[found.limit]}; the loop waits ${percent(stall)} of the time.${guess}`.trim());
    const parts = { compute: Math.max(0, 1 - stall), prep: found.prep_stall, fetch: found.fetch_stall };
    const shown = wholePercents(parts);
    for (const [kind, part] of Object.entries(parts)) {
      element(`result-${kind}`).style.flexGrow = part;
      element(`result-${kind}`).textContent = part * element("result-parts").clientWidth >= 36 ? shown[kind] : "";
    }
  }

  // ---- what the charts show

  function row(words, rate, prep, fetch) {
    const time = samples / rate;
    return { words: `${words} \u00b7 ${number(rate)} samples/s \u00b7 ${timeText(time)}`, seconds: time, prep, fetch };
  }
  const predictedRow = (words, found) => row(words, found.rate, found.prep_stall, found.fetch_stall);

  function barRows(found) {
    const rows = [];
    for (const one of profiles) {
      const name = one.name ? `${one.name}, ` : "";
      const model = byStages(one);
      if (one.measured) rows.push(row(`${name}measured`, one.measured.rate, one.measured.prep, one.measured.fetch));
      if (model) rows.push(predictedRow(`${name}predicted`, model));
    }
    if (found && changed()) rows.push(predictedRow("your changes", found));
    return rows.filter((one) => Number.isFinite(one.seconds) && one.seconds > 0);
  }

  // The curves through the place where the sliders are. `at` sets the thing on the x axis.
  function curveData(wanted, found, xs, at, other, place) {
    const lines = { x: xs, y: [], low: [], high: [], other: [], before: [] };
    for (const x of xs) {
      const main = asked(profile, at(wanted, x, profile));
      lines.y.push(main ? main.rate : NaN);
      lines.low.push(main ? main.low : NaN);
      lines.high.push(main ? main.high : NaN);
      lines.other.push(asked(profile, other(wanted, x), false)?.rate ?? NaN);
      lines.before.push(before ? asked(before, at(asMeasured(before), x, before), false)?.rate ?? NaN : NaN);
    }
    const point = (one, where) => ({ x: place(where), y: one.rate, low: one.low, high: one.high });
    const points = [point(now, measured)];
    if (found && changed()) points.push({ ...point(found, wanted), asked: true });
    return { ...lines, points, most: profile.rates.gpu * wanted.gpu_factor };
  }

  function cacheData(wanted, found) {
    const xs = upTo(0, POINTS).map((step) => (100 * step) / POINTS);
    const at = (base, x) => ({ ...base, cached: x / 100 });
    const lru = (base, x) => ({ ...base, cached: x / 100, policy: "lru" });
    return curveData(wanted, found, xs, at, lru, (where) => 100 * where.cached);
  }

  function workerData(wanted, found) {
    const step = Math.ceil(mostWorkers / POINTS);
    const xs = near(upTo(1, Math.floor(mostWorkers / step)).map((count) => count * step), 1);
    const at = (base, x) => ({ ...base, workers: x });
    const other = (base, x) => onCores(profile.rates, base, x);
    return curveData(wanted, found, xs, at, other, (where) => where.workers);
  }

  const charts = [];
  let waiting = 0;

  function draw() {
    waiting = 0;
    const wanted = share();
    const found = asked(profile, wanted);
    for (const { chart, data } of charts) chart.update(data(wanted, found));
  }

  // The answer at once, the charts with the next picture.
  function refresh() {
    const wanted = share();
    tellResult(wanted, asked(profile, wanted));
    waiting = waiting || requestAnimationFrame(draw);
  }

  async function drawAll() {
    delete document.body.dataset.ready;
    for (const { chart } of charts.splice(0)) chart.remove();
    const dark = isDark();
    const add = (id, make, data) => {
      const place = element(id);
      if (place) charts.push({ chart: show(place, dark, make), data });
    };
    if (barRows(null).length) add("chart-time", (...how) => bars(...how, per), (_, found) => barRows(found));
    if (now) {
      add("chart-cache", (...how) => curves(...how, "part of the dataset in the cache (%)", false), cacheData);
      add("chart-workers", (...how) => curves(...how, "workers", true), workerData);
    }
    draw();
    for (const { chart } of charts) await chart.begin();
    document.body.dataset.ready = "yes";
  }

  // ---- light and dark, copying

  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";

  function nameToggle() {
    element("theme").textContent = isDark() ? "Light" : "Dark";
  }
  element("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    nameToggle();
    drawAll();
  });
  system.addEventListener("change", () => {
    nameToggle();
    drawAll();
  });

  async function copy(button) {
    const code = element(button.dataset.copies);
    let done = true;
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code); // where a page may not write: the old way, or by hand
      done = document.execCommand("copy");
    }
    button.textContent = done ? "Copied" : "Selected: press Ctrl+C";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  }
  for (const button of document.querySelectorAll("button[data-copies]")) button.addEventListener("click", () => copy(button));

  // Words inside the bars depend on how wide they are.
  addEventListener("resize", () => {
    waiting = waiting || requestAnimationFrame(draw);
  });

  // ---- begin

  globalThis.Bokeh.logger.set_level("warn");
  nameToggle();
  if (now) {
    makeSliders();
    tellResult(share(), now);
  }
  drawAll();
})();
