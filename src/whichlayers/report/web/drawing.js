// One panel of a chart: axes, marks, and tooltips by pointer or arrow keys.
"use strict";

const LABEL_SIZE = 12, LABEL_HEIGHT = 0.75 * LABEL_SIZE, LABEL_CHARACTER = 0.65 * LABEL_SIZE, LABEL_LEVELS = 4, POINT_RADIUS = 3.5; // pixels

// The offset of the lower left corner of each label from its point: the first place that covers no earlier label and no point, or else no earlier label.
function placeLabels(points) {
  const overlap = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
  const markers = points.map(({ x, y }) => [x - POINT_RADIUS, y - POINT_RADIUS, x + POINT_RADIUS, y + POINT_RADIUS]), placed = [];
  return points.map(({ x, y, text }) => {
    if (!text) return [0, 0];
    const width = LABEL_CHARACTER * text.length, places = [];
    for (let level = 0; level < LABEL_LEVELS; level++) {
      const distance = 5 + level * (LABEL_HEIGHT + 2);
      for (const dy of [-distance, distance + LABEL_HEIGHT]) places.push([6, dy], [-6 - width, dy]);
    }
    const box = ([dx, dy]) => [x + dx, y + dy - LABEL_HEIGHT, x + dx + width, y + dy];
    const free = places.filter((place) => !placed.some((other) => overlap(box(place), other)));
    const best = free.find((place) => !markers.some((marker) => overlap(box(place), marker))) || free[0] || places[0];
    placed.push(box(best));
    return best;
  });
}

class Drawing {
  constructor(chart, { panel, marks, bars, scale }, theme) {
    Object.assign(this, { chart, panel, marks, bars, theme });
    this.top = panel.sub ? 42 : 28;
    this.width = chart.cell;
    this.left = chart.left;
    const [left, right] = panel.xlim, [low, high] = scale.range;
    this.x = (value) => this.left + ((value - left) / (right - left)) * (this.width - this.left - RIGHT);
    this.y = (value) => chart.height - BOTTOM - ((value - low) / (high - low)) * (chart.height - BOTTOM - this.top);
    this.inside = (value) => Math.max(low, Math.min(high, value));
    this.rotatedDepth = this.rotatedTickDepth(); // extra height for rotated tick labels; 0: they are horizontal
    const height = chart.height + this.rotatedDepth;
    this.node = svg("svg", { viewBox: `0 0 ${this.width} ${height}`, width: this.width, height, role: "img", tabindex: 0, "aria-label": panel.alt, "font-family": FONT, "font-size": TICK_SIZE });
    this.axes(scale.ticks);
    this.hits = [];
    for (const mark of marks) if (mark.kind === "level") this.level(mark);
    for (const mark of marks) {
      if (mark.kind === "strip") this.strip(mark);
      else if (mark.kind !== "level") this.line(mark);
    }
    this.labels(marks);
    this.ring = svg("circle", { r: 8, fill: "none", stroke: theme.ink, "stroke-width": 1.5, visibility: "hidden" }, this.node);
    this.at = -1;
    this.listen();
  }

  tickSpacing() {
    const ticks = this.panel.ticks;
    return ticks.length > 1 ? this.x(ticks[1][0]) - this.x(ticks[0][0]) : this.width;
  }

  rotatedTickDepth() {
    const labels = this.panel.ticks.map((tick) => tick[1]), longest = Math.max(...labels.map((label) => label.length));
    const names = labels.some((label) => Number.isNaN(Number(label)));
    return names && longest * 7 + 6 > this.tickSpacing() ? Math.max(0, Math.ceil(longest * 3.6) - 6) : 0;
  }

  axes(ticks) {
    const { panel, theme, node } = this, right = this.width - RIGHT, bottom = this.chart.height - BOTTOM;
    const text = (x, y, content, more) => svg("text", { x, y, fill: theme.ink, ...more }, node, content);
    text(0, 13, panel.title, { "font-size": 13.5, "font-weight": 600 });
    if (panel.sub) text(0, 29, panel.sub, { fill: theme.muted });
    for (const [value, label] of ticks) {
      svg("line", { x1: this.left, x2: right, y1: this.y(value), y2: this.y(value), stroke: theme.grid }, node);
      text(this.left - 6, this.y(value) + 4, label, { "text-anchor": "end" });
    }
    svg("line", { x1: this.left, x2: right, y1: bottom, y2: bottom, stroke: theme.muted }, node);
    const labelWidth = Math.max(...panel.ticks.map((tick) => tick[1].length)) * 7 + 6;
    const step = this.rotatedDepth ? 1 : Math.max(1, Math.ceil(labelWidth / this.tickSpacing()));
    panel.ticks.forEach(([value, label], index) => {
      svg("line", { x1: this.x(value), x2: this.x(value), y1: bottom, y2: bottom + 4, stroke: theme.muted }, node);
      const x = this.x(value), y = bottom + (this.rotatedDepth ? 13 : 17);
      if (this.rotatedDepth) text(x + 3, y, label, { "text-anchor": "end", transform: `rotate(-35 ${x + 3} ${y})` });
      else if (index % step === 0) text(x, y, label, { "text-anchor": "middle" });
    });
    text((this.left + right) / 2, this.chart.height + this.rotatedDepth - 5, this.chart.data.x, { "text-anchor": "middle" });
    const middle = (this.top + bottom) / 2;
    text(11, middle, panel.y, { "text-anchor": "middle", transform: `rotate(-90 11 ${middle})` });
  }

