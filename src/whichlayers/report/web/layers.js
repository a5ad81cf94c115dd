// Layer diagrams: one column per task and training size, each layer colored by the effect of its pretrained weights.
"use strict";

const ROW_HEIGHT = 27, LABEL_WIDTH = 72, HALF_WIDTH = 84; // pixels: a layer, the labels on the left, the narrowest box with room for ±

class LayerDiagrams {
  constructor(figure, diagrams, themes, savedState) {
    Object.assign(this, { figure, diagrams, themes });
    this.state = savedState || { source: 0, model: 0, variant: 0, off: new Set() };
    this.names = Object.fromEntries(["source", "model", "variant"].map((name) => [name, [...new Set(diagrams.map((one) => one[name]))]]));
    const caption = figure.querySelector("figcaption");
    this.controls = html("div", { class: "controls" });
    this.container = html("div", { class: "panels" });
    this.legend = html("p", { class: "scale" });
    this.note = html("p", { class: "scale soft" }, null, "Too narrow for \u00b1: tap or point at a box for its interval.");
    figure.prepend(this.controls, this.container, this.note, this.legend);
    this.tooltip = new Tooltip(figure);
    downloadButtons(figure, [
      ["Layers as CSV", () => download("layers.csv", csv(this.rows()), "text/csv")],
      ["SVG", () => download("layers.svg", svgText(this.exportSvg()), "image/svg+xml")],
      ["PNG", () => downloadPng("layers.png", this.exportSvg())],
    ]);
    this.caption = caption || html("figcaption", {});
    figure.append(this.caption);
    this.makeControls();
    new ResizeObserver(() => this.draw()).observe(figure);
  }

  diagram() {
    const matches = (one) => ["source", "model", "variant"].filter((name) => one[name] === this.names[name][this.state[name]]).length;
    return [...this.diagrams].sort((a, b) => matches(b) - matches(a))[0];
  }

  makeControls() {
    this.controls.replaceChildren();
    for (const name of ["source", "model", "variant"]) {
      const values = this.names[name];
      if (values.length > 1) dropdown(this.controls, name === "source" ? "effect" : name, values.map((value) => value || "default"), this.state[name], (index) => {
        this.state[name] = index;
        this.draw(true);
      });
    }
    for (const [name, label] of [["task", "task"], ["size", "examples"]]) {
      const values = [...new Set(this.diagrams.flatMap((one) => one.columns.map((column) => column[name])))];
      if (values.length < 2) continue;
      checkboxes(this.controls, label, values, (value) => !this.state.off.has(`${name}/${value}`), (value, on) => {
        this.state.off[on ? "delete" : "add"](`${name}/${value}`);
        this.draw(true);
      });
    }
  }

  columns() {
    return this.diagram().columns.filter((column) => !this.state.off.has(`task/${column.task}`) && !this.state.off.has(`size/${column.size}`));
  }

  draw(again = false) {
    const width = this.figure.clientWidth - 2 * parseFloat(getComputedStyle(this.figure).paddingLeft);
    if (!(width > 0) || (!again && width === this.width)) return;
    this.width = width;
    this.tooltip.hide();
    const diagram = this.diagram();
    (this.caption.querySelector("span") || this.caption).textContent = diagram.caption;
    this.container.replaceChildren();
    const rows = this.wrap(width), cell = Math.min(...rows.map((row) => this.cellWidth(row, diagram, width))); // the same in all rows
    for (const row of rows) this.container.append(this.drawRow(row, diagram, cell));
    this.note.hidden = !rows.length || !diagram.tested || cell >= HALF_WIDTH;
    if (!this.container.children.length) html("p", { class: "soft" }, this.container, "Nothing selected.");
    this.drawLegend(diagram);
  }

  // The colors with their values; nothing if no box has a color.
  drawLegend(diagram) {
    this.legend.replaceChildren();
    this.legend.hidden = !diagram.legend.length;
    if (this.legend.hidden) return;
    html("span", {}, this.legend, `color: ${diagram.legendTitle}`);
    this.legend.append(this.scaleSvg(diagram));
  }

