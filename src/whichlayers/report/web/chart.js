// A chart: panels of curves with intervals, with controls, tooltips, keyboard navigation and downloads.
"use strict";

const HEIGHT = 250, RIGHT = 12, BOTTOM = 40, TICK_SIZE = 11.5, Y_LABEL = 19; // Y_LABEL: width of the label of the y axis
const MAX_SINGLE_TRIALS = 10; // points with at most this many trials initially show each of them
const MAX_CURVES_WITH_BARS = 3; // with at most this many visible curves in a panel, all of them have error bars

class Chart {
  constructor(figure, data, themes, savedState) {
    Object.assign(this, { figure, data, themes });
    const most = Math.max(0, ...data.marks.flatMap((mark) => mark.rows.map((row) => row[5] || 0)));
    // what is switched off, as "dimension/value"; kept when the page is updated
    this.state = savedState || { off: new Set(data.hidden.map((name) => `reference/${name}`)), trials: data.trials ?? (most > 1 && most <= MAX_SINGLE_TRIALS) };
    const caption = figure.querySelector("figcaption");
    this.controls = html("div", { class: "controls" });
    this.panels = html("div", { class: "panels" });
    this.legend = html("ul", { class: "legend" });
    figure.prepend(this.controls, this.panels, this.legend);
    this.tooltip = new Tooltip(figure);
    this.makeControls();
    const files = [["Points as CSV", () => download(`${data.key}.csv`, csv(this.pointRows()), "text/csv")]];
    if (data.marks.some((mark) => mark.trials.length)) {
      files.push(["Trials as CSV", () => download(`${data.key}-trials.csv`, csv(this.trialRows()), "text/csv")]);
    }
    files.push(["SVG", () => download(`${data.key}.svg`, svgText(this.exportSvg()), "image/svg+xml")]);
    files.push(["PNG", () => downloadPng(`${data.key}.png`, this.exportSvg())]);
    downloadButtons(figure, files);
    if (caption) figure.append(caption);
    this.width = 0;
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(figure);
  }

  makeControls() {
    const { dims, marks } = this.data;
    for (const dim of dims) {
      checkboxes(this.controls, dim.label, dim.values, (value) => !this.state.off.has(`${dim.name}/${value}`), (value, on) => {
        this.state.off[on ? "delete" : "add"](`${dim.name}/${value}`);
        this.draw(true);
      });
    }
    if (marks.some((mark) => mark.trials.length > 1)) {
      checkboxes(this.controls, "show", [this.data.single === "seed" ? "single trials" : "single permutations"], () => this.state.trials, (_, on) => {
        this.state.trials = on;
        this.draw(true);
      });
    }
  }

  visible() {
    const { dims, marks } = this.data;
    return marks.filter((mark) => mark.dims.every((index, i) => index < 0 || !this.state.off.has(`${dims[i].name}/${dims[i].values[index]}`)));
  }

  theme() {
    const name = isDark() ? "dark" : "light";
    return { ...this.themes[name], colorIndex: name === "dark" ? 1 : 0 };
  }

  draw(again = false) {
    const width = this.figure.clientWidth - 2 * parseFloat(getComputedStyle(this.figure).paddingLeft);
    if (!(width > 0) || (!again && width === this.width)) return;
    this.width = width;
    this.tooltip.hide();
    const marks = this.visible(), theme = this.theme();
    const panels = this.data.panels.map((panel, index) => ({ panel, marks: marks.filter((mark) => mark.panel === index) })).filter((one) => one.marks.some((mark) => mark.kind === "line" || mark.kind === "strip"));
    const columns = this.columns(panels.length, width);
    this.cell = Math.min(560, Math.floor((width - 14 * (columns - 1)) / columns));
    this.panels.style.gridTemplateColumns = `repeat(${columns}, minmax(0, ${this.cell}px))`;
    this.columnCount = columns;
    for (const one of panels) one.bars = one.marks.filter((mark) => mark.kind === "line").length <= MAX_CURVES_WITH_BARS;
    const ranges = yRanges(panels, this.state.trials);
    const scales = new Map([...ranges].map(([name, range]) => [name, { range, ticks: niceTicks(...range, 6) }]));
    const labels = [...scales.values()].flatMap((scale) => scale.ticks.map((tick) => tick[1]));
    this.left = Y_LABEL + Math.ceil(Math.max(20, ...labels.map((label) => textWidth(label, TICK_SIZE)))) + 6; // the same for all panels
    const focused = [...this.panels.children].indexOf(document.activeElement);
    this.panels.replaceChildren();
    for (const one of panels) this.panels.append(new Drawing(this, one, scales.get(one.panel.group), theme).node);
    if (!panels.length) html("p", { class: "soft" }, this.panels, "Nothing selected.");
    if (focused >= 0 && this.panels.children[focused]) this.panels.children[focused].focus();
    this.drawLegend(panels.flatMap((one) => one.marks), theme);
  }

  columns(count, width) {
    const least = width < 560 ? 270 : 240;
    const fit = Math.max(1, Math.floor((width + 14) / (least + 14)));
    const most = Math.min(count || 1, fit, 4);
    return Math.ceil(count / Math.ceil(count / most)) || 1; // rows of similar length
  }

  entries(marks) {
    const found = new Map(), last = (mark) => mark.kind === "published";
    for (const mark of [...marks.filter((one) => !last(one)), ...marks.filter(last)]) {
      const styleKey = [mark.label, last(mark) ? "" : mark.color[0], mark.marker, mark.dash].join("|");
      // published results have the color of their curve: one legend entry for all of them, in a neutral color
      const neutral = { color: [this.themes.light.muted, this.themes.dark.muted], label: `${mark.label} (same color as its ${mark.dash ? "curve" : "set"})` };
      if (!found.has(styleKey)) found.set(styleKey, last(mark) ? { ...mark, ...neutral } : mark);
    }
    return [...found.values()];
  }

