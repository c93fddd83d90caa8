// SPDX-License-Identifier: Apache-2.0
// The panel: the whole model, or what is selected. Every text from the model is set as text, never as HTML.

const panel = d3.select("#panel");

function add(parent, tag, className, text) {
  const made = parent.append(tag);
  if (className) made.attr("class", className);
  if (text !== undefined) made.text(text);
  return made;
}

function section(title, parent = panel) {
  const made = add(parent, "section");
  add(made, "h3", "", title);
  return made;
}

function facts(parent, pairs) {
  const list = add(parent, "dl");
  pairs.forEach(([name, value]) => {
    if (value === "" || value === undefined || value === null) return;
    add(list, "dt", "", name);
    add(list, "dd", "", String(value));
  });
}

// A row that selects something.
function row(parent, className, what) {
  return add(parent, "button", `row ${className}`).attr("type", "button").on("click", () => select(what, true));
}

function showPanel(what) {
  panel.selectAll("*").remove();
  panel.node().scrollTop = 0;
  const selected = what.kernel !== undefined || what.edges !== undefined || what.operator !== undefined;
  panel.classed("open", selected);
  if (selected) add(panel, "button", "back", "← The whole model").attr("type", "button").on("click", () => select({}));
  if (what.kernel !== undefined) kernelPanel(what.kernel);
  else if (what.edges !== undefined) edgePanel(what.edges);
  else if (what.operator !== undefined) operatorPanel(what.operator);
  else overview();
}

// -- the whole model -----------------------------------------------------------------------------------------------
function overview() {
  add(panel, "h2", "", "The whole model");
  const comparison = section("TVM’s own pipeline beside stitching");
  const { stock, stitched } = data;
  const callers = new Set(kernels.map((k) => k.caller)).size;
  bars(comparison, callers > 1 ? `Kernels in all ${callers} functions` : "Kernels a call", stock, stitched, (t) => t.kernels, (t) => t.compute, String, "fewer");
  bars(comparison, "Bytes moved", stock, stitched, (t) => t.bytes, (t) => t.bytes_compute, bytes, "less");
  times(comparison);
  keyOf(comparison, [["compute", "with a matrix product, convolution or attention"], ["memory", "memory-intensive"]]);
  if (!stock) add(comparison, "p", "note", "What TVM’s own pipeline makes of the model is not known.");

  Object.entries(KINDS).forEach(([kind, title]) => {
    const functions = [...callsOf].filter(([, calls]) => kernels[calls[0]].kind === kind);
    if (!functions.length) return;
    const total = functions.reduce((sum, [, calls]) => sum + calls.length, 0);
    const list = section(`${title} · ${total} ${total === 1 ? "call" : "calls"}, ${functions.length} different`);
    captions(list);
    functions.forEach(([, calls]) => kernelRow(list, calls[0], calls.length, calls));
  });

  const left = Object.entries(data.left);
  if (left.length) {
    const list = section("No stitch op takes");
    left.forEach(([name, reason]) => {
      const item = add(list, "div", "reason");
      add(item, "strong", "", name);
      add(item, "p", "", reason);
    });
  }
  boundaries();
  stockSection();
}

// The time of a call, in kernels and in all; of the cost model where nothing was measured.
function times(parent) {
  const found = timesOf(kernels);
  if (found.whole === null) return;
  const stock = stockKernels.length ? timesOf(stockKernels) : null;
  const title = data.measured_on ? "Time in kernels, measured" : "Time in kernels, at least: bytes and launches";
  bars(parent, title, stock, found, (t) => t.whole, (t) => t.compute, duration, "less");
  if (!data.measured_on) return;
  const pairs = [["TVM", data.stock], ["stitched", data.stitched]].filter(([, t]) => t && t.measured);
  facts(parent, [...pairs.map(([name, t]) => [`${name}, whole call`, spread(t.measured)]), ["measured on", data.measured_on]]);
}

// TVM's own kernels, equal ones once, those that take longest first.
function stockSection() {
  if (!stockKernels.length) return;
  const groups = equalOnes(stockKernels);
  const total = (calls) => timesOf(calls).whole;
  const list = add(section(`TVM’s own kernels · ${stockKernels.length} calls, ${groups.size} different`), "details");
  add(list, "summary", "", data.measured_on ? "by measured time" : "by least time");
  [...groups.values()]
    .sort((a, b) => (total(b) || 0) - (total(a) || 0))
    .forEach((calls) => {
      const line = add(list, "div", "value");
      const text = add(line, "span", "row-text");
      add(text, "span", "value-name", calls[0].function);
      timeBar(text, total(calls), longestOf(stockKernels));
      add(line, "span", "row-value", calls.length > 1 ? `${calls.length} ×` : "");
      add(line, "span", "row-value bytes", duration(total(calls)));
    });
}

function keyOf(parent, pairs) {
  const key = add(parent, "p", "key");
  pairs.forEach(([name, text]) => {
    const item = add(key, "span");
    add(item, "span", `swatch ${name}`);
    add(item, "span", "", text);
  });
}

