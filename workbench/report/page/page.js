"use strict";
// The page is whole without this script: it shows one stage at a time, and makes its map one to zoom and point into.
const data = JSON.parse(document.getElementById("data").textContent);
const FIELDS = ["actual", "expected", "error", "budget", "over"];

// --- numbers, as Python writes them

/** `x` with so many significant digits, as Python's format "g" writes it. */
function general(x, digits) {
  if (Number.isNaN(x)) return "nan";
  if (!Number.isFinite(x)) return x > 0 ? "inf" : "-inf";
  if (x === 0) return Object.is(x, -0) ? "-0" : "0";
  const [mantissa, power] = x.toExponential(digits - 1).split("e");
  const trimmed = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  const n = Number(power);
  if (n >= -4 && n < digits) return trimmed(x.toFixed(digits - 1 - n));
  return `${trimmed(mantissa)}e${n < 0 ? "-" : "+"}${String(Math.abs(n)).padStart(2, "0")}`;
}

const number = (x) => (Number.isNaN(x) ? "-" : general(x, 3));

/** error / budget: near 1 as many digits as tell it from 1. */
function ratio(x) {
  if (Number.isNaN(x)) return "-";
  for (let digits = 3; digits < 10; digits++) if (general(x, digits) !== "1") return general(x, digits);
  return "1";
}

// --- maps

const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

/** The arrays of a level: shade, row and column of the worst element within its cell, and its numbers. */
async function unpacked(level) {
  const stream = new Blob([bytes(level.values)]).stream().pipeThrough(new DecompressionStream("deflate"));
  const packed = new Uint8Array(await new Response(stream).arrayBuffer());
  const count = level.height * level.width;
  let at = 0;
  const array = (kind) => {
    const size = kind.BYTES_PER_ELEMENT;
    const whole = new Uint8Array(count * size);
    for (let part = 0; part < size; part++) for (let i = 0; i < count; i++) whole[i * size + part] = packed[at++];
    return new kind(whole.buffer);
  };
  const found = { ...level, shade: array(Int16Array), down: array(Uint16Array), right: array(Uint16Array) };
  for (const field of FIELDS) found[field] = array(Float32Array);
  return found;
}

const rgb = bytes(data.palette ?? "");
const colour = (shade) => `rgb(${rgb[3 * shade]} ${rgb[3 * shade + 1]} ${rgb[3 * shade + 2]})`;
const verdict = (shade) => data.verdicts.findLast(([first]) => first <= shade)[1];

function made(tag, properties = {}, ...children) {
  const found = Object.assign(document.createElement(tag), properties);
  found.append(...children);
  return found;
}

