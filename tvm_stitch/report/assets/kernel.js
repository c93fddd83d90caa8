// SPDX-License-Identifier: Apache-2.0
// The panel of one kernel: where it comes from, how it runs, what it moves, and its code.

const SCHEMES = {
  Independent: "written out; nothing in the kernel reads it",
  Local: "in registers",
  Regional: "in the block: shuffles and shared memory",
  Cluster: "in the shared memory of a cluster of blocks",
  Global: "through device memory, behind a barrier of the grid",
};

function kernelPanel(index) {
  const k = kernels[index];
  const plan = data.plans[k.function];
  const head = add(panel, "div", `kernel-head ${colourClass(k)}`);
  add(head, "span", "badge", KINDS[k.kind]);
  add(head, "h2", "", computes(k));
  add(head, "p", "from", origin(k));
  add(head, "code", "", k.function);
  const calls = callsOf.get(k.function);
  if (calls.length > 1) add(head, "p", "note", `Call ${calls.indexOf(index) + 1} of ${calls.length} equal ones`);
  if (k.note) add(panel, "p", "computed", k.kind === "tvm" ? k.note : `Computed by ${k.note}`);

  memory(k, plan);
  if (plan) runs(plan);
  if (k.operators.length) inside(k);
  if (plan) groups(plan);
  touching(index);
  const values = section("Reads and writes");
  k.operands.forEach((v) => valueRow(values, v));
  if (k.results.length) add(values, "p", "down", "↓");
  k.results.forEach((v) => valueRow(values, v));
  if (!k.operands.length && !k.results.length) values.remove();
  code(k);
}

function memory(k, plan) {
  const part = section("Memory");
  const least = k.bytes_least;
  if (plan && typeof k.bytes_read === "number" && typeof least === "number") {
    const whole = k.bytes_read + k.bytes_written;
    const track = add(part, "div", "track wide");
    const most = Math.max(whole, least, 1);
    add(track, "span", "fill read").style("width", `${(k.bytes_read / most) * 100}%`);
    add(track, "span", "fill written").style("width", `${(k.bytes_written / most) * 100}%`);
    add(track, "span", "mark").style("left", `${(least / most) * 100}%`);
    keyOf(part, [["read", `${bytes(k.bytes_read)} read`], ["written", `${bytes(k.bytes_written)} written`]]);
    const more = whole - least;
    const told = Math.abs(more) < 0.005 * least ? "as little as possible" : more > 0 ? `${bytes(more)} more than the least` : "less than every operand once";
    add(part, "p", "note", `${told}: every operand and every result once is ${bytes(least)}`);
  } else {
    const rest = plan ? [["read", bytes(k.bytes_read)], ["written", bytes(k.bytes_written)]] : [];
    facts(part, [...rest, ["operands and results", bytes(least)]]);
  }
  facts(part, [
    ["measured time", k.measured ? spread(k.measured) : ""],
    ["estimated time", k.seconds === null ? "" : `at least ${duration(k.seconds)}, by bytes and launches`],
    ["shared memory", plan && plan.shared_bytes ? `${bytes(plan.shared_bytes)} a block` : ""],
  ]);
}

const told = (value) =>
  typeof value === "object" && value !== null
    ? Object.entries(value).map(([name, v]) => `${name}: ${v}`).join("; ")
    : value === true ? "yes" : value === false ? "no" : String(value);

function runs(plan) {
  const part = section("How it runs");
  const rows = plan.rows === "flat" ? "every element on its own" : plan.rows === "grid-wide" ? "in phases of the whole grid" : `${plan.rows} rows`;
  facts(part, [["iterates", rows], ...Object.entries(plan.mapping).map(([n, v]) => [n, told(v)])]);
  if (Object.keys(plan.launch).length) facts(part, Object.entries(plan.launch));
  passes(part, plan.passes);
  plan.phases.forEach((phase) => {
    add(part, "h4", "", `Phase ${phase.phase}`);
    phase.stages.forEach((p) => {
      const lists = ["hoists", "computes", "reduces_across_rows", "finishes", "stores", "retains", "finds"];
      facts(part, [["rows", p.rows], ...lists.map((name) => [name, p[name].join(", ")])]);
      facts(part, [["read", bytes(p.bytes_read)], ["written", bytes(p.bytes_written)]]);
      passes(part, p.passes);
    });
  });
  plan.scratch.forEach((s) => facts(part, [[s.name, `${bytes(s.bytes)} of device memory ${s.holds.length ? `for ${s.holds.join(", then ")}` : ""}`]]));
}

