// The live page of `whichlayers watch`: progress, loss curves of running trials, and a table of trials to search.
"use strict";

const LOSS_HEIGHT = 240;

function live() {
  let version = document.body.dataset.live;
  const status = document.getElementById("status"), bar = document.querySelector("progress"), name = document.title;
  const open = () => [...document.querySelectorAll("#content details")].map((one) => one.open);
  const losses = new RunningLosses(document.getElementById("losses"));
  const trials = new TrialSearch(document.getElementById("trials"));
  const placeLosses = () => {
    // first on the page while it has no results, else below them
    const content = document.getElementById("content"), section = document.getElementById("losses").parentElement;
    content[document.getElementById("main-findings") ? "after" : "before"](section);
  };
  const get = async (path) => await (await fetch(path, { cache: "no-store" })).json();
  const poll = async () => {
    let wait = 2000;
    try {
      const state = await get("state");
      status.textContent = state.text;
      status.className = state.share < 1 ? "warn" : "soft";
      bar.value = state.share;
      document.title = `${Math.floor(100 * state.share)}% \u00b7 ${name}`;
      losses.show(state.running ? await get("losses") : []);
      if (state.version !== version) {
        const text = await (await fetch("page", { cache: "no-store" })).text();
        const fresh = new DOMParser().parseFromString(text, "text/html"), wasOpen = open(), at = scrollY;
        version = fresh.body.dataset.live;
        document.getElementById("data").textContent = fresh.getElementById("data").textContent;
        for (const part of ["#content", "footer"]) document.querySelector(part).replaceWith(fresh.querySelector(part));
        placeLosses();
        build();
        document.querySelectorAll("#content details").forEach((one, index) => wasOpen[index] !== undefined && (one.open = wasOpen[index]));
        scrollTo(0, at);
        trials.load();
      }
    } catch {
      status.textContent = "Connection to whichlayers watch lost: it may have been stopped. Showing the last state received.";
      document.title = `(stopped) ${name}`;
      wait = 10000;
    }
    setTimeout(poll, wait);
  };
  placeLosses();
  trials.load();
  setTimeout(poll, 1000);
}

// One line per running trial: mean training loss by step, the x axis as a share of the trial's steps. Trials that differ
// only in their seed have the same color.
class RunningLosses {
  constructor(figure) {
    this.figure = figure;
    this.chart = html("div", { class: "panels" });
    this.legend = html("ul", { class: "legend" });
    figure.prepend(this.chart, this.legend);
    this.tooltip = new Tooltip(figure);
  }

