// The model as stacks of layers, one a task and size, each layer shaded by what its pretrained weights were worth.
"use strict";

const ROW = 27, NAMES = 72, HEAD = 62, FOOT = 30;

class Layers {
  constructor(figure, pictures, themes, kept) {
    Object.assign(this, { figure, pictures, themes });
    this.state = kept || { source: 0, model: 0, variant: 0, off: new Set() };
    this.names = Object.fromEntries(["source", "model", "variant"].map((name) => [name, [...new Set(pictures.map((one) => one[name]))]]));
    const caption = figure.querySelector("figcaption");
    this.controls = html("div", { class: "controls" });
    this.stage = html("div", { class: "panels" });
    figure.prepend(this.controls, this.stage);
    this.tip = new Tip(figure);
    saves(figure, [
      ["Layers as CSV", () => save("layers.csv", csv(this.rows()), "text/csv")],
      ["SVG", () => save("layers.svg", svgText(this.whole()), "image/svg+xml")],
      ["PNG", () => savePicture("layers.png", this.whole())],
    ]);
    this.caption = caption || html("figcaption", {});
    figure.append(this.caption);
    this.makeControls();
    new ResizeObserver(() => this.draw()).observe(figure);
  }

  picture() {
    const asked = (one) => ["source", "model", "variant"].filter((name) => one[name] === this.names[name][this.state[name]]).length;
    return [...this.pictures].sort((a, b) => asked(b) - asked(a))[0];
  }

  makeControls() {
    this.controls.replaceChildren();
    for (const name of ["source", "model", "variant"]) {
      const values = this.names[name];
      if (values.length > 1) choice(this.controls, name === "source" ? "worth as" : name, values.map((value) => value || "as usual"), this.state[name], (place) => {
        this.state[name] = place;
        this.draw(true);
      });
    }
    for (const [name, label] of [["task", "task"], ["size", "examples"]]) {
      const values = [...new Set(this.pictures.flatMap((one) => one.stacks.map((stack) => stack[name])))];
      if (values.length < 2) continue;
      switches(this.controls, label, values, (value) => !this.state.off.has(`${name}/${value}`), (value, on) => {
        this.state.off[on ? "delete" : "add"](`${name}/${value}`);
        this.draw(true);
      });
    }
  }

  stacks() {
    return this.picture().stacks.filter((stack) => !this.state.off.has(`task/${stack.task}`) && !this.state.off.has(`size/${stack.size}`));
  }

  draw(again = false) {
    const width = this.figure.clientWidth - 2 * parseFloat(getComputedStyle(this.figure).paddingLeft);
    if (!(width > 0) || (!again && width === this.width)) return;
    this.width = width;
    this.tip.hide();
    const picture = this.picture();
    (this.caption.querySelector("span") || this.caption).textContent = picture.caption;
    this.stage.replaceChildren();
    for (const row of this.inRows(width)) this.stage.append(this.drawRow(row, picture, width));
    if (!this.stage.children.length) html("p", { class: "soft" }, this.stage, "Nothing is switched on.");
  }

  // Tasks stay whole where they can; a box never gets narrower than its number.
  inRows(width) {
    const stacks = this.stacks(), gap = 12, least = 46, rows = [];
    let used = Infinity;
    for (const [place, stack] of stacks.entries()) {
      const first = place === 0 || stacks[place - 1].task !== stack.task;
      const group = first ? stacks.filter((one) => one.task === stack.task).length * least + gap : least;
      if (used + (first ? Math.min(group, width - NAMES) : least) > width) {
        rows.push([]);
        used = NAMES;
      }
      rows.at(-1).push(stack);
      used += least + (first ? gap : 0);
    }
    return rows;
  }

