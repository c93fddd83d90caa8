// SPDX-License-Identifier: Apache-2.0
// What the controls do, and what is selected.

const state = { view: "kernels", folded: repeats.length > 0, selected: {} };

// The node that stands for a kernel or an operator on the canvas.
function nodeFor({ kernel, operator }) {
  const fold = folding(state.folded);
  if (state.view === "kernels") {
    const k = kernel !== undefined ? kernel : homes[operator];
    return k === undefined ? null : drawn.nodes.find((n) => n.kernel === fold.shownAs[k]);
  }
  if (operator !== undefined) return drawn.nodes.find((n) => n.operator === operator);
  return drawn.frames.find((f) => f.kernel === fold.shownAs[kernel]);
}

function select(what, move = false) {
  state.selected = what;
  const kernel = what.kernel !== undefined ? what.kernel : what.operator !== undefined ? homes[what.operator] : undefined;
  const chosen = new Set(what.edges || []);
  world.selectAll(".card").classed("selected", (n) => n.kernel === kernel);
  world.selectAll(".frame.kernel").classed("selected", (f) => f.kernel === kernel);
  world.selectAll(".pill").classed("selected", (n) => n.operator === what.operator);
  world.selectAll(".link").classed("selected", (e) => e.edges.some((i) => chosen.has(i)));
  const touches = (e) => e.edges.some((i) => edges[i].producer === kernel || edges[i].consumer === kernel);
  world.selectAll(".link").classed("near", (e) => kernel !== undefined && touches(e));
  showPanel(what);
  const node = move ? nodeFor(what) : null;
  if (node) centre(node.x, node.y);
}

function redraw() {
  const busy = document.getElementById("busy");
  busy.hidden = false;
  // Layout blocks the page: the note has a frame's time to be painted first.
  setTimeout(() => {
    draw(state.view, state.folded);
    select(state.selected);
    busy.hidden = true;
    document.body.dataset.ready = `${state.view} ${state.folded}`;
  }, 30);
}

function find(text) {
  const wanted = text.trim().toLowerCase();
  const hits = (words) => wanted !== "" && words.some((w) => w.toLowerCase().includes(wanted));
  const ofOperator = (o) => [o.source, o.name, o.operator];
  const found = new Set(operators.flatMap((o, i) => (hits(ofOperator(o)) ? [i] : [])));
  const inKernel = (k) => hits([k.function]) || k.operators.some((o) => found.has(o));
  world.selectAll(".card").classed("dimmed", (n) => wanted !== "" && !inKernel(kernels[n.kernel]));
  world.selectAll(".pill").classed("dimmed", (n) => wanted !== "" && !found.has(n.operator));
  return { operator: [...found][0], kernel: kernels.findIndex((k) => hits([k.function])) };
}

document.getElementById("search").addEventListener("input", (event) => find(event.target.value));
document.getElementById("search").addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  const { operator, kernel } = find(event.target.value);
  if (operator !== undefined) select(state.view === "kernels" && homes[operator] !== undefined ? { kernel: homes[operator] } : { operator }, true);
  else if (kernel >= 0) select({ kernel }, true);
});
document.querySelectorAll("[data-view]").forEach((button) =>
  button.addEventListener("click", () => {
    state.view = button.dataset.view;
    document.querySelectorAll("[data-view]").forEach((b) => b.setAttribute("aria-pressed", String(b === button)));
    redraw();
  }),
);
document.getElementById("fold").addEventListener("change", (event) => {
  state.folded = event.target.checked;
  redraw();
});
document.querySelectorAll("[data-zoom]").forEach((button) =>
  button.addEventListener("click", () => {
    if (button.dataset.zoom === "fit") fit(true);
    else svg.call(zoom.scaleBy, button.dataset.zoom === "in" ? 1.35 : 1 / 1.35);
  }),
);
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = root.dataset.theme || (dark ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape") select({});
});
svg.on("click", (event) => {
  if (event.target === svg.node()) select({});
});

function start() {
  const names = [...new Set(operators.map((o) => o.source || o.name))].slice(0, 500);
  d3.select("#names").selectAll("option").data(names).join("option").attr("value", (n) => n);
  d3.select("#chips").selectAll("span").data([data.target, data.device].filter((t) => t)).join("span").text((t) => t);
  d3.select("#fold-label").property("hidden", repeats.length === 0);
  d3.selectAll("[data-view=operators]").property("hidden", operators.length === 0);
  drawLegend();
  showPanel({});
  redraw();
}

start();
