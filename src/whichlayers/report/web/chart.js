// A chart of the page: panels of curves with intervals, switched, hovered, walked by keyboard, saved.
"use strict";

const HEIGHT = 250, RIGHT = 12, BOTTOM = 40, TICK_SIZE = 11.5, NAME = 19; // NAME: room for that of the y axis
const FEW = 10; // up to so many trials a point are shown at first
const MOST_BARS = 3; // curves of a panel that all have bars, even if they have none among many

class Chart {
  constructor(figure, data, themes, kept) {
    Object.assign(this, { figure, data, themes });
    const most = Math.max(0, ...data.marks.flatMap((mark) => mark.rows.map((row) => row[5] || 0)));
    // what is switched off, by "dimension/value"; lives on when the page is written anew
    this.state = kept || { off: new Set(data.hidden.map((name) => `beside/${name}`)), trials: data.trials ?? (most > 1 && most <= FEW) };
    const caption = figure.querySelector("figcaption");
    this.controls = html("div", { class: "controls" });
    this.panels = html("div", { class: "panels" });
    this.key = html("ul", { class: "key" });
    figure.prepend(this.controls, this.panels, this.key);
    this.tip = new Tip(figure);
    this.makeControls();
    const files = [["Points as CSV", () => save(`${data.key}.csv`, csv(this.pointRows()), "text/csv")]];
    if (data.marks.some((mark) => mark.trials.length)) {
      files.push(["Trials as CSV", () => save(`${data.key}-trials.csv`, csv(this.trialRows()), "text/csv")]);
    }
    files.push(["SVG", () => save(`${data.key}.svg`, svgText(this.whole()), "image/svg+xml")]);
    files.push(["PNG", () => savePicture(`${data.key}.png`, this.whole())]);
    saves(figure, files);
    if (caption) figure.append(caption);
    this.width = 0;
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(figure);
  }

  makeControls() {
    const { dims, marks } = this.data;
    for (const dim of dims) {
      switches(this.controls, dim.label, dim.values, (value) => !this.state.off.has(`${dim.name}/${value}`), (value, on) => {
        this.state.off[on ? "delete" : "add"](`${dim.name}/${value}`);
        this.draw(true);
      });
    }
    if (marks.some((mark) => mark.trials.length > 1)) {
      switches(this.controls, "show", [this.data.single === "seed" ? "single trials" : "single permutations"], () => this.state.trials, (_, on) => {
        this.state.trials = on;
        this.draw(true);
      });
    }
  }

  visible() {
    const { dims, marks } = this.data;
    return marks.filter((mark) => mark.dims.every((place, i) => place < 0 || !this.state.off.has(`${dims[i].name}/${dims[i].values[place]}`)));
  }

  theme() {
    const name = isDark() ? "dark" : "light";
    return { ...this.themes[name], place: name === "dark" ? 1 : 0 };
  }

  draw(again = false) {
    const width = this.figure.clientWidth - 2 * parseFloat(getComputedStyle(this.figure).paddingLeft);
    if (!(width > 0) || (!again && width === this.width)) return;
    this.width = width;
    this.tip.hide();
    const marks = this.visible(), theme = this.theme();
    const shown = this.data.panels.map((panel, place) => ({ panel, marks: marks.filter((mark) => mark.panel === place) })).filter((one) => one.marks.some((mark) => mark.kind === "line" || mark.kind === "strip"));
    const columns = this.columns(shown.length, width);
    this.cell = Math.min(560, Math.floor((width - 14 * (columns - 1)) / columns));
    this.panels.style.gridTemplateColumns = `repeat(${columns}, minmax(0, ${this.cell}px))`;
    this.columnCount = columns;
    for (const one of shown) one.bars = one.marks.filter((mark) => mark.kind === "line").length <= MOST_BARS;
    const ranges = yRanges(shown, this.state.trials);
    const scales = new Map([...ranges].map(([name, range]) => [name, { range, ticks: niceTicks(...range, 6) }]));
    const words = [...scales.values()].flatMap((scale) => scale.ticks.map((tick) => tick[1]));
    this.left = NAME + Math.ceil(Math.max(20, ...words.map((word) => textWidth(word, TICK_SIZE)))) + 6; // all panels alike
    const focused = [...this.panels.children].indexOf(document.activeElement);
    this.panels.replaceChildren();
    for (const one of shown) this.panels.append(new Drawing(this, one, scales.get(one.panel.group), theme).node);
    if (!shown.length) html("p", { class: "soft" }, this.panels, "Nothing is switched on.");
    if (focused >= 0 && this.panels.children[focused]) this.panels.children[focused].focus();
    this.drawKey(shown.flatMap((one) => one.marks), theme);
  }

