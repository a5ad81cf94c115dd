// One panel of a chart: its axes, its marks, and what a pointer or the arrow keys ask of it.
"use strict";

const SPREAD = 0.3; // of a step on the x axis, over which lines are set apart: bars do not hide bars
const NEAR = 14; // pixels at most between two lines: with few places, what belongs together would stand far apart

class Drawing {
  constructor(chart, { panel, marks, bars }, { range, ticks }, theme) {
    Object.assign(this, { chart, panel, marks, bars, theme });
    this.top = panel.sub ? 42 : 28;
    this.width = chart.cell;
    this.left = chart.left;
    const [left, right] = panel.xlim, [low, high] = range;
    this.x = (value) => this.left + ((value - left) / (right - left)) * (this.width - this.left - RIGHT);
    this.y = (value) => HEIGHT - BOTTOM - ((value - low) / (high - low)) * (HEIGHT - BOTTOM - this.top);
    this.near = NEAR / (this.x(1) - this.x(0)); // in units of the x axis
    this.inside = (value) => Math.max(low, Math.min(high, value));
    this.aslant = this.tooLong(); // how much lower names reach that are set aslant; 0: they have room
    const height = HEIGHT + this.aslant;
    this.node = svg("svg", { viewBox: `0 0 ${this.width} ${height}`, width: this.width, height, role: "img", tabindex: 0, "aria-label": panel.alt, "font-family": FONT, "font-size": TICK_SIZE });
    this.axes(ticks);
    this.hits = [];
    const lines = marks.filter((mark) => mark.kind === "line");
    for (const mark of marks) if (mark.kind === "level") this.level(mark);
    for (const mark of marks) {
      if (mark.kind === "strip") this.strip(mark);
      else if (mark.kind === "published" && !mark.dash) this.line(mark, dodge(lines.indexOf(chart.data.marks[mark.of]), lines.length, this.near));
      else if (mark.kind !== "level") this.line(mark, dodge(lines.indexOf(mark), lines.length, this.near));
    }
    this.ring = svg("circle", { r: 8, fill: "none", stroke: theme.ink, "stroke-width": 1.5, visibility: "hidden" }, this.node);
    this.at = -1;
    this.listen();
  }

  eachTick() {
    const ticks = this.panel.ticks;
    return ticks.length > 1 ? this.x(ticks[1][0]) - this.x(ticks[0][0]) : this.width;
  }

  tooLong() {
    const words = this.panel.ticks.map((tick) => tick[1]), longest = Math.max(...words.map((word) => word.length));
    const names = words.some((word) => Number.isNaN(Number(word)));
    return names && longest * 7 + 6 > this.eachTick() ? Math.max(0, Math.ceil(longest * 3.6) - 6) : 0;
  }

  axes(ticks) {
    const { panel, theme, node } = this, right = this.width - RIGHT, bottom = HEIGHT - BOTTOM;
    const text = (x, y, words, more) => svg("text", { x, y, fill: theme.ink, ...more }, node, words);
    text(0, 13, panel.title, { "font-size": 13.5, "font-weight": 600 });
    if (panel.sub) text(0, 29, panel.sub, { fill: theme.muted });
    for (const [value, words] of ticks) {
      svg("line", { x1: this.left, x2: right, y1: this.y(value), y2: this.y(value), stroke: theme.grid }, node);
      text(this.left - 6, this.y(value) + 4, words, { "text-anchor": "end" });
    }
    svg("line", { x1: this.left, x2: right, y1: bottom, y2: bottom, stroke: theme.muted }, node);
    const room = Math.max(...panel.ticks.map((tick) => tick[1].length)) * 7 + 6;
    const step = this.aslant ? 1 : Math.max(1, Math.ceil(room / this.eachTick()));
    panel.ticks.forEach(([value, words], place) => {
      svg("line", { x1: this.x(value), x2: this.x(value), y1: bottom, y2: bottom + 4, stroke: theme.muted }, node);
      const x = this.x(value), y = bottom + (this.aslant ? 13 : 17);
      if (this.aslant) text(x + 3, y, words, { "text-anchor": "end", transform: `rotate(-35 ${x + 3} ${y})` });
      else if (place % step === 0) text(x, y, words, { "text-anchor": "middle" });
    });
    text((this.left + right) / 2, HEIGHT + this.aslant - 5, this.chart.data.x, { "text-anchor": "middle" });
    const middle = (this.top + bottom) / 2;
    const tall = bottom - this.top + 6, wide = textWidth(panel.y, TICK_SIZE);
    text(11, middle, panel.y, { "text-anchor": "middle", "font-size": wide > tall ? (TICK_SIZE * tall) / wide : null, transform: `rotate(-90 11 ${middle})` });
  }