/** Makes the picture of a panel a map to zoom into: the stage, a tile, an element. */
async function interactive(panel, name, map) {
  const levels = await Promise.all(map.levels.map(unpacked));
  const plot = panel.querySelector(".plot");
  const picture = plot.querySelector("svg");
  const canvas = made("canvas", { tabIndex: 0, title: "click or Enter: nearer; Escape: back; arrows: move" });
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", picture.getAttribute("aria-label"));
  const way = made("div", { className: "way" });
  const read = made("table", { className: "read" });
  read.setAttribute("aria-live", "polite");
  plot.replaceChildren(canvas);
  plot.before(way);
  plot.after(read);
  const whole = [0, map.edges[0].at(-1), 0, map.edges[1].at(-1)];
  let view = whole; // rows from, to, columns from, to, as places in the plane
  let at = map.worst ? map.worst.map((i, side) => i - map.first[side]) : [0, 0];
  let pinned = false;

  const level = () =>
    levels.slice(1).find((one) => one.row === view[0] && one.column === view[2] && view !== whole &&
      one.row + one.height === view[1] && one.column + one.width === view[3]) ?? levels[0];

  /** The cell of a level that holds a place of the plane, and the place of its worst element. */
  function cellAt([row, column], from = level()) {
    const i = Math.floor((row - from.row) / from.steps[0]);
    const j = Math.floor((column - from.column) / from.steps[1]);
    const cell = i * from.width + j;
    const top = from.row + i * from.steps[0];
    const left = from.column + j * from.steps[1];
    return { cell, top, left, worst: [top + from.down[cell], left + from.right[cell]] };
  }

  function words(place) {
    const index = { ...map.fixed };
    map.axes.forEach((axis, side) => { if (axis) index[axis] = place[side] + map.first[side]; });
    return index;
  }

  const said = (index) => "bhsqtkdgc".split("").filter((axis) => axis in index).map((axis) => `${axis}=${index[axis]}`).join(" ");

  function range(side) {
    const [from, to] = [view[2 * side], view[2 * side + 1]].map((i) => i + map.first[side]);
    return map.axes[side] ? ` ${map.axes[side]}=${from}..${to - 1}` : "";
  }

  function readOut() {
    const shown = level();
    const { cell, worst } = cellAt(at, shown);
    const index = words(worst);
    const key = map.order.map((axis) => index[axis]).join(" ");
    const own = FIELDS.map((field) => shown[field][cell]);
    const cells = map.exact[key] ??
      [general(own[0], 6), general(own[1], 6), number(own[2]), number(own[3]), ratio(own[4]), verdict(shown.shade[cell])];
    const many = shown.steps[0] * shown.steps[1] > 1 ? `, the worst of ${shown.steps.join(" x ")} elements` : "";
    const rows = ["actual", "expected", "error", "budget", "error / budget", "verdict"].map((heading, i) =>
      made("tr", {}, made("th", { scope: "row", textContent: heading }), made("td", { textContent: cells[i] })));
    read.replaceChildren(made("caption", { textContent: said(index) + many }), made("tbody", {}, ...rows));
  }

  function draw() {
    const shown = level();
    const [rows, columns] = [view[1] - view[0], view[3] - view[2]];
    const wide = Math.max(plot.clientWidth, 1);
    const high = Math.round(wide * Math.min(1, Math.max(rows / columns, map.flattest)));
    const density = window.devicePixelRatio || 1;
    [canvas.width, canvas.height] = [wide * density, high * density];
    canvas.style.height = `${high}px`;
    const brush = canvas.getContext("2d");
    const [x, y] = [(wide * density) / columns, (high * density) / rows];
    const rect = (top, left, down, across) => [(left - view[2]) * x, (top - view[0]) * y, across * x, down * y];
    const fill = (i, j) => {
      brush.fillStyle = colour(shown.shade[i * shown.width + j]);
      const [a, b, c, d] = rect(shown.row + i * shown.steps[0], shown.column + j * shown.steps[1], ...shown.steps);
      brush.fillRect(Math.floor(a), Math.floor(b), Math.ceil(a + c) - Math.floor(a), Math.ceil(b + d) - Math.floor(b));
    };
    for (let i = 0; i < shown.height; i++) for (let j = 0; j < shown.width; j++) fill(i, j);
    brush.strokeStyle = "rgb(106 115 125 / 0.45)";
    brush.lineWidth = density;
    brush.beginPath();
    for (const edge of map.edges[0]) { brush.moveTo(0, (edge - view[0]) * y); brush.lineTo(wide * density, (edge - view[0]) * y); }
    for (const edge of map.edges[1]) { brush.moveTo((edge - view[2]) * x, 0); brush.lineTo((edge - view[2]) * x, high * density); }
    brush.stroke();
    const { cell, top, left } = cellAt(at, shown);
    if (cell >= 0) {
      for (const [style, width] of [["white", 4], ["black", 1.6]]) {
        [brush.strokeStyle, brush.lineWidth] = [style, width * density];
        brush.strokeRect(...rect(top, left, ...shown.steps));
      }
    }
    canvas.classList.toggle("deepest", view !== whole);
    const steps = [view === whole ? made("span", { textContent: name }) : made("button", { type: "button", textContent: name, onclick: () => back(true) })];
    if (view !== whole) {
      const tile = `tile${range(0)}${range(1)}`;
      steps.push(pinned ? made("button", { type: "button", textContent: tile, onclick: () => back(false) }) : made("span", { textContent: tile }));
    }
    if (pinned) steps.push(made("span", { textContent: "element" }));
    way.replaceChildren(...steps);
    readOut();
  }

  /** From the stage to the tile that holds the place, from there to the element. */
  function nearer() {
    if (view === whole) {
      at = cellAt(at).worst;
      const sides = map.edges.map((edges, side) => edges.findLastIndex((edge) => edge <= at[side]));
      view = sides.flatMap((i, side) => [map.edges[side][i], map.edges[side][i + 1]]);
    } else pinned = !pinned;
    draw();
  }

  function back(toStage) {
    if (pinned && !toStage) pinned = false;
    else [view, pinned] = [whole, false];
    draw();
  }

  function pointed(event) {
    const box = canvas.getBoundingClientRect();
    const share = [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width];
    return share.map((part, side) => {
      const [from, to] = [view[2 * side], view[2 * side + 1]];
      return Math.min(to - 1, Math.max(from, Math.floor(from + part * (to - from))));
    });
  }

  canvas.addEventListener("mousemove", (event) => { if (!pinned) { at = pointed(event); draw(); } });
  canvas.addEventListener("click", (event) => { at = pointed(event); nearer(); });
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (event.key in moves) {
      const steps = level().steps;
      at = at.map((i, side) => Math.min(view[2 * side + 1] - 1, Math.max(view[2 * side], i + moves[event.key][side] * steps[side])));
      pinned = false;
      draw();
    } else if (event.key === "Enter") nearer();
    else if (event.key === "Escape") back(false);
    else return;
    event.preventDefault();
  });
  new ResizeObserver(draw).observe(plot);
  draw();
}

// --- stages

const panels = [...document.querySelectorAll(".panel")];
const links = [...document.querySelectorAll(".graph a")];
const ready = new Set();

function choose(name) {
  for (const panel of panels) {
    const shown = panel.dataset.stage === name;
    panel.classList.toggle("shown", shown);
    if (shown) {
      panel.querySelector("details").open = true;
      if (name in data.maps && !ready.has(name)) {
        ready.add(name);
        interactive(panel, name, data.maps[name]);
      }
    }
  }
  for (const link of links) {
    link.classList.toggle("chosen", link.dataset.stage === name);
    if (link.dataset.stage === name) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
  for (const line of document.querySelectorAll(".graph .line")) {
    line.classList.toggle("near", line.dataset.from === name || line.dataset.to === name);
  }
}

if (panels.length) {
  document.documentElement.classList.add("js");
  for (const link of links) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      choose(link.dataset.stage);
      const panel = panels.find((one) => one.dataset.stage === link.dataset.stage);
      if (panel.getBoundingClientRect().top > window.innerHeight) panel.scrollIntoView();
    });
  }
  const asked = panels.find((panel) => `#${panel.id}` === location.hash);
  choose(asked ? asked.dataset.stage : data.chosen);
}

// --- what is to be copied, and what is printed

for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.previousElementSibling.textContent);
    button.textContent = "copied";
  });
}
document.documentElement.classList.add("js");
window.addEventListener("beforeprint", () => {
  for (const one of document.querySelectorAll("details")) one.open = true;
});