  drawRow(stacks, picture, width) {
    const theme = this.themes[isDark() ? "dark" : "light"], gap = 12, tasks = [...new Set(stacks.map((stack) => stack.task))];
    const cell = Math.max(42, Math.min(118, (width - NAMES - gap * tasks.length) / stacks.length));
    const whole = NAMES + cell * stacks.length + gap * tasks.length, height = HEAD + picture.depth * ROW + FOOT;
    const node = svg("svg", { viewBox: `0 0 ${whole} ${height}`, width: whole, height, role: "img", tabindex: 0, "aria-label": picture.alt, "font-family": FONT, "font-size": 11.5 });
    node.style.maxWidth = `${whole}px`;
    node.style.margin = "0 auto";
    const id = `hatch${Math.random().toString(36).slice(2)}`, defs = svg("defs", {}, node);
    for (const ink of ["#ffffff", "#000000"]) {
      const pattern = svg("pattern", { id: id + ink.slice(1), width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, defs);
      svg("line", { x1: 0, x2: 0, y1: 0, y2: 6, stroke: ink, "stroke-width": 1, opacity: 0.35 }, pattern);
    }
    const text = (x, y, words, more) => svg("text", { x, y, fill: theme.ink, "text-anchor": "middle", ...more }, node, words);
    const y = (layer) => HEAD + (picture.depth - layer) * ROW;
    const quiet = { "text-anchor": "end", fill: theme.muted };
    text(NAMES - 8, 34, "examples", quiet);
    text(NAMES - 8, 52, "all kept", quiet);
    text(NAMES - 8, y(0) + 18, "none kept", quiet);
    for (let layer = 1; layer <= picture.depth; layer += 1) text(NAMES - 8, y(layer) + 18, layer === 1 || layer === picture.depth ? `layer ${layer}` : String(layer), { "text-anchor": "end" });
    stacks.forEach((stack, place) => {
      const x = NAMES + place * cell + gap * tasks.indexOf(stack.task), middle = x + cell / 2;
      if (place === 0 || stacks[place - 1].task !== stack.task) {
        const count = stacks.filter((one) => one.task === stack.task).length;
        const room = Math.max(4, Math.floor((count * cell) / 7.5));
        const name = stack.task.length > room ? `${stack.task.slice(0, room - 1)}\u2026` : stack.task;
        text(x + (count * cell) / 2, 14, name, { "font-weight": 600, "font-size": 13.5 });
      }
      text(middle, 34, stack.size);
      if (stack.all !== null) text(middle, 52, stack.all.toFixed(1), { "font-weight": 600 });
      if (stack.none !== null) text(middle, y(0) + 18, minus(stack.none.toFixed(1)));
      for (const box of stack.boxes) this.box(node, box, stack, picture, { x, cell, y, middle, id }, theme, text);
    });
    return node;
  }

  box(node, [first, last, mean, half, n, clear], stack, picture, { x, cell, y, middle, id }, theme, text) {
    const colour = shade(mean / (last - first + 1) / picture.most, theme.shades), top = y(last) + 2, height = (last - first + 1) * ROW - 4;
    const shape = { x: x + 2, y: top, width: cell - 4, height, rx: 5 };
    const group = svg("g", {}, node);
    svg("rect", { ...shape, fill: colour, stroke: clear ? theme.muted : "none" }, group);
    const ink = inkOn(colour);
    if (!clear) svg("rect", { ...shape, fill: `url(#${id}${ink.slice(1)})`, "pointer-events": "none" }, group);
    const words = cell >= 84 && half !== null ? `${signed(mean)} \u00b1${half.toFixed(1)}` : signed(mean);
    const label = text(middle, top + height / 2 + 4, words, { fill: ink, "font-weight": clear ? 700 : 400, "pointer-events": "none" });
    if (!clear) {
      const wide = words.length * 6 + 4;
      label.before(svg("rect", { x: middle - wide / 2, y: top + height / 2 - 7, width: wide, height: 14, rx: 3, fill: colour, "pointer-events": "none" }));
    }
    const name = first === last ? `layer ${first}` : `layers ${first} to ${last}`;
    const lines = [`worth ${signed(mean, 2)} points (${stack.metric} \u00d7 100)`];
    lines.push(half === null ? "one pair of trials, hence no interval" : `95% interval: ${signed(mean - half, 2)} to ${signed(mean + half, 2)}`);
    lines.push(`n = ${n} paired trials`, clear ? "told from zero (adjusted p below 0.05)" : "cannot be told from zero");
    const show = (event) => this.tip.show(`${stack.task} \u00b7 ${stack.size} examples \u00b7 ${name}`, lines, event.clientX, event.clientY);
    group.addEventListener("pointermove", show);
    group.addEventListener("pointerdown", show);
    group.addEventListener("pointerleave", (event) => lifted(event) || this.tip.hide());
  }

  whole() {
    const theme = this.themes[isDark() ? "dark" : "light"], rows = [...this.stage.querySelectorAll("svg")];
    const width = Math.max(...rows.map((row) => Number(row.getAttribute("width")))) + 24;
    const height = rows.reduce((sum, row) => sum + Number(row.getAttribute("height")) + 12, 36);
    const whole = svg("svg", { xmlns: SVG, width, height, "font-family": FONT });
    svg("rect", { width: "100%", height: "100%", fill: theme.background }, whole);
    let y = 12;
    for (const row of rows) {
      const copy = row.cloneNode(true);
      copy.setAttribute("x", 12);
      copy.setAttribute("y", y);
      whole.append(copy);
      y += Number(row.getAttribute("height")) + 12;
    }
    svg("text", { x: 14, y: height - 12, "font-size": 11, fill: theme.muted }, whole, `${this.picture().source}, in points; hatched: cannot be told from zero`);
    return whole;
  }

  rows() {
    const head = ["worth as", "model", "variant", "task", "examples", "metric", "first layer", "last layer", "points", "half of the 95% interval", "n", "told from zero"];
    const of = (picture, stack) => [picture.source, picture.model, picture.variant, stack.task, stack.size, stack.metric];
    return [head, ...this.pictures.flatMap((picture) => picture.stacks.flatMap((stack) => stack.boxes.map((box) => [...of(picture, stack), ...box.slice(0, 5), box[5] ? "yes" : "no"])))];
  }
}

const rgb = (hex) => [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16));
function shade(share, [harms, nothing, helps]) {
  const end = rgb(share < 0 ? harms : helps), start = rgb(nothing), part = Math.min(1, Math.abs(share));
  return `#${start.map((value, i) => Math.round(value + part * (end[i] - value)).toString(16).padStart(2, "0")).join("")}`;
}
function inkOn(colour) {
  const [r, g, b] = rgb(colour).map((value) => value / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b < 0.179 ? "#ffffff" : "#000000";
}