  line(mark, [shift, aside]) {
    const colour = mark.colour[this.theme.place], rows = mark.rows.filter((row) => row[1] !== null);
    const faint = mark.kind === "published";
    if (this.chart.state.trials) this.trials(mark, (trial) => this.x(trial[0] + shift + aside + Math.min(1, 4 * this.near) * jitter(trial[1])));
    const at = rows.map((row) => [this.x(row[0] + shift), this.y(row[1])]);
    if (mark.bars || this.bars) for (const [i, row] of rows.entries()) this.bar(at[i][0], row, colour, 3);
    if (mark.dash) {
      svg("path", { d: at.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join(""), fill: "none", stroke: colour, "stroke-width": faint ? 1.3 : 2, "stroke-dasharray": mark.dash.map((part) => 1.3 * part).join(" ") || null, opacity: faint ? 0.8 : null }, this.node);
    }
    at.forEach(([x, y], i) => {
      symbol(this.node, mark, x, y, 3.4, colour, this.theme.background);
      this.hits.push({ x, y, mark, row: rows[i] });
    });
  }

  bar(x, row, colour, cap) {
    if (row[2] === null || row[3] === null) return;
    const low = this.y(this.inside(row[2])), high = this.y(this.inside(row[3]));
    svg("path", { d: `M${x} ${low}V${high}M${x - cap} ${low}h${2 * cap}M${x - cap} ${high}h${2 * cap}`, stroke: colour, "stroke-width": 1.2, fill: "none" }, this.node);
  }

  trials(mark, place) {
    const colour = mark.single[this.theme.place], many = mark.trials.length > 400;
    for (const trial of mark.trials) {
      if (trial[2] === null) continue;
      svg("circle", { cx: place(trial).toFixed(1), cy: this.y(this.inside(trial[2])).toFixed(1), r: many ? 1.6 : 2, fill: colour, opacity: many ? 0.3 : 0.5, class: "trial" }, this.node);
    }
  }

  level(mark) {
    const [x, mean, low, high] = mark.rows[0], colour = mark.colour[this.theme.place];
    const left = x === null ? this.left : this.x(x - 0.42), right = x === null ? this.width - RIGHT : this.x(x + 0.42);
    if (low !== null) {
      const top = this.y(this.inside(high));
      svg("rect", { x: left, width: right - left, y: top, height: this.y(this.inside(low)) - top, fill: this.theme.muted, opacity: 0.16 }, this.node);
    }
    svg("line", { x1: left, x2: right, y1: this.y(mean), y2: this.y(mean), stroke: colour, "stroke-width": 1.3, "stroke-dasharray": mark.dash.join(" ") }, this.node);
    this.hits.push({ x: right - 8, y: this.y(mean), mark, row: mark.rows[0], wide: true });
  }

  strip(mark) {
    const row = mark.rows[0], colour = mark.colour[this.theme.place];
    if (mark.outline.length) {
      const path = mark.outline.map(([height, width], i) => `${i ? "L" : "M"}${this.x(row[0] + 0.08 + 0.28 * width).toFixed(1)} ${this.y(height).toFixed(1)}`).join("");
      const foot = this.x(row[0] + 0.08), ends = [mark.outline[0], mark.outline.at(-1)].map((one) => this.y(one[0]));
      svg("path", { d: `${path}L${foot} ${ends[1]}L${foot} ${ends[0]}Z`, fill: colour, opacity: 0.22 }, this.node);
    }
    if (this.chart.state.trials) {
      for (const trial of mark.trials) {
        const x = this.x(row[0] - 0.18 + 1.3 * jitter(trial[1])), y = this.y(trial[2]);
        svg("circle", { cx: x, cy: y, r: 4, fill: "none", stroke: colour, "stroke-width": 1.2, class: "trial" }, this.node);
        this.hits.push({ x, y, mark, row, trial });
      }
    }
    const x = this.x(row[0]);
    this.bar(x, row, colour, 3);
    symbol(this.node, mark, x, this.y(row[1]), 4, colour, this.theme.background);
    this.hits.push({ x, y: this.y(row[1]), mark, row });
  }