  line(mark) {
    const color = mark.color[this.theme.colorIndex], rows = mark.rows.filter((row) => row[1] !== null);
    const isPublished = mark.kind === "published";
    if (this.chart.state.trials) this.trials(mark);
    const at = rows.map((row) => [this.x(row[0] + mark.shift), this.y(row[1])]);
    if (mark.bars || this.bars) for (const [i, row] of rows.entries()) this.bar(at[i][0], row, color, 3);
    if (mark.dash) {
      svg("path", { d: polyline(at), fill: "none", stroke: color, "stroke-width": isPublished ? 1.3 : 2, "stroke-dasharray": mark.dash.map((part) => 1.3 * part).join(" ") || null, opacity: isPublished ? 0.8 : null }, this.node);
    }
    at.forEach(([x, y], i) => {
      symbol(this.node, mark, x, y, 3.4, color, this.theme.background);
      this.hits.push({ x, y, mark, row: rows[i] });
    });
  }

  // Text next to points, placed as in plots/point_labels.py; here y grows downward.
  labels(marks) {
    const points = marks.filter((mark) => mark.kind === "line").flatMap((mark) => mark.rows.map((row, i) => ({ x: this.x(row[0] + mark.shift), y: this.y(row[1]), text: mark.labels[i], color: mark.color[this.theme.colorIndex], known: row[1] !== null }))).filter((one) => one.known);
    placeLabels(points).forEach(([dx, dy], i) => {
      const { x, y, text, color } = points[i];
      if (text) svg("text", { x: x + dx, y: y + dy, "font-size": LABEL_SIZE, fill: color, class: "label" }, this.node, text);
    });
  }

  bar(x, row, color, cap) {
    if (row[2] === null || row[3] === null) return;
    const low = this.y(this.inside(row[2])), high = this.y(this.inside(row[3]));
    // an end inside the panel has a cap, an end beyond it an arrowhead at the edge
    const end = (value, y, way) => (value === this.inside(value) ? `M${x - cap} ${y}h${2 * cap}` : `M${x - cap} ${y + way * 5}L${x} ${y}L${x + cap} ${y + way * 5}`);
    svg("path", { d: `M${x} ${low}V${high}${end(row[2], low, -1)}${end(row[3], high, 1)}`, stroke: color, "stroke-width": 1.2, fill: "none" }, this.node);
  }

  trials(mark) {
    const color = mark.single[this.theme.colorIndex], many = mark.trials.length > 400;
    for (const trial of mark.trials) {
      if (trial[2] === null) continue;
      svg("circle", { cx: this.x(trial[0] + mark.offsets[trial[1]]).toFixed(1), cy: this.y(this.inside(trial[2])).toFixed(1), r: many ? 1.6 : 2, fill: color, opacity: many ? 0.3 : 0.5, class: "trial" }, this.node);
    }
  }

  level(mark) {
    const [, mean, low, high] = mark.rows[0], color = mark.color[this.theme.colorIndex];
    const [left, right] = mark.span ? mark.span.map(this.x) : [this.left, this.width - RIGHT];
    if (low !== null) {
      const top = this.y(this.inside(high));
      svg("rect", { x: left, width: right - left, y: top, height: this.y(this.inside(low)) - top, fill: this.theme.muted, opacity: 0.16 }, this.node);
    }
    svg("line", { x1: left, x2: right, y1: this.y(mean), y2: this.y(mean), stroke: color, "stroke-width": 1.3, "stroke-dasharray": mark.dash.join(" ") }, this.node);
    this.hits.push({ x: right - 8, y: this.y(mean), mark, row: mark.rows[0], wide: true });
  }

  strip(mark) {
    const row = mark.rows[0], color = mark.color[this.theme.colorIndex];
    if (mark.outline.length) {
      svg("path", { d: `${polyline(mark.outline.map(([x, y]) => [this.x(x), this.y(y)]))}Z`, fill: color, opacity: 0.22 }, this.node);
    }
    if (this.chart.state.trials) {
      for (const trial of mark.trials) {
        const x = this.x(trial[0] + mark.offsets[trial[1]]), y = this.y(trial[2]);
        svg("circle", { cx: x, cy: y, r: 4, fill: "none", stroke: color, "stroke-width": 1.2, class: "trial" }, this.node);
        this.hits.push({ x, y, mark, row, trial });
      }
    }
    const x = this.x(row[0]);
    this.bar(x, row, color, 3);
    symbol(this.node, mark, x, this.y(row[1]), 4, color, this.theme.background);
    this.hits.push({ x, y: this.y(row[1]), mark, row });
  }

