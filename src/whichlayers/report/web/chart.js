// A chart: panels of curves with intervals, with controls, tooltips, keyboard navigation and downloads.
"use strict";

const MIN_HEIGHT = 250, MAX_HEIGHT = 400, RIGHT = 12, BOTTOM = 40, TICK_SIZE = 12, Y_LABEL = 19; // Y_LABEL: width of the label of the y axis

class Chart {
  constructor(figure, data, themes, savedState) {
    Object.assign(this, { figure, data, themes });
    // what is switched off, as "dimension/value"; kept when the page is updated
    this.state = savedState || { off: new Set(data.hidden.map((name) => `reference/${name}`)), trials: data.trials };
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
    // with one trial a point, the curve has the same values
    if (marks.some((mark) => new Set(mark.trials.map((trial) => trial[0])).size < mark.trials.length)) {
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
    this.cell = Math.floor((width - 14 * (columns - 1)) / columns);
    const longest = Math.max(0, ...panels.map((one) => textWidth(one.panel.y, TICK_SIZE))); // the rotated label of the y axis fits
    this.height = Math.round(Math.max(MIN_HEIGHT, Math.min(MAX_HEIGHT, 0.5 * this.cell), longest + BOTTOM + 44));
    this.panels.style.gridTemplateColumns = `repeat(${columns}, minmax(0, ${this.cell}px))`;
    this.columnCount = columns;
    this.shown = new Set(panels.flatMap((one) => one.marks));
    for (const one of panels) {
      one.bars = one.marks.filter((mark) => mark.kind === "line").length <= this.data.maxBars;
      one.scale = one.panel.scales[(this.state.trials ? 1 : 0) + (marks.some((mark) => mark.kind === "published") ? 2 : 0)] || one.panel.scales[0];
    }
    const labels = panels.flatMap((one) => one.scale.ticks.map((tick) => tick[1]));
    this.left = Y_LABEL + Math.ceil(Math.max(20, ...labels.map((label) => textWidth(label, TICK_SIZE)))) + 6; // the same for all panels
    const focused = [...this.panels.children].indexOf(document.activeElement);
    this.panels.replaceChildren();
    for (const one of panels) this.panels.append(new Drawing(this, one, theme).node);
    if (!panels.length) html("p", { class: "soft" }, this.panels, "Nothing selected.");
    if (focused >= 0 && this.panels.children[focused]) this.panels.children[focused].focus();
    this.drawLegend(theme);
  }

  columns(count, width) {
    const least = width < 560 ? 270 : 240;
    const fit = Math.max(1, Math.floor((width + 14) / (least + 14)));
    const most = Math.min(count || 1, fit, 4);
    return Math.ceil(count / Math.ceil(count / most)) || 1; // rows of similar length
  }

  entries() {
    return this.data.legend.filter((entry) => entry.marks.some((index) => this.shown.has(this.data.marks[index])));
  }

  drawLegend(theme) {
    this.legend.replaceChildren();
    for (const mark of this.entries()) {
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
    const height = nodes.length ? Number(nodes[0].getAttribute("height")) : MIN_HEIGHT;
    const rows = Math.ceil(nodes.length / this.columnCount), gap = 14;
    const width = this.columnCount * (this.cell + gap) + gap;
    const entries = this.entries();
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
    return [head, ...this.data.marks.flatMap((mark) => mark.trials.map((row) => [...this.rowPrefix(mark), ...row.slice(0, 3)]))];
  }
  rowPrefix(mark) {
    const panel = this.data.panels[mark.panel];
    return [[panel.title, panel.sub].filter(Boolean).join(", "), panel.quantity, ...this.dimensionValues(mark), mark.label];
  }
}