function bars(parent, title, stock, stitched, whole, part, told, fewer) {
  const group = add(parent, "div", "bars");
  add(group, "h4", "", title);
  const rows = [["TVM", stock], ["stitched", stitched]].filter(([, t]) => t);
  const numbers = rows.map(([, t]) => whole(t)).filter((n) => typeof n === "number");
  const most = Math.max(...numbers) || 1;
  rows.forEach(([name, totals]) => {
    const line = add(group, "div", "bar");
    add(line, "span", "bar-name", name);
    const track = add(line, "span", "track");
    if (typeof whole(totals) === "number") {
      const compute = typeof part(totals) === "number" ? part(totals) : 0;
      add(track, "span", "fill compute").style("width", `${(compute / most) * 100}%`);
      add(track, "span", "fill memory").style("width", `${((whole(totals) - compute) / most) * 100}%`);
    }
    add(line, "span", "bar-value", told(whole(totals)));
  });
  if (numbers.length === 2 && numbers[0] > numbers[1]) {
    add(group, "p", "saved", `${Math.round((1 - numbers[1] / numbers[0]) * 100)} % ${fewer}`);
  }
}

// What the columns of kernel rows are.
function captions(parent) {
  const line = add(parent, "div", "captions");
  add(line, "span", "row-text", "");
  add(line, "span", "row-value bytes", "bytes, each");
  if (longest) add(line, "span", "row-value time", data.measured_on ? "time, all" : "at least, all");
}

// A time as a bar; the longest of its pipeline fills it.
function timeBar(parent, seconds, most) {
  if (!most || seconds === null) return;
  add(add(parent, "span", "time-bar"), "span", "").style("width", `${(seconds / most) * 100}%`);
}

// A kernel that is called so often; with its calls, what they take together.
function kernelRow(parent, index, count, calls = null) {
  const k = kernels[index];
  const item = row(parent, colourClass(k), { kernel: index });
  add(item, "span", "dot");
  const text = add(item, "span", "row-text");
  add(text, "span", "row-name", computes(k));
  add(text, "span", "row-from", origin(k) || k.function);
  const time = calls ? timesOf(calls.map((c) => kernels[c])).whole : null;
  timeBar(text, time, longest);
  add(item, "span", "row-value", count > 1 ? `${count} ×` : "");
  add(item, "span", "row-value bytes", bytes(moved(k)));
  if (calls && longest) add(item, "span", "row-value time", duration(time));
}

function boundaries() {
  const groups = new Map();
  edges.forEach((edge, i) =>
    edge.reasons.forEach((r) => {
      const key = r.text.replace(/\d+(\.\d+)?/g, "N");
      if (!groups.has(key)) groups.set(key, { reason: r, edges: [] });
      const group = groups.get(key);
      if (group.edges[group.edges.length - 1] !== i) group.edges.push(i);
    }),
  );
  if (!groups.size) return;
  const list = section("Why kernels end, by reason");
  [...groups.values()]
    .sort((a, b) => b.edges.length - a.edges.length)
    .forEach(({ reason, edges: found }) => {
      const item = row(list, "boundary", { edges: found });
      add(item, "span", "row-value", `${found.length} ×`);
      const text = add(item, "span", "row-text");
      add(text, "span", "row-name", reason.text);
      if (reason.advice) add(text, "span", "row-from", reason.advice);
    });
}

// -- an edge -------------------------------------------------------------------------------------------------------
function edgePanel(found) {
  const first = edges[found[0]];
  const [a, b] = [kernels[first.producer], kernels[first.consumer]];
  add(panel, "h2", "", "Why two kernels");
  if (found.length > 1) add(panel, "p", "note", `This stands for ${found.length} edges; the first of them:`);
  const ends = add(panel, "div", "ends");
  kernelRow(ends, first.producer, 1);
  add(ends, "span", "down", "↓");
  kernelRow(ends, first.consumer, 1);
  const reasons = new Map();
  found.forEach((i) => edges[i].reasons.forEach((r) => reasons.set(r.text, r)));
  if (!reasons.size) add(panel, "p", "note", "They do not have to be one: no merge of these two was tried.");
  [...reasons.values()].slice(0, 12).forEach((r) => reasonCard(panel, r));
  const values = section("What goes from one to the other through memory");
  first.values.forEach((v) => valueRow(values, v));
  facts(section("The kernels"), [["from", a.function], ["to", b.function]]);
}

function reasonCard(parent, r) {
  const card = add(parent, "div", "reason");
  add(card, "p", "pair", `${r.producer} → ${r.consumer}`);
  add(card, "p", "why", r.text);
  if (r.meaning) add(card, "p", "", r.meaning);
  if (r.advice) {
    const advice = add(card, "p", r.advice.startsWith("Nothing") ? "advice none" : "advice");
    add(advice, "strong", "", "What to do: ");
    advice.append("span").text(r.advice);
  }
}

function valueRow(parent, v) {
  const line = add(parent, "div", "value");
  add(line, "span", "value-name", v.name);
  add(line, "span", "value-type", `${v.dtype} [${v.shape}]${v.origin === "kernel" ? "" : ` · ${v.origin}`}`);
  add(line, "span", "row-value bytes", bytes(v.bytes));
}

// -- an operator -----------------------------------------------------------------------------------------------------
function operatorPanel(index) {
  const o = operators[index];
  add(panel, "h2", "", labelOf(o));
  facts(section("Operator"), [["operator", o.operator], ["variable", o.name], ["result", `${o.dtype} [${o.shape}]`]]);
  const list = section(o.kernels.length > 1 ? "Computed again in each of" : "Computed in");
  o.kernels.forEach((k) => kernelRow(list, k, 1));
  if (!o.kernels.length) add(list, "p", "note", "No kernel: a view of its operand, or nothing that is needed.");
}