  drawLegend(marks, theme) {
    this.legend.replaceChildren();
    for (const mark of this.entries(marks)) {
      const item = html("li", {}, this.legend);
      const drawn = svg("svg", { width: 34, height: 14, "aria-hidden": "true" }, item);
      swatch(drawn, mark, theme, 7);
      item.append(mark.label);
    }
    this.legend.hidden = this.legend.children.length < 2;
  }

  // All panels and the legend in one SVG.
  exportSvg() {
    const theme = this.theme(), nodes = [...this.panels.querySelectorAll("svg")];
    const height = nodes.length ? Number(nodes[0].getAttribute("height")) : HEIGHT;
    const rows = Math.ceil(nodes.length / this.columnCount), gap = 14;
    const width = this.columnCount * (this.cell + gap) + gap;
    const entries = this.entries(this.visible());
    const each = Math.max(200, ...entries.map((mark) => textWidth(mark.label, 12) + 54));
    const lines = 18 * Math.ceil(entries.length / Math.max(1, Math.floor(width / each)));
    const image = svg("svg", { xmlns: SVG, width, height: rows * (height + gap) + lines + gap, "font-family": FONT });
    svg("rect", { width: "100%", height: "100%", fill: theme.background }, image);
    nodes.forEach((node, index) => {
      const copy = node.cloneNode(true);
      copy.setAttribute("x", gap + (index % this.columnCount) * (this.cell + gap));
      copy.setAttribute("y", gap + Math.floor(index / this.columnCount) * (height + gap));
      copy.setAttribute("width", this.cell);
      image.append(copy);
    });
    entries.forEach((mark, index) => {
      const across = Math.max(1, Math.floor(width / each));
      const x = gap + (index % across) * each, y = rows * (height + gap) + gap + 18 * Math.floor(index / across);
      const group = svg("g", { transform: `translate(${x} ${y - 7})` }, image);
      swatch(group, mark, theme, 7);
      svg("text", { x: 40, y: 11, "font-size": 12, fill: theme.ink }, group, mark.label);
    });
    return image;
  }

  dimensionValues(mark) {
    return this.data.dims.map((dim, i) => (mark.dims[i] < 0 ? "" : dim.values[mark.dims[i]]));
  }
  pointRows() {
    const head = ["panel", "quantity", ...this.data.dims.map((dim) => dim.label), "curve", this.data.x, "mean", "low", "high", "sd", "n"];
    return [head, ...this.data.marks.flatMap((mark) => mark.rows.map((row) => [...this.rowPrefix(mark), ...row]))];
  }
  trialRows() {
    const head = ["panel", "quantity", ...this.data.dims.map((dim) => dim.label), "curve", this.data.x, this.data.single, "value"];
    return [head, ...this.data.marks.flatMap((mark) => mark.trials.map((row) => [...this.rowPrefix(mark), ...row]))];
  }
  rowPrefix(mark) {
    const panel = this.data.panels[mark.panel];
    return [[panel.title, panel.sub].filter(Boolean).join(", "), panel.quantity, ...this.dimensionValues(mark), mark.label];
  }
}

// One y range per task. Very wide intervals are clipped: the interval of two trials spans 12.7 standard errors on
// either side, which would flatten the curve.
function yRanges(panels, withTrials) {
  const groups = new Map();
  for (const { panel, marks, bars } of panels) {
    const group = groups.get(panel.group) || { values: [], lows: [], highs: [], range: panel.range, zero: panel.zero };
    groups.set(panel.group, group);
    for (const mark of marks) {
      for (const [, mean, low, high] of mark.rows) {
        if (mean === null) continue;
        const drawn = bars || mark.bars;
        group.values.push(mean);
        group.lows.push((drawn ? low : null) ?? mean);
        group.highs.push((drawn ? high : null) ?? mean);
      }
      if (withTrials || mark.kind === "strip") for (const trial of mark.trials) if (trial[2] !== null) group.values.push(trial[2]);
      for (const [height] of mark.outline) {
        group.lows.push(height);
        group.highs.push(height);
      }
    }
  }
  const least = (list) => list.reduce((a, b) => Math.min(a, b), Infinity), most = (list) => list.reduce((a, b) => Math.max(a, b), -Infinity);
  const ranges = new Map();
  for (const [name, { values, lows, highs, range, zero }] of groups) {
    const bottom = least(values), top = most(values), extent = Math.max(top - bottom, 0.02);
    const low = Math.max(Math.min(bottom, least(lows)), bottom - 0.75 * extent, range[0] ?? -Infinity);
    const high = Math.min(Math.max(top, most(highs)), top + 0.75 * extent, range[1] ?? Infinity);
    const margin = 0.05 * Math.max(high - low, 0.02);
    ranges.set(name, [zero ? Math.min(0, low) : low - margin, high + margin]);
  }
  return ranges;
}

function niceTicks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((part) => part * power).find((one) => one >= rough);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step / 1e6; tick += step) ticks.push(tick);
  const digits = Math.max(0, -Math.floor(Math.log10(step)) + (step / power === 2.5 ? 1 : 0));
  return ticks.map((tick) => [tick, minus((Math.abs(tick) < step / 1e6 ? 0 : tick).toFixed(Math.min(digits, 4)))]);
}