  columns(count, width) {
    const least = width < 560 ? 270 : 240;
    const fit = Math.max(1, Math.floor((width + 14) / (least + 14)));
    const most = Math.min(count || 1, fit, 4);
    return Math.ceil(count / Math.ceil(count / most)) || 1; // as even rows as can be
  }

  entries(marks) {
    const found = new Map(), last = (mark) => mark.kind === "published";
    for (const mark of [...marks.filter((one) => !last(one)), ...marks.filter(last)]) {
      const look = [mark.label, last(mark) ? "" : mark.colour[0], mark.marker, mark.dash].join("|");
      // what was published has the colour of its curve: named once for all, in none of them
      const neutral = { colour: [this.themes.light.muted, this.themes.dark.muted], label: `${mark.label} (in the colour of its ${mark.dash ? "curve" : "set"})` };
      if (!found.has(look)) found.set(look, last(mark) ? { ...mark, ...neutral } : mark);
    }
    return [...found.values()];
  }

  drawKey(marks, theme) {
    this.key.replaceChildren();
    for (const mark of this.entries(marks)) {
      const item = html("li", {}, this.key);
      const drawn = svg("svg", { width: 34, height: 14, "aria-hidden": "true" }, item);
      swatch(drawn, mark, theme, 7);
      item.append(mark.label);
    }
    this.key.hidden = this.key.children.length < 2;
  }

  // The panels as they are now in one picture, with their legend.
  whole() {
    const theme = this.theme(), nodes = [...this.panels.querySelectorAll("svg")];
    const height = nodes.length ? Number(nodes[0].getAttribute("height")) : HEIGHT;
    const rows = Math.ceil(nodes.length / this.columnCount), gap = 14;
    const width = this.columnCount * (this.cell + gap) + gap;
    const entries = this.entries(this.visible());
    const each = Math.max(200, ...entries.map((mark) => textWidth(mark.label, 12) + 54));
    const lines = 18 * Math.ceil(entries.length / Math.max(1, Math.floor(width / each)));
    const whole = svg("svg", { xmlns: SVG, width, height: rows * (height + gap) + lines + gap, "font-family": FONT });
    svg("rect", { width: "100%", height: "100%", fill: theme.background }, whole);
    nodes.forEach((node, place) => {
      const copy = node.cloneNode(true);
      copy.setAttribute("x", gap + (place % this.columnCount) * (this.cell + gap));
      copy.setAttribute("y", gap + Math.floor(place / this.columnCount) * (height + gap));
      copy.setAttribute("width", this.cell);
      whole.append(copy);
    });
    entries.forEach((mark, place) => {
      const across = Math.max(1, Math.floor(width / each));
      const x = gap + (place % across) * each, y = rows * (height + gap) + gap + 18 * Math.floor(place / across);
      const group = svg("g", { transform: `translate(${x} ${y - 7})` }, whole);
      swatch(group, mark, theme, 7);
      svg("text", { x: 40, y: 11, "font-size": 12, fill: theme.ink }, group, mark.label);
    });
    return whole;
  }

  about(mark) {
    return this.data.dims.map((dim, i) => (mark.dims[i] < 0 ? "" : dim.values[mark.dims[i]]));
  }
  pointRows() {
    const head = ["panel", "quantity", ...this.data.dims.map((dim) => dim.label), "curve", this.data.x, "mean", "low", "high", "sd", "n"];
    return [head, ...this.data.marks.flatMap((mark) => mark.rows.map((row) => [...this.told(mark), ...row]))];
  }
  trialRows() {
    const head = ["panel", "quantity", ...this.data.dims.map((dim) => dim.label), "curve", this.data.x, this.data.single, "value"];
    return [head, ...this.data.marks.flatMap((mark) => mark.trials.map((row) => [...this.told(mark), ...row]))];
  }
  told(mark) {
    const panel = this.data.panels[mark.panel];
    return [[panel.title, panel.sub].filter(Boolean).join(", "), panel.y, ...this.about(mark), mark.label];
  }
}

// One range a task, from all that is shown of it. Very wide intervals are cut off: two trials have one of 12.7
// standard errors either way, which would flatten the curve.
function yRanges(shown, withTrials) {
  const groups = new Map();
  for (const { panel, marks, bars } of shown) {
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
    const bottom = least(values), top = most(values), room = Math.max(top - bottom, 0.02);
    const low = Math.max(Math.min(bottom, least(lows)), bottom - 0.75 * room, range[0] ?? -Infinity);
    const high = Math.min(Math.max(top, most(highs)), top + 0.75 * room, range[1] ?? Infinity);
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
