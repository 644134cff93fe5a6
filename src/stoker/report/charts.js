// The charts of the page, drawn by Bokeh. Numbers in, pictures out: nothing here predicts.
//
// A chart is drawn twice: for the screen in the colours that are on, and as vectors for paper, where only print shows it.
"use strict";

globalThis.stokerCharts = (() => {
  const KINDS = { compute: "#009e73", prep: "#e69f00", fetch: "#d55e00" };
  const THEMES = {
    light: { ink: "#1f2328", muted: "#59636e", grid: "#e3e7eb", line: "#0072b2", other: "#8250a8", back: "#ffffff" },
    dark: { ink: "#e6edf3", muted: "#9da7b3", grid: "#2b323b", line: "#56b4e9", other: "#cba6f7", back: "#161b22" },
  };
  const FONT = '-apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", Arial, sans-serif';
  const ROW = 64;
  const PAPER = 660;

  // [from which value on, what to divide by, its name]
  const TIMES = [
    [0, 1e-6, "\u00b5s"], [1e-3, 1e-3, "ms"], [1, 1, "s"], [120, 60, "min"], [7200, 3600, "hours"], [172800, 86400, "days"],
  ];
  const RATES = [
    [0, 1, "samples/s"], [1e5, 1e3, "thousand samples/s"], [1e6, 1e6, "million samples/s"], [1e9, 1e9, "billion samples/s"],
  ];

  // What values up to the largest are best written in: [what to divide by, its name].
  function unit(largest, units) {
    const [, size, name] = units.findLast(([from]) => largest >= from);
    const power = largest > 0 ? Math.floor(Math.log10(largest / size)) : 0;
    return power > 5 || power < -3 ? [size * 10 ** power, `10^${power} ${name}`] : [size, name];
  }

  function timeText(seconds) {
    const [size, name] = unit(seconds, TIMES);
    return `${(seconds / size).toPrecision(3)} ${name}`;
  }

  // Parts of a whole, without decimals: what is rounded away goes to the largest, so that they sum to 100.
  function wholePercents(parts) {
    const rounded = Object.fromEntries(Object.entries(parts).map(([kind, part]) => [kind, Math.round(100 * part)]));
    const largest = Object.keys(parts).reduce((one, other) => (parts[other] > parts[one] ? other : one));
    rounded[largest] += 100 - Object.values(rounded).reduce((sum, one) => sum + one, 0);
    return Object.fromEntries(Object.entries(rounded).map(([kind, part]) => [kind, `${part}\u00a0%`]));
  }

  function figure(theme, paper, options) {
    const B = globalThis.Bokeh;
    const fig = B.Plotting.figure({
      toolbar_location: null,
      tools: [],
      min_border: 4,
      background_fill_alpha: 0,
      border_fill_alpha: 0,
      outline_line_color: null,
      output_backend: paper ? "svg" : "canvas",
      ...(paper ? { width: PAPER, sizing_mode: "fixed" } : { sizing_mode: "stretch_width" }),
      ...options,
    });
    fig.toolbar.logo = null;
    for (const axis of [...fig.xaxes, ...fig.yaxes]) {
      Object.assign(axis, {
        axis_label_text_font: FONT, axis_label_text_font_size: "13px", axis_label_text_font_style: "normal",
        axis_label_text_color: theme.muted, major_label_text_font: FONT, major_label_text_font_size: "12px",
        major_label_text_color: theme.muted, axis_line_color: theme.grid, major_tick_line_color: theme.grid,
        minor_tick_line_color: null, formatter: new B.NumeralTickFormatter({ format: "0,0.[000]" }),
      });
      axis.ticker.desired_num_ticks = 5;
    }
    for (const grid of [...fig.xgrids, ...fig.ygrids]) grid.grid_line_color = theme.grid;
    return fig;
  }

  // Rows of stacked time: {words, seconds, prep, fetch}, parts as fractions.
  function bars(theme, paper, place, per) {
    const B = globalThis.Bokeh;
    const fig = figure(theme, paper, { x_range: new B.Range1d({ start: 0, end: 1 }), y_range: new B.Range1d({ start: 0, end: 1 }) });
    fig.yaxes[0].visible = false;
    for (const grid of fig.ygrids) grid.visible = false;
    const source = new B.ColumnDataSource({ data: { y: [], top: [], words: [] } });
    for (const [kind, color] of Object.entries(KINDS)) {
      const [left, right] = [{ field: `${kind}_from` }, { field: `${kind}_to` }];
      fig.hbar({ y: { field: "y" }, left, right, height: 0.5, source, fill_color: color, line_color: theme.back, line_width: 1 });
      const look = { text_font: FONT, text_font_size: "12px", text_color: "#000000", text_align: "center", text_baseline: "middle" };
      fig.text({ x: { field: `${kind}_mid` }, y: { field: "y" }, text: { field: `${kind}_words` }, source, ...look });
    }
    const words = { text_font: FONT, text_font_size: "13px", text_color: theme.ink, text_baseline: "bottom", y_offset: -3 };
    fig.text({ x: 0, y: { field: "top" }, text: { field: "words" }, source, ...words });
    return {
      fig,
      update(rows) {
        const longest = Math.max(...rows.map((row) => row.seconds));
        const [size, name] = unit(longest, TIMES);
        const readable = (40 / (paper ? PAPER : place.clientWidth || PAPER)) * (longest / size);
        const data = { y: rows.map((_, number) => rows.length - number - 0.7), words: rows.map((row) => row.words) };
        data.top = data.y.map((y) => y + 0.25);
        for (const kind of Object.keys(KINDS)) for (const end of ["from", "to", "mid", "words"]) data[`${kind}_${end}`] = [];
        for (const row of rows) {
          let at = 0;
          const parts = { compute: Math.max(0, 1 - row.prep - row.fetch), prep: row.prep, fetch: row.fetch };
          const shown = wholePercents(parts);
          for (const [kind, part] of Object.entries(parts)) {
            const width = (row.seconds / size) * part;
            data[`${kind}_from`].push(at);
            data[`${kind}_to`].push(at + width);
            data[`${kind}_mid`].push(at + width / 2);
            data[`${kind}_words`].push(width > readable ? shown[kind] : "");
            at += width;
          }
        }
        source.data = data;
        fig.height = ROW * rows.length + 56;
        fig.x_range.end = (longest / size) * 1.02;
        fig.y_range.end = rows.length;
        fig.xaxes[0].axis_label = `${per} (${name})`;
      },
    };
  }

  // A rate over one thing: {x, y, low, high, other, before, points: [{x, y, low, high}, ...], most}.
  function curves(theme, paper, place, label, whole) {
    const B = globalThis.Bokeh;
    const fig = figure(theme, paper, {
      height: paper ? 250 : 300, x_axis_label: label, x_range: new B.Range1d({ start: 0, end: 1 }), y_range: new B.Range1d({ start: 0, end: 1 }),
    });
    fig.xgrids[0].visible = false;
    if (whole) fig.xaxes[0].ticker.min_interval = 1;
    const line = new B.ColumnDataSource({ data: { x: [], y: [], low: [], high: [], other: [], before: [] } });
    const points = new B.ColumnDataSource({ data: { x: [], y: [], low: [], high: [], fill: [] } });
    const most = new B.ColumnDataSource({ data: { x: [], y: [] } });
    const [x, y] = [{ field: "x" }, { field: "y" }];
    fig.varea({ x, y1: { field: "low" }, y2: { field: "high" }, source: line, fill_color: theme.line, fill_alpha: 0.2 });
    fig.line({ x, y, source: most, line_color: KINDS.compute, line_width: 2, line_dash: [2, 4] });
    fig.line({ x, y: { field: "before" }, source: line, line_color: theme.muted, line_width: 2, line_dash: [8, 4, 2, 4] });
    fig.line({ x, y, source: line, line_color: theme.line, line_width: 2.5 });
    fig.line({ x, y: { field: "other" }, source: line, line_color: theme.other, line_width: 2, line_dash: [6, 4] });
    fig.segment({ x0: x, y0: { field: "low" }, x1: x, y1: { field: "high" }, source: points, line_color: theme.ink, line_width: 2 });
    for (const end of ["low", "high"]) {
      fig.scatter({ x, y: { field: end }, source: points, marker: "dash", size: 12, line_color: theme.ink, line_width: 2 });
    }
    fig.scatter({ x, y, source: points, marker: "circle", size: 11, fill_color: { field: "fill" }, line_color: theme.ink, line_width: 2 });
    return {
      fig,
      update(data) {
        const seen = [data.y, data.other, data.high, data.before, data.points.map((point) => point.high)].flat();
        const highest = Math.max(...seen.filter(Number.isFinite));
        const shown = data.most <= 3 * highest ? [data.most, data.most] : [NaN, NaN];
        const top = Math.max(highest, shown[0] || 0);
        const [size, name] = unit(top, RATES);
        const scaled = (values) => values.map((value) => value / size);
        const ends = [data.x[0], data.x[data.x.length - 1], ...data.points.map((point) => point.x)];
        const [first, last] = [Math.min(...ends), Math.max(...ends)];
        const room = (last - first) * 0.03;
        line.data = {
          x: data.x, y: scaled(data.y), low: scaled(data.low), high: scaled(data.high), other: scaled(data.other),
          before: scaled(data.before),
        };
        points.data = {
          x: data.points.map((point) => point.x), y: scaled(data.points.map((point) => point.y)),
          low: scaled(data.points.map((point) => point.low)), high: scaled(data.points.map((point) => point.high)),
          fill: data.points.map((point) => (point.asked ? theme.line : theme.back)),
        };
        most.data = { x: [first - room, last + room], y: scaled(shown) };
        [fig.x_range.start, fig.x_range.end] = [first - room, last + room];
        fig.y_range.end = (top / size) * 1.08;
        fig.yaxes[0].axis_label = name;
      },
    };
  }

  // Both drawings of one chart as one: `make` gets a theme, whether it is for paper, and its place.
  function show(element, dark, make) {
    const drawn = [];
    for (const paper of [false, true]) {
      const place = document.createElement("div");
      place.className = paper ? "paper" : "screen";
      const chart = make(THEMES[dark && !paper ? "dark" : "light"], paper, place);
      element.append(place);
      drawn.push({ chart, place });
    }
    const [screen, paper] = drawn.map(({ chart }) => chart);
    let views = [];
    let later = 0;
    return {
      // While a slider is moved paper can wait.
      update(data) {
        screen.update(data);
        clearTimeout(later);
        if (views.length) later = setTimeout(() => paper.update(data), 200);
        else paper.update(data);
      },
      async begin() {
        views = await Promise.all(drawn.map(({ chart, place }) => globalThis.Bokeh.Plotting.show(chart.fig, place)));
      },
      remove() {
        clearTimeout(later);
        for (const view of views) view.remove();
        element.replaceChildren();
      },
    };
  }

  return { bars, curves, show, timeText, wholePercents };
})();