  listen() {
    this.node.addEventListener("pointermove", (event) => this.ask(event));
    this.node.addEventListener("pointerdown", (event) => this.ask(event));
    this.node.addEventListener("pointerleave", (event) => lifted(event) || this.leave());
    this.node.addEventListener("focus", () => this.node.matches(":focus-visible") && this.walk(0, 0));
    this.node.addEventListener("blur", () => this.leave());
    this.node.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (event.key === "Escape") this.leave();
      if (!step) return;
      event.preventDefault();
      this.walk(...step);
    });
  }

  ask(event) {
    const box = this.node.getBoundingClientRect(), scale = this.width / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    let best = -1, nearest = 34;
    this.hits.forEach((hit, place) => {
      const far = hit.wide ? Math.abs(hit.y - y) + 6 : Math.hypot(hit.x - x, hit.y - y);
      if (far < nearest) [best, nearest] = [place, far];
    });
    if (best < 0) this.leave();
    else this.show(best);
  }

  // Along a curve with left and right, from curve to curve with up and down.
  walk(across, over) {
    if (!this.hits.length) return;
    const marks = [...new Set(this.hits.map((hit) => hit.mark))];
    const hit = this.hits[Math.max(0, this.at)];
    const next = marks[(marks.indexOf(hit.mark) + over + marks.length) % marks.length];
    const mine = this.hits.filter((one) => one.mark === next);
    const place = next === hit.mark ? mine.indexOf(hit) + across : mine.findIndex((one) => one.row[0] >= hit.row[0]);
    this.show(this.hits.indexOf(mine[Math.max(0, Math.min(mine.length - 1, place))]));
  }

  show(place) {
    this.at = place;
    const { x, y, mark, row, trial } = this.hits[place], { chart, panel } = this;
    this.ring.setAttribute("cx", x);
    this.ring.setAttribute("cy", y);
    this.ring.setAttribute("visibility", "visible");
    const lines = [];
    if (row[0] !== null) lines.push(`${chart.data.x}: ${(panel.ticks.find((tick) => tick[0] === row[0]) || ["", row[0]])[1]}`);
    if (trial) lines.push(`permutation ${trial[1]}: ${number(trial[2])}`);
    lines.push(`mean ${panel.y}: ${number(row[1])}`);
    if (row[2] !== null) lines.push(`95% interval: ${number(row[2])} to ${number(row[3])}`);
    if (row[5]) lines.push(`n = ${row[5]}${row[4] === null ? ", hence no interval" : `, sd ${number(row[4])}`}`);
    const box = this.node.getBoundingClientRect(), scale = box.width / this.width;
    const of = mark.of >= 0 ? chart.data.marks[mark.of].label : "mean";
    const title = [panel.title, panel.sub, of === "mean" ? "" : of, mark.label === "mean" ? "" : mark.label].filter(Boolean).join(" \u00b7 ");
    chart.tip.show(title, lines, box.left + x * scale, box.top + y * scale);
  }

  leave() {
    this.ring.setAttribute("visibility", "hidden");
    this.chart.tip.hide();
  }
}

const jitter = (seed) => ((((seed + 1) * 0.618034) % 1) - 0.5) * 0.12;

function dodge(place, count, near) {
  if (place < 0 || count === 1) return [0, Math.min(0.12, near)];
  const gap = Math.min((SPREAD * Math.min(1, count / 4)) / (count - 1), near);
  return [gap * (place - (count - 1) / 2), gap / 2];
}

function symbol(parent, mark, x, y, r, colour, background) {
  const shapes = {
    o: () => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`,
    s: () => `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}Z`,
    "^": () => `M${x} ${y - 1.2 * r}L${x + 1.2 * r} ${y + r}H${x - 1.2 * r}Z`,
    v: () => `M${x} ${y + 1.2 * r}L${x + 1.2 * r} ${y - r}H${x - 1.2 * r}Z`,
    D: () => `M${x} ${y - 1.3 * r}L${x + 1.3 * r} ${y}L${x} ${y + 1.3 * r}L${x - 1.3 * r} ${y}Z`,
    P: () => `M${x - r} ${y}h${2 * r}M${x} ${y - r}v${2 * r}`,
    "+": () => `M${x - r} ${y}h${2 * r}M${x} ${y - r}v${2 * r}`,
    x: () => `M${x - r} ${y - r}l${2 * r} ${2 * r}M${x - r} ${y + r}l${2 * r} ${-2 * r}`,
  };
  if (!shapes[mark.marker]) return;
  const crossed = "+xP".includes(mark.marker);
  svg("path", { d: shapes[mark.marker](), fill: crossed ? "none" : mark.open ? background : colour, stroke: colour, "stroke-width": mark.marker === "P" ? 2.6 : 1.3 }, parent);
}

function swatch(parent, mark, theme, middle) {
  const colour = mark.colour[theme.place];
  if (mark.dash) svg("line", { x1: 2, x2: 32, y1: middle, y2: middle, stroke: colour, "stroke-width": 2, "stroke-dasharray": mark.dash.map((part) => 1.3 * part).join(" ") || null }, parent);
  symbol(parent, mark, 17, middle, 3.4, colour, theme.background);
}
