// Draws the charts of a report. Their data is the JSON in the page; src/report/charts.rs says what is in it.
"use strict";

(() => {
  // Until here nothing has room for charts: readers without JavaScript see no empty frames.
  document.documentElement.dataset.script = "runs";
  const { roads = [], charts = [] } = JSON.parse(document.getElementById("data").textContent);
  const COLOURS = 10;
  const FONT = 12;
  // Canvases take a width of their own when printed: half of A4 between its margins, and all of it.
  const PRINTED = { half: 330, whole: 680 };

  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (road) => style(`--road-${road % COLOURS}`);
  // Roads that have the colours of others are dashed.
  const dash = (road) => (road < COLOURS ? [] : [6, 3]);
  const font = () => `${FONT}px ${style("--figures")}`;
  const pixels = (length) => length * uPlot.pxRatio;

  // ---- Figures, as figures.rs writes them.

  const SCALES = {
    operations_per_second: [[1, "/s"], [1e3, "k/s"], [1e6, "M/s"], [1e9, "G/s"]],
    bits_per_second: [[1, "b/s"], [1e3, "kb/s"], [1e6, "Mb/s"], [1e9, "Gb/s"], [1e12, "Tb/s"]],
    nanoseconds: [[1, "ns"], [1e3, "µs"], [1e6, "ms"], [1e9, "s"]],
    processor_share: [[0.01, "%"]],
    bytes: [[1, "B"], [1024, "KiB"], [1024 ** 2, "MiB"], [1024 ** 3, "GiB"], [1024 ** 4, "TiB"]],
  };

  function show(unit, value, digits = 3) {
    const scales = SCALES[unit];
    const [divisor, suffix] = scales.findLast(([divisor]) => Math.abs(value) >= divisor * 0.9995) ?? scales[0];
    return `${Number((value / divisor).toPrecision(digits))}\u00a0${suffix}`;
  }

  const percent = (rarity) => `${Number((100 - 100 / rarity).toPrecision(Math.max(2, Math.ceil(Math.log10(rarity)) + 1)))}\u00a0%`;
  const thousands = (value) => `${value}`.replace(/\B(?=(\d{3})+$)/g, "\u202f");
  const lengthOf = (value) => (value < 10_000 && value % 1024 ? `${thousands(value)}\u00a0B` : show("bytes", value));
  const parameter = (name, value) => (name === "bytes" ? lengthOf(value) : thousands(value));

  // ---- Parts of charts.

  // Powers of two as far apart as there is room.
  function binarySplits(low, high, height) {
    const room = Math.log2(high / low) / (height / 26);
    const step = [1, 2, 5, 10].find((bits) => bits >= room) ?? 20;
    const splits = [];
    for (let bits = Math.ceil(Math.log2(low) / step) * step; 2 ** bits <= high; bits += step) splits.push(2 ** bits);
    return splits;
  }

  // 1, 2 and 5 of each power of ten where there is room, else the powers.
  function logSplits(low, high, height) {
    const powers = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) powers.push(10 ** power);
    const steps = height / Math.log10(high / low) < 72 ? [1] : [1, 2, 5];
    return powers.flatMap((power) => steps.map((step) => step * power)).filter((at) => at >= low * 0.999 && at <= high * 1.001);
  }

  function axis(options) {
    const line = { stroke: () => style("--grid"), width: 1 };
    return {
      stroke: () => style("--quiet"), font: font(), gap: 6, grid: line, ticks: { ...line, size: 4 }, filter: (_, splits) => splits, ...options,
    };
  }

  function valueAxis(unit, chart) {
    const place = unit === "bytes" ? binarySplits : logSplits;
    const splits = (plot) => place(chart.low, chart.high, plot.bbox.height / uPlot.pxRatio);
    return axis({ scale: "y", size: 64, splits, values: (_, at) => at.map((value) => show(unit, value)) });
  }

  // Values at their places, without those that would touch their right neighbour.
  function spaced(plot, at, text, room) {
    let right = Infinity;
    const told = at.map(() => "");
    for (let i = at.length - 1; i >= 0; i--) {
      const left = plot.valToPos(at[i], "x");
      if (right - left < room) continue;
      told[i] = text(at[i]);
      right = left;
    }
    return told;
  }

  const xAxis = (options) => axis({ scale: "x", size: 34, grid: { show: false }, ...options });
  const logScale = (low, high) => ({ distr: 3, range: [low, high] });

  // Names beside the ends of lines, moved apart where they would cover each other.
  function nameLines(plot, ends) {
    const { ctx, bbox } = plot;
    const height = pixels(FONT + 2);
    const at = ends.map(({ road, x, y }) => ({ road, x: plot.valToPos(x, "x", true), y: plot.valToPos(y, "y", true) }));
    at.sort((a, b) => a.y - b.y);
    for (let i = 1; i < at.length; i++) at[i].y = Math.max(at[i].y, at[i - 1].y + height);
    const over = at.length ? Math.max(0, at.at(-1).y - (bbox.top + bbox.height)) : 0;
    for (let i = at.length - 1, limit = Infinity; i >= 0 && over > 0; i--) {
      at[i].y = Math.min(at[i].y, i === at.length - 1 ? at[i].y - over : limit - height);
      limit = at[i].y;
    }
    ctx.save();
    ctx.font = `600 ${pixels(FONT)}px ${style("--figures")}`;
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    ctx.lineWidth = pixels(4);
    ctx.lineJoin = "round";
    ctx.strokeStyle = style("--paper");
    for (const { road, x, y } of at) {
      ctx.strokeText(roads[road], x + pixels(7), y);
      ctx.fillStyle = colour(road);
      ctx.fillText(roads[road], x + pixels(7), y);
    }
    ctx.restore();
  }

  function nameWidth(present) {
    const ctx = document.createElement("canvas").getContext("2d");
    ctx.font = `600 ${FONT}px ${style("--figures")}`;
    return 12 + Math.max(...present.map((road) => ctx.measureText(roads[road]).width));
  }

  function dot(ctx, x, y, radius, fill) {
    ctx.beginPath();
    ctx.arc(x, y, radius, 0, 2 * Math.PI);
    ctx.fillStyle = fill;
    ctx.fill();
  }

  const lineOf = (road) => ({
    stroke: () => colour(road), width: road === 0 ? 2 : 1.75, dash: dash(road), spanGaps: true, pxAlign: 0, points: { show: false },
  });

  // What all charts have in common. `read` tells what is under the cursor.
  function options(element, rest, read) {
    const readout = element.nextElementSibling;
    const told = (plot) => {
      const inside = plot.cursor.left >= 0 && plot.cursor.idx != null;
      readout.textContent = (inside && read(plot)) || "\u00a0";
    };
    return {
      legend: { show: false },
      ...rest,
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false }, ...rest.cursor },
      hooks: { ...rest.hooks, setCursor: [told] },
    };
  }

  // ---- The kinds of charts: each returns uPlot's options and data.

  const KINDS = {
    // Percentiles: one in so many requests is slower.
    percentiles(element, chart) {
      const { curves, low, high } = chart;
      const last = Math.max(20, ...curves.flatMap(({ points }) => points.map(([rarity]) => rarity)));
      const splits = [2, 10, 100, 1e3, 1e4, 1e5].filter((rarity) => rarity <= last * 1.001);
      const data = uPlot.join(curves.map(({ points }) => [points.map((p) => p[0]), points.map((p) => p[1])]));
      const draw = (plot) => {
        curves.filter((curve) => !curve.merged).forEach(({ road, points }) => points.forEach(([x, y]) =>
          dot(plot.ctx, plot.valToPos(x, "x", true), plot.valToPos(y, "y", true), pixels(2.5), colour(road))));
        nameLines(plot, curves.map(({ road, points }) => ({ road, x: points.at(-1)[0], y: points.at(-1)[1] })));
      };
      const read = (plot) => {
        const rarity = plot.posToVal(plot.cursor.left, "x");
        const at = curves.map(({ road, points }) => {
          const near = points.findLast(([x]) => x <= rarity * 1.03);
          return near && rarity <= points.at(-1)[0] * 1.05 ? `${roads[road]} ${show("nanoseconds", near[1])}` : null;
        });
        return [percent(rarity), ...at.filter(Boolean)].join(" · ");
      };
      return [options(element, {
        padding: [8, nameWidth(curves.map(({ road }) => road)), 0, 0],
        scales: { x: { time: false, ...logScale(2, last) }, y: logScale(low, high) },
        axes: [xAxis({ splits: () => splits, values: (plot, at) => spaced(plot, at, percent, 48) }), valueAxis("nanoseconds", chart)],
        series: [{}, ...curves.map(({ road }) => lineOf(road))],
        hooks: { draw: [draw] },
      }, read), data];
    },

    // Each request as a point.
    requests(element, chart) {
      const { road, at_us: distances, took_ns: took, seconds } = chart;
      let now = 0;
      const at = distances.map((distance) => (now += distance) / 1e6);
      const points = (plot, series, first, last) => {
        const { ctx, bbox } = plot;
        const size = pixels(1.5);
        ctx.save();
        ctx.beginPath();
        ctx.rect(bbox.left, bbox.top - size, bbox.width, bbox.height + 2 * size);
        ctx.clip();
        ctx.fillStyle = colour(road);
        // The more points there are about a place, the paler is each: one alone is seen, and a crowd shows where it is densest.
        const cell = pixels(5);
        const columns = Math.ceil(bbox.width / cell) + 2;
        const crowd = new Map();
        const places = [];
        for (let i = first; i <= last; i++) {
          const [x, y] = [plot.valToPos(at[i], "x", true), plot.valToPos(took[i], "y", true)];
          const key = Math.round(y / cell) * columns + Math.round((x - bbox.left) / cell);
          crowd.set(key, (crowd.get(key) ?? 0) + 1);
          places.push([x, y, key]);
        }
        const near = [-1, 0, 1].flatMap((row) => [-1, 0, 1].map((column) => row * columns + column));
        const around = new Map();
        for (const key of crowd.keys()) around.set(key, near.reduce((sum, by) => sum + (crowd.get(key + by) ?? 0), 0));
        for (const [x, y, key] of places) {
          ctx.globalAlpha = Math.max(0.14, Math.max(1, around.get(key) / 5) ** -0.5);
          ctx.fillRect(x - size / 2, y - size / 2, size, size);
        }
        ctx.restore();
        return null;
      };
      const read = (plot) => {
        const [from, to] = [-4, 4].map((by) => plot.valToIdx(plot.posToVal(plot.cursor.left + by, "x")));
        let slowest = from;
        for (let i = from; i <= to; i++) if (took[i] > took[slowest]) slowest = i;
        return `slowest here: ${show("nanoseconds", took[slowest])}, sent at ${at[slowest].toFixed(3)} s`;
      };
      return [options(element, {
        padding: [6, 12, 0, 0],
        cursor: { drag: { x: true, y: false } },
        scales: { x: { time: false, range: (_, low, high) => (low === at[0] && high === at.at(-1) ? [0, seconds] : [low, high]) },
          y: logScale(chart.low, chart.high) },
        axes: [xAxis({ values: (_, splits) => splits.map((value) => `${value}\u00a0s`), filter: undefined }), valueAxis("nanoseconds", chart)],
        series: [{}, { paths: points, points: { show: false } }],
      }, read), [at, took]];
    },

    // Figures against a parameter, with bars from the smallest to the largest trial.
    sweep(element, chart) {
      const { unit, parameter: name, lines, low, high } = chart;
      const values = [...new Set(lines.flatMap(({ points }) => points.map(([x]) => x)))].sort((a, b) => a - b);
      // Zero has no place on a logarithmic axis: values stand at equal distances then.
      const even = values[0] === 0;
      const place = (value) => (even ? values.indexOf(value) : value);
      const at = (found) => (even ? values[found] : found);
      const data = uPlot.join(lines.map(({ points }) => [points.map((p) => place(p[0])), points.map((p) => p[1])]));
      const draw = (plot) => {
        const { ctx } = plot;
        lines.forEach(({ road, points }) => points.forEach(([x, median, min, max]) => {
          const left = plot.valToPos(place(x), "x", true);
          ctx.strokeStyle = colour(road);
          ctx.lineWidth = pixels(1.5);
          ctx.beginPath();
          ctx.moveTo(left, plot.valToPos(min, "y", true));
          ctx.lineTo(left, plot.valToPos(max, "y", true));
          ctx.stroke();
          dot(ctx, left, plot.valToPos(median, "y", true), pixels(3), colour(road));
        }));
        nameLines(plot, lines.map(({ road, points }) => ({ road, x: place(points.at(-1)[0]), y: points.at(-1)[1] })));
      };
      const read = (plot) => {
        const x = at(data[0][plot.cursor.idx]);
        const told = lines.map(({ road, points }) => {
          const found = points.find((point) => point[0] === x);
          return found && `${roads[road]} ${show(unit, found[1])} (${show(unit, found[2])} – ${show(unit, found[3])})`;
        });
        const what = name === "bytes" ? parameter(name, x) : `${parameter(name, x)} ${name}`;
        return [what, ...told.filter(Boolean)].join(" · ");
      };
      const along = even ? { range: [-0.15, values.length - 0.95] } : logScale(values[0] / 1.15, values.at(-1) * 1.05);
      return [options(element, {
        padding: [8, nameWidth(lines.map(({ road }) => road)), 0, 0],
        scales: { x: { time: false, ...along }, y: logScale(low, high) },
        axes: [xAxis({ splits: () => values.map(place), values: (plot, all) => spaced(plot, all, (value) => parameter(name, at(value)), 40) }), valueAxis(unit, chart)],
        series: [{}, ...lines.map(({ road }) => lineOf(road))],
        hooks: { draw: [draw] },
      }, read), data];
    },
  };

  // ---- Drawing, and drawing again when the page changes.

  const drawn = new Map();
  let printing = false;

  function size(element) {
    const { clientWidth: width, clientHeight: height } = element;
    if (!printing) return { width, height };
    const whole = element.closest(".figures.one") !== null;
    const strip = element.closest(".strips") !== null;
    return { width: whole ? PRINTED.whole : PRINTED.half, height: whole ? 260 : strip ? 140 : 210 };
  }

  function draw(element) {
    drawn.get(element)?.destroy();
    drawn.delete(element);
    // A folded chart has no width until it is unfolded.
    if (element.clientWidth === 0) return;
    const chart = charts[element.dataset.chart];
    const [settings, data] = KINDS[chart.kind](element, chart);
    drawn.set(element, new uPlot({ ...settings, ...size(element) }, data, element));
  }

  const elements = [...document.querySelectorAll(".chart")];
  const drawAll = () => elements.forEach(draw);
  const print = (begins) => {
    printing = begins;
    document.documentElement.classList.toggle("paper", begins);
    // Why trials do not count belongs on paper too.
    for (const details of document.querySelectorAll("#trials details")) details.open = begins;
    drawAll();
  };

  const observer = new ResizeObserver((entries) => entries.forEach(({ target, contentRect }) => {
    const plot = drawn.get(target);
    if (printing || (plot && plot.width === target.clientWidth)) return;
    if (plot && contentRect.width > 0) plot.setSize(size(target));
    else draw(target);
  }));
  drawAll();
  elements.forEach((element) => observer.observe(element));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
})();