  scaleSvg(diagram) {
    const cell = 52, theme = this.themes[isDark() ? "dark" : "light"];
    const node = svg("svg", { width: cell * diagram.legend.length, height: 22, role: "img", "aria-label": diagram.legend.map(([label]) => label).join(", "), "font-family": FONT, "font-size": 12 });
    diagram.legend.forEach(([label, colors], index) => {
      svg("rect", { x: index * cell, y: 0, width: cell, height: 22, fill: colors[isDark() ? 1 : 0][0], stroke: theme.muted, "stroke-width": 0.5 }, node);
      svg("text", { x: (index + 0.5) * cell, y: 15.5, "text-anchor": "middle", fill: colors[isDark() ? 1 : 0][1] }, node, label);
    });
    return node;
  }

  // Columns of a task stay together if possible; a box is never narrower than its number.
  wrap(width) {
    const columns = this.columns(), least = 46, gap = this.diagram().gap * least, rows = [];
    let used = Infinity;
    for (const [index, column] of columns.entries()) {
      const first = index === 0 || columns[index - 1].task !== column.task;
      const group = first ? columns.filter((one) => one.task === column.task).length * least + gap : least;
      if (used + (first ? Math.min(group, width - LABEL_WIDTH) : least) > width) {
        rows.push([]);
        used = LABEL_WIDTH;
      }
      rows.at(-1).push(column);
      used += least + (first ? gap : 0);
    }
    return rows;
  }

  // The width of a row of columns, in boxes.
  units(columns, diagram) {
    return columns.length + diagram.gap * new Set(columns.map((column) => column.task)).size;
  }

  cellWidth(columns, diagram, width) {
    return Math.max(42, Math.min(170, (width - LABEL_WIDTH) / this.units(columns, diagram)));
  }