function passes(part, found) {
  if (!found.length) return;
  const list = add(part, "ol", "passes");
  found.forEach((p) => {
    const words = [`${p.columns} columns`];
    if (p.reduces.length) words.push(`reducing ${p.reduces.join(", ")}`);
    if (p.reduces_across_rows.length) words.push(`reducing across rows ${p.reduces_across_rows.join(", ")}`);
    if (p.keeps.length) words.push(`keeping ${p.keeps.join(", ")}`);
    add(list, "li", "", words.join(", "));
  });
}

// The kernel's source operators, as a small graph and as a list.
function inside(k) {
  const part = section(`From the model: ${k.operators.length} ${k.operators.length === 1 ? "operator" : "operators"}`);
  if (k.operators.length > 1 && k.operators.length <= 60) miniature(part, k);
  k.operators.forEach((i) => {
    const o = operators[i];
    const item = row(part, "", { operator: i });
    const text = add(item, "span", "row-text");
    add(text, "span", "row-name", labelOf(o));
    add(text, "span", "row-from", `${simple(o.operator)} · ${o.name} · ${o.dtype} [${o.shape}]`);
  });
}

function miniature(part, k) {
  const inKernel = new Set(k.operators);
  const width = (o) => Math.min(PILL.most, Math.round(simple(operators[o].operator).length * PILL.letter) + 26);
  const nodes = k.operators.map((o) => ({ key: `o${o}`, operator: o, width: width(o), height: PILL.height, frame: null }));
  const pairs = k.operators.flatMap((o) => [...new Set(operators[o].operands)].filter((p) => inKernel.has(p)).map((p) => [p, o]));
  const scene = laidOut({ nodes, frames: [], links: pairs.map(([p, o]) => ({ from: `o${p}`, to: `o${o}`, edges: [] })) });
  const height = Math.min(320, (scene.height * 360) / Math.max(scene.width, 360));
  const small = add(part, "svg", "miniature").attr("viewBox", `0 0 ${scene.width} ${scene.height}`).attr("height", height);
  drawInto(small.append("g"), scene);
}

function groups(plan) {
  const part = section("Groups and schemes");
  plan.groups.forEach((g) => {
    const sub = g.sub_dominants.length ? `; sub-dominant ${g.sub_dominants.join(", ")}` : "";
    const when = plan.phases.length ? `; phase ${g.phase}` : "";
    add(part, "p", "group", `${g.dominant}${sub}${when}`).append("span").attr("class", "members").text(g.members.join(", "));
  });
  const table = add(part, "table");
  plan.operators.forEach((o) => {
    const line = add(table, "tr");
    add(line, "td", "mono", o.operator.split(" = ").pop()).attr("title", o.operator);
    add(line, "td", "", o.class);
    add(add(line, "td"), "span", `scheme ${o.scheme}`, o.scheme).attr("title", SCHEMES[o.scheme] || "");
  });
}

function touching(index) {
  const found = edges.flatMap((e, i) => (e.producer === index || e.consumer === index ? [i] : []));
  if (!found.length) return;
  const list = section("Why it ends there");
  found.forEach((i) => {
    const e = edges[i];
    const other = kernels[e.producer === index ? e.consumer : e.producer];
    const item = row(list, colourClass(other), { edges: [i] });
    add(item, "span", "arrow", e.producer === index ? "↓" : "↑");
    const text = add(item, "span", "row-text");
    add(text, "span", "row-name", computes(other));
    add(text, "span", "row-from", e.reasons.length ? e.reasons[0].text : "no merge was tried");
  });
}

function code(k) {
  const found = data.codes[k.function];
  if (!found) return;
  const part = section(`Code: ${found.language}`);
  const details = add(part, "details");
  add(details, "summary", "", `${found.text.split("\n").length} lines`);
  add(details, "pre", "", found.text).attr("tabindex", 0); // a keyboard scrolls it
}

function drawLegend() {
  const legend = d3.select("#legend");
  const kinds = Object.keys(KINDS).filter((kind) => kernels.some((k) => k.kind === kind));
  kinds.forEach((kind) => {
    const item = add(legend, "span", "item");
    const hues = kind === "stitched" ? [...new Set(hueOf.values())].slice(0, 4).map((h) => `hue${h}`) : [`kind-${kind}`];
    hues.forEach((h) => add(item, "span", `dot ${h}`));
    add(item, "span", "", kind === "stitched" && hues.length > 1 ? "Stitched kernels, a colour each" : KINDS[kind]);
  });
  const edge = (className, text) => {
    const item = add(legend, "span", "item");
    add(item, "span", `line ${className}`);
    add(item, "span", "", text);
  };
  if (edges.length) edge("", "Through memory (click: why)");
  if (edges.some(isActionable)) edge("actionable", "Something can be done about it");
}
