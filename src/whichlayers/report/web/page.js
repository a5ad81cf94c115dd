// Sets up the page: charts, sortable tables, light and dark mode; on the page of `whichlayers watch` also live.js.
"use strict";

const states = new Map(); // state of the controls by chart key, kept across updates
let drawn = [];

function build() {
  const data = dataOf(document);
  drawn = [];
  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    const key = figure.dataset.chart;
    const chart = key === "layers" ? new LayerDiagrams(figure, data.layers, data.themes, states.get(key)) : new Chart(figure, data.charts[key], data.themes, states.get(key));
    states.set(key, chart.state);
    drawn.push(chart);
  }
  for (const table of document.querySelectorAll("table.sortable")) sortable(table);
  scrollHints();
}
// A table wider than the screen says so above it.
function scrollHints() {
  for (const box of document.querySelectorAll(".scroll:not([data-hinted])")) {
    box.dataset.hinted = "";
    const hint = html("p", { class: "scroll-hint screen-only", hidden: true }, null, "Scroll sideways for more columns \u2192");
    box.before(hint);
    new ResizeObserver(() => (hint.hidden = box.scrollWidth <= box.clientWidth + 1)).observe(box);
  }
}
const redraw = () => drawn.forEach((one) => one.draw(true));

// --- tables ---

function sortable(table) {
  const heads = [...table.tHead.querySelectorAll("th[scope=col]")]; // in column order, also with two header rows
  heads.forEach((head, column) => {
    if (!head.textContent.trim()) return;
    const button = html("button", { type: "button" }, null, head.textContent);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const upward = head.getAttribute("aria-sort") !== "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", upward ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows].map((row) => [row, sortKey(row.cells[column])]);
      rows.sort(([, a], [, b]) => compare(a, b, upward));
      table.tBodies[0].append(...rows.map(([row]) => row));
    });
  });
}
// Numbers numerically, text alphabetically, empty cells last in both directions.
function sortKey(cell) {
  const text = (cell.dataset.value ?? cell.firstChild?.textContent ?? "").trim().replace("\u2212", "-");
  const found = text.replaceAll(",", "").replace(/^</, "").match(/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?/);
  return text === "" ? null : found ? Number(found[0]) : text;
}
function compare(a, b, upward) {
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  return upward ? order : -order;
}

// --- light and dark ---

function themes() {
  const button = document.getElementById("theme");
  const storedTheme = (value) => {
    try {
      if (value !== undefined) localStorage.setItem("whichlayers-theme", value);
      return localStorage.getItem("whichlayers-theme");
    } catch {
      return null; // storage may not be available for a local file
    }
  };
  const apply = (name) => {
    if (name) document.documentElement.dataset.theme = name;
    button.textContent = isDark() ? "Light mode" : "Dark mode";
    redraw();
  };
  button.addEventListener("click", () => apply(storedTheme(isDark() ? "light" : "dark") || (isDark() ? "light" : "dark")));
  prefersDark.addEventListener("change", () => apply());
  printing.addEventListener("change", redraw);
  addEventListener("beforeprint", redraw);
  addEventListener("afterprint", redraw);
  apply(storedTheme());
}

build();
themes();
if (document.body.dataset.live !== undefined) live();