  show(shown) {
    const link = document.querySelector('nav a[href="#losses-title"]');
    for (const part of [this.figure.parentElement, link.parentElement]) part.hidden = !shown.length;
    if (shown.length && !this.tooltip.node.hidden) return; // keep the curves in place while one is being read
    this.tooltip.hide();
    this.chart.replaceChildren();
    if (!shown.length) return;
    const colorOf = (curve) => curve.color[isDark() ? 1 : 0];
    this.drawLegend(new Map([...shown].sort((a, b) => a.place - b.place).map((curve) => [curve.label, colorOf(curve)])));
    const width = this.chart.clientWidth || 600, left = 46, bottom = LOSS_HEIGHT - 34, ink = getComputedStyle(this.figure).color;
    const highest = Math.max(...shown.flatMap((curve) => curve.points.map((point) => point[1]))) || 1, step = tickStep(highest / 4);
    const ticks = Array.from({ length: Math.ceil(highest / step) + 1 }, (_, index) => index * step), top = ticks.at(-1);
    const x = (step, curve) => left + (step / curve.steps) * (width - left - 14), y = (loss) => bottom - (loss / top) * (bottom - 12);
    const label = `Training loss of ${shown.length} running trials`;
    const node = svg("svg", { viewBox: `0 0 ${width} ${LOSS_HEIGHT}`, width, height: LOSS_HEIGHT, role: "img", "aria-label": label, "font-family": FONT, "font-size": 12, fill: ink }, this.chart);
    for (const tick of ticks) {
      svg("line", { x1: left, x2: width - 14, y1: y(tick), y2: y(tick), stroke: ink, opacity: 0.12 }, node);
      svg("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, node, Number(tick.toPrecision(3)));
    }
    for (const share of [0, 0.25, 0.5, 0.75, 1]) svg("text", { x: left + share * (width - left - 14), y: bottom + 16, "text-anchor": "middle" }, node, `${100 * share}%`);
    svg("text", { x: (left + width) / 2, y: LOSS_HEIGHT - 3, "text-anchor": "middle" }, node, "share of the trial's steps");
    for (const curve of shown) {
      const at = curve.points.map(([step, loss]) => [x(step, curve), y(loss)]);
      const group = svg("g", { class: "loss" }, node);
      svg("path", { d: polyline(at), fill: "none", stroke: colorOf(curve), "stroke-width": 1.6, opacity: 0.8 }, group);
      svg("path", { d: polyline(at), fill: "none", stroke: "transparent", "stroke-width": 14 }, group); // easier to hit
      svg("circle", { cx: at.at(-1)[0], cy: at.at(-1)[1], r: 3, fill: colorOf(curve) }, group);
      group.addEventListener("pointermove", (event) => this.tooltip.show(curve.id, curve.lines, event.clientX, event.clientY));
      group.addEventListener("pointerleave", () => this.tooltip.hide());
    }
  }

  drawLegend(colors) {
    const names = [...colors.keys()];
    this.legend.hidden = names.length < 2;
    this.legend.replaceChildren(...names.map((name) => {
      const item = html("li", {}), line = svg("svg", { width: 24, height: 14, "aria-hidden": "true" }, item);
      svg("line", { x1: 0, x2: 24, y1: 7, y2: 7, stroke: colors.get(name), "stroke-width": 2 }, line);
      item.append(name);
      return item;
    }));
  }
}

// The smallest of 1, 2 and 5 times a power of ten that is not below `least`.
function tickStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find((factor) => power * factor >= least * (1 - 1e-9));
}

// A table whose rows the server searches and sorts, so that it works for a hundred thousand trials.
class TrialSearch {
  constructor(section) {
    this.section = section;
    this.sort = "";
    this.descending = false;
    this.search = section.querySelector("input");
    this.status = section.querySelector("select");
    this.note = section.querySelector("p");
    this.table = section.querySelector("table");
    let timer;
    this.search.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.load(), 200);
    });
    this.status.addEventListener("change", () => this.load());
  }

  async load() {
    const query = new URLSearchParams({ q: this.search.value, status: this.status.value, sort: this.sort, descending: this.descending ? 1 : 0 });
    const number = (this.asked = (this.asked || 0) + 1);
    const answer = await (await fetch(`trials?${query}`, { cache: "no-store" })).json();
    if (number === this.asked) this.show(answer); // a later answer may have come first
  }

  show({ columns, rows, total, of }) {
    const some = rows.length < total ? `first ${rows.length.toLocaleString("en")} of ` : "";
    this.note.textContent = `${some}${total.toLocaleString("en")} of ${of.toLocaleString("en")} rows. For everything about a trial: whichlayers show ${this.section.dataset.folder} TRIAL`;
    const head = html("tr", {});
    for (const name of columns) {
      const cell = html("th", { scope: "col", class: "text" }, head);
      const button = html("button", { type: "button" }, cell, name);
      if (name === this.sort) cell.setAttribute("aria-sort", this.descending ? "descending" : "ascending");
      button.addEventListener("click", () => {
        this.descending = this.sort === name && !this.descending;
        this.sort = name;
        this.load();
      });
    }
    this.table.tHead.replaceChildren(head);
    this.table.tBodies[0].replaceChildren(...rows.map((cells) => {
      const row = html("tr", {});
      cells.forEach((text, index) => html(index ? "td" : "th", index ? { class: "text" } : { scope: "row", class: "id" }, row, text));
      return row;
    }));
  }
}