  listen() {
    this.node.addEventListener("pointermove", (event) => this.onPointer(event));
    this.node.addEventListener("pointerdown", (event) => this.onPointer(event));
    this.node.addEventListener("pointerleave", (event) => isTouch(event) || this.hideTooltip());
    this.node.addEventListener("focus", () => this.node.matches(":focus-visible") && this.moveFocus(0, 0));
    this.node.addEventListener("blur", () => this.hideTooltip());
    this.node.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (event.key === "Escape") this.hideTooltip();
      if (!step) return;
      event.preventDefault();
      this.moveFocus(...step);
    });
  }

  onPointer(event) {
    const box = this.node.getBoundingClientRect(), scale = this.width / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    let best = -1, nearest = 34;
    this.hits.forEach((hit, index) => {
      const far = hit.wide ? Math.abs(hit.y - y) + 6 : Math.hypot(hit.x - x, hit.y - y);
      if (far < nearest) [best, nearest] = [index, far];
    });
    if (best < 0) this.hideTooltip();
    else this.show(best);
  }

  // Left and right move along a curve, up and down between curves.
  moveFocus(across, over) {
    if (!this.hits.length) return;
    const marks = [...new Set(this.hits.map((hit) => hit.mark))];
    const hit = this.hits[Math.max(0, this.at)];
    const next = marks[(marks.indexOf(hit.mark) + over + marks.length) % marks.length];
    const points = this.hits.filter((one) => one.mark === next);
    const index = next === hit.mark ? points.indexOf(hit) + across : points.findIndex((one) => one.row[0] >= hit.row[0]);
    this.show(this.hits.indexOf(points[Math.max(0, Math.min(points.length - 1, index))]));
  }

  show(index) {
    this.at = index;
    const { x, y, mark, row, trial } = this.hits[index];
    this.ring.setAttribute("cx", x);
    this.ring.setAttribute("cy", y);
    this.ring.setAttribute("visibility", "visible");
    const { title, lines } = mark.tooltip, of = lines[mark.rows.indexOf(row)];
    const box = this.node.getBoundingClientRect(), scale = box.width / this.width;
    this.chart.tooltip.show(title, trial ? [trial[3], ...of] : of, box.left + x * scale, box.top + y * scale);
  }

  hideTooltip() {
    this.ring.setAttribute("visibility", "hidden");
    this.chart.tooltip.hide();
  }
}

const polyline = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

function symbol(parent, mark, x, y, r, color, background) {
  const shapes = {
    o: () => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`,
    s: () => `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}Z`,
    "^": () => `M${x} ${y - 1.2 * r}L${x + 1.2 * r} ${y + r}H${x - 1.2 * r}Z`,
    v: () => `M${x} ${y + 1.2 * r}L${x + 1.2 * r} ${y - r}H${x - 1.2 * r}Z`,
    D: () => `M${x} ${y - 1.3 * r}L${x + 1.3 * r} ${y}L${x} ${y + 1.3 * r}L${x - 1.3 * r} ${y}Z`,
    P: () => `M${x - r} ${y}h${2 * r}M${x} ${y - r}v${2 * r}`,
    "+": () => `M${x - r} ${y}h${2 * r}M${x} ${y - r}v${2 * r}`,
    "*": () => `${polyline([...Array(10).keys()].map((i) => [x + (i % 2 ? 0.7 : 1.8) * r * Math.sin((i * Math.PI) / 5), y - (i % 2 ? 0.7 : 1.8) * r * Math.cos((i * Math.PI) / 5)]))}Z`,
    x: () => `M${x - r} ${y - r}l${2 * r} ${2 * r}M${x - r} ${y + r}l${2 * r} ${-2 * r}`,
    X: () => `M${x - r} ${y - r}l${2 * r} ${2 * r}M${x - r} ${y + r}l${2 * r} ${-2 * r}`,
  };
  if (!shapes[mark.marker]) return;
  const crossed = "+xPX".includes(mark.marker);
  svg("path", { d: shapes[mark.marker](), fill: crossed ? "none" : mark.open ? background : color, stroke: color, "stroke-width": "PX".includes(mark.marker) ? 2.6 : 1.3 }, parent);
}

function swatch(parent, mark, theme, middle) {
  const color = mark.color[theme.colorIndex];
  if (mark.dash) svg("line", { x1: 2, x2: 32, y1: middle, y2: middle, stroke: color, "stroke-width": 2, "stroke-dasharray": mark.dash.map((part) => 1.3 * part).join(" ") || null }, parent);
  symbol(parent, mark, 17, middle, 3.4, color, theme.background);
}
