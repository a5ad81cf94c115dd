// Helpers shared by charts, layer diagrams and tables: DOM nodes, themes, controls, tooltips, downloads.
"use strict";

const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
const SVG = "http://www.w3.org/2000/svg";
const dataOf = (document) => JSON.parse(document.getElementById("data").textContent);

// Text is inserted only as text content: nothing from the data is parsed as markup.
function make(space, name, attributes, parent, text) {
  const node = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}
const svg = (name, attributes, parent, text) => make(SVG, name, attributes, parent, text);
const html = (name, attributes, parent, text) => make(null, name, attributes, parent, text);

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const printing = matchMedia("print");
function isDark() {
  if (printing.matches) return false;
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : prefersDark.matches;
}

const minus = (text) => text.replace("-", "\u2212");
const measureContext = document.createElement("canvas").getContext("2d");
function textWidth(text, size) {
  measureContext.font = `${size}px ${FONT}`;
  return measureContext.measureText(text).width;
}

// A group of checkboxes; calls `change(value, checked)`.
function checkboxes(parent, label, values, isOn, change) {
  const group = html("fieldset", {}, parent);
  html("legend", {}, group, label);
  for (const value of values) {
    const line = html("label", {}, group);
    const box = html("input", { type: "checkbox" }, line);
    box.checked = isOn(value);
    box.addEventListener("change", () => change(value, box.checked));
    line.append(value);
  }
}

function dropdown(parent, label, values, current, change) {
  const line = html("label", {}, parent);
  html("span", {}, line, label);
  const box = html("select", {}, line);
  values.forEach((value, index) => html("option", { value: index, selected: index === current }, box, value));
  box.addEventListener("change", () => change(Number(box.value)));
}

class Tooltip {
  constructor(figure) {
    this.figure = figure;
    this.node = html("div", { class: "tooltip", role: "status", hidden: true }, figure);
  }
  show(title, lines, clientX, clientY) {
    this.node.replaceChildren();
    html("strong", {}, this.node, title);
    for (const line of lines) html("div", {}, this.node, line);
    this.node.hidden = false;
    const around = this.figure.getBoundingClientRect();
    const x = clientX - around.left, y = clientY - around.top, width = this.node.offsetWidth;
    this.node.style.left = `${Math.max(4, Math.min(x - width / 2, around.width - width - 4))}px`;
    const above = y - this.node.offsetHeight - 14;
    this.node.style.top = `${above > 0 ? above : y + 18}px`;
  }
  hide() { this.node.hidden = true; }
}
// On touch screens a tooltip stays until the user taps elsewhere.
document.addEventListener("pointerdown", (event) => {
  for (const tooltip of document.querySelectorAll(".tooltip")) if (!tooltip.parentNode.contains(event.target)) tooltip.hidden = true;
});
const isTouch = (event) => event.pointerType === "touch";

// Spreadsheets would interpret such text as a formula: a leading quote prevents that.
function field(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const safe = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
const csv = (rows) => rows.map((row) => row.map(field).join(",")).join("\r\n") + "\r\n";

function download(name, content, type) {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = html("a", { href: address, download: name }, document.body);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

const svgText = (node) => new XMLSerializer().serializeToString(node);

function downloadPng(name, node) {
  const width = Number(node.getAttribute("width")), height = Number(node.getAttribute("height"));
  const image = new Image();
  image.onload = () => {
    const canvas = html("canvas", { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => download(name, blob));
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(node))}`;
}

function downloadButtons(parent, named) {
  const line = html("div", { class: "downloads" }, parent);
  for (const [text, action] of named) {
    html("button", { type: "button" }, line, text).addEventListener("click", action);
  }
}