  drawRow(columns, diagram, cell) {
    const dark = isDark(), theme = this.themes[dark ? "dark" : "light"], tasks = [...new Set(columns.map((column) => column.task))];
    const units = this.units(columns, diagram);
    const [low, high] = diagram.height, total = LABEL_WIDTH + cell * units, height = (high - low) * ROW_HEIGHT;
    const node = svg("svg", { viewBox: `0 0 ${total} ${height}`, width: total, height, role: "img", tabindex: 0, "aria-label": diagram.alt, "font-family": FONT, "font-size": 12 });
    node.style.maxWidth = `${total}px`;
    node.style.margin = "0 auto";
    const id = `hatch${Math.random().toString(36).slice(2)}`, defs = svg("defs", {}, node);
    for (const ink of ["#ffffff", "#000000"]) {
      const pattern = svg("pattern", { id: id + ink.slice(1), width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, defs);
      svg("line", { x1: 0, x2: 0, y1: 0, y2: 6, stroke: ink, "stroke-width": 1, opacity: 0.35 }, pattern);
    }
    const text = (x, y, content, more) => svg("text", { x, y, fill: theme.ink, "text-anchor": "middle", ...more }, node, content);
    const y = (value) => (high - value) * ROW_HEIGHT;
    for (const [at, label, isLayer] of diagram.labels) text(LABEL_WIDTH - 8, y(at) + 4, label, { "text-anchor": "end", fill: isLayer ? theme.ink : theme.muted });
    columns.forEach((column, index) => {
      const x = LABEL_WIDTH + (index + diagram.gap * tasks.indexOf(column.task)) * cell;
      if (index === 0 || columns[index - 1].task !== column.task) {
        const count = columns.filter((one) => one.task === column.task).length;
        const maxLength = Math.max(4, Math.floor((count * cell) / 7.5));
        const name = column.task.length > maxLength ? `${column.task.slice(0, maxLength - 1)}\u2026` : column.task;
        text(x + (count * cell) / 2, y(diagram.taskHeight) + 5, name, { "font-weight": 600, "font-size": 13.5 });
      }
      for (const [at, label, weight] of column.labels) text(x + cell / 2, y(at) + 4, label, { "font-weight": weight });
      column.boxes.forEach((_, i) => this.box(node, column, i, diagram, { x, cell, y, id, dark }, theme, text));
    });
    return node;
  }

  box(node, column, index, diagram, { x, cell, y, id, dark }, theme, text) {
    const [first, last, , , , significant] = column.boxes[index], [effect, half] = column.texts[index];
    const [color, ink] = column.colors[index][dark ? 1 : 0], [insetX, insetY] = diagram.inset;
    const top = y(last + 1 - insetY), height = y(first + insetY) - top, middle = x + cell / 2;
    const shape = { x: x + insetX * cell, y: top, width: (1 - 2 * insetX) * cell, height, rx: 5 };
    const group = svg("g", {}, node);
    svg("rect", { ...shape, fill: color, stroke: significant || half === "" ? theme.muted : "none" }, group);
    const hatched = !significant && half !== ""; // without an interval there is no test
    if (hatched) svg("rect", { ...shape, fill: `url(#${id}${ink.slice(1)})`, "pointer-events": "none" }, group);
    const label = cell >= HALF_WIDTH && half ? `${effect} ${half}` : effect;
    const textNode = text(middle, top + height / 2 + 4, label, { fill: ink, "font-weight": significant ? 700 : 400, "pointer-events": "none" });
    if (hatched) {
      const wide = label.length * 6.4 + 4;
      textNode.before(svg("rect", { x: middle - wide / 2, y: top + height / 2 - 7, width: wide, height: 14, rx: 3, fill: color, "pointer-events": "none" }));
    }
    const [title, lines] = column.tooltips[index];
    const show = (event) => this.tooltip.show(title, lines, event.clientX, event.clientY);
    group.addEventListener("pointermove", show);
    group.addEventListener("pointerdown", show);
    group.addEventListener("pointerleave", (event) => isTouch(event) || this.tooltip.hide());
  }

  exportSvg() {
    const theme = this.themes[isDark() ? "dark" : "light"], rows = [...this.container.querySelectorAll("svg")];
    const width = Math.max(...rows.map((row) => Number(row.getAttribute("width")))) + 24;
    const legend = this.diagram().legend.length ? 34 : 0;
    const height = rows.reduce((sum, row) => sum + Number(row.getAttribute("height")) + 12, 36 + legend);
    const image = svg("svg", { xmlns: SVG, width, height, "font-family": FONT });
    svg("rect", { width: "100%", height: "100%", fill: theme.background }, image);
    let y = 12;
    for (const row of rows) {
      const copy = row.cloneNode(true);
      copy.setAttribute("x", 12);
      copy.setAttribute("y", y);
      image.append(copy);
      y += Number(row.getAttribute("height")) + 12;
    }
    if (legend) {
      const scale = this.scaleSvg(this.diagram());
      scale.setAttribute("x", 14);
      scale.setAttribute("y", y);
      image.append(scale);
      svg("text", { x: 22 + Number(scale.getAttribute("width")), y: y + 15, "font-size": 12, fill: theme.ink }, image, this.diagram().legendTitle);
    }
    const note = this.diagram().tested ? "hatched: not significantly different from zero" : "single trials";
    svg("text", { x: 14, y: height - 12, "font-size": 12, fill: theme.ink }, image, `${this.diagram().source}, in points; ${note}`);
    return image;
  }

  rows() {
    const head = ["effect", "model", "variant", "task", "examples", "metric", "first layer", "last layer", "points", "half of the 95% interval", "n", "significant"];
    const of = (diagram, column) => [diagram.source, diagram.model, diagram.variant, column.task, column.size, column.metric];
    return [head, ...this.diagrams.flatMap((diagram) => diagram.columns.flatMap((column) => column.boxes.map((box) => [...of(diagram, column), ...box.slice(0, 5), box[5] ? "yes" : "no"])))];
  }
}
