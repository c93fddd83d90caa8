// SPDX-License-Identifier: Apache-2.0
// The graph: laid out by dagre, drawn as SVG, moved by d3-zoom.

const CARD = { width: 232, height: 60 };
const PILL = { height: 28, most: 190, letter: 6.9 };

// Frames around kernels make layout slow: a graph of more operators than this has colours only.
const MOST_FRAMED = 320;

const LEGEND_HEIGHT = 56;

const svg = d3.select("#canvas");
const world = svg.append("g").attr("class", "world");
// Below this a card's text cannot be read.
const LEAST_SCALE = 0.65;
const zoom = d3.zoom().scaleExtent([0.02, 3]).on("zoom", (event) => world.attr("transform", event.transform));
svg.call(zoom).on("dblclick.zoom", null);

let drawn = null; // what is on the canvas: nodes by key, edges, frames

// -- what to draw ------------------------------------------------------------------------------------------------
function kernelScene(folded) {
  const fold = folding(folded);
  const nodes = kernels.flatMap((k, i) => (fold.shownAs[i] === i ? [{ key: `k${i}`, kernel: i, ...CARD }] : []));
  nodes.forEach((n) => (n.frame = folded && fold.repeatOf[n.kernel] >= 0 ? `r${fold.repeatOf[n.kernel]}` : null));
  const links = shownEdges(fold, folded).map((e) => ({ from: `k${e.from}`, to: `k${e.to}`, edges: e.edges }));
  return { nodes, links, frames: repeatFrames(nodes) };
}

function repeatFrames(nodes) {
  return [...new Set(nodes.map((n) => n.frame).filter((f) => f))].map((key) => {
    const r = repeats[Number(key.slice(1))];
    return { key, className: "repeat", text: `${r.count} × these ${r.length} kernels` };
  });
}

function operatorScene(folded) {
  const fold = folding(folded);
  const shown = (o) => {
    const home = homes[o];
    if (home === undefined || fold.shownAs[home] === home) return o;
    const at = kernels[home].operators.indexOf(o);
    const twin = at < 0 ? undefined : kernels[fold.shownAs[home]].operators[at];
    return twin === undefined ? null : twin;
  };
  const nodes = [];
  const frames = new Map();
  operators.forEach((o, i) => {
    if (shown(i) !== i) return;
    const width = Math.min(PILL.most, Math.round(simple(o.operator).length * PILL.letter) + 26);
    const node = { key: `o${i}`, operator: i, width, height: PILL.height, frame: null };
    const kernel = o.kernels.length ? o.kernels[0] : null;
    if (kernel !== null) {
      node.frame = `f${kernel}`;
      const repeat = folded && fold.repeatOf[kernel] >= 0 ? `r${fold.repeatOf[kernel]}` : null;
      frames.set(node.frame, { key: node.frame, className: `kernel ${colourClass(kernels[kernel])}`, kernel, frame: repeat });
    }
    nodes.push(node);
  });
  const links = new Map();
  operators.forEach((o, i) => {
    o.operands.forEach((p) => {
      const [a, b] = [shown(p), shown(i)];
      if (a === null || b === null || a === b) return;
      const [ha, hb] = [homes[p], homes[i]];
      const apart = folded && ha !== undefined && hb !== undefined && fold.repeatOf[ha] >= 0;
      if (apart && fold.repeatOf[ha] === fold.repeatOf[hb] && fold.round(ha) !== fold.round(hb)) return;
      const ids = edges.flatMap((e, n) => (e.producer === ha && e.consumer === hb && ha !== hb ? [n] : []));
      const key = `${a} ${b}`;
      if (!links.has(key)) links.set(key, { from: `o${a}`, to: `o${b}`, edges: [] });
      links.get(key).edges.push(...ids);
    });
  });
  if (nodes.length > MOST_FRAMED) {
    nodes.forEach((n) => (n.frame = null));
    return { nodes, links: [...links.values()], frames: [] };
  }
  const all = [...frames.values()];
  const outer = repeatFrames(all);
  return { nodes, links: [...links.values()], frames: [...outer, ...all] };
}

// -- layout ------------------------------------------------------------------------------------------------------
function laidOut(scene, vertical = true) {
  const g = new dagre.graphlib.Graph({ compound: scene.frames.length > 0, multigraph: false });
  g.setGraph({ rankdir: vertical ? "TB" : "LR", nodesep: 22, ranksep: 46, edgesep: 10, marginx: 24, marginy: 24 });
  g.setDefaultEdgeLabel(() => ({}));
  scene.frames.forEach((f) => g.setNode(f.key, {}));
  scene.frames.forEach((f) => f.frame && g.setParent(f.key, f.frame));
  scene.nodes.forEach((n) => {
    g.setNode(n.key, { width: n.width, height: n.height });
    if (n.frame) g.setParent(n.key, n.frame);
  });
  scene.links.forEach((e) => g.setEdge(e.from, e.to, {}));
  dagre.layout(g);
  const placed = (item) => ({ ...item, ...g.node(item.key) });
  return {
    nodes: scene.nodes.map(placed),
    frames: scene.frames.map(placed),
    links: scene.links.map((e) => ({ ...e, points: attached(g.edge(e.from, e.to).points, g.node(e.from), g.node(e.to)) })),
    width: g.graph().width,
    height: g.graph().height,
  };
}

// An edge's points, from the bottom of its start to the top of its end, as near as it can to where it goes.
function attached(points, from, to) {
  const on = (node, x) => Math.max(node.x - node.width / 2 + 18, Math.min(node.x + node.width / 2 - 18, x));
  const inner = points.slice(1, -1).filter((p) => p.y > from.y + from.height / 2 && p.y < to.y - to.height / 2);
  const [first, last] = inner.length ? [inner[0].x, inner[inner.length - 1].x] : [to.x, from.x];
  const start = { x: on(from, inner.length ? first : (from.x + first) / 2), y: from.y + from.height / 2 };
  const end = { x: on(to, inner.length ? last : (to.x + last) / 2), y: to.y - to.height / 2 };
  return [start, ...inner, end];
}

// A curve through points that leaves and reaches each of them downwards.
function curve(points) {
  const at = (x, y) => `${x.toFixed(1)},${y.toFixed(1)}`;
  let path = `M${at(points[0].x, points[0].y)}`;
  for (let i = 1; i < points.length; i += 1) {
    const [a, b] = [points[i - 1], points[i]];
    const middle = (a.y + b.y) / 2;
    path += `C${at(a.x, middle)} ${at(b.x, middle)} ${at(b.x, b.y)}`;
  }
  return path;
}

// As much of a text as a card has room for; of a name with a path in it the end is what counts.
const ruler = document.createElement("canvas").getContext("2d");
function fitted(text, font, end = false) {
  ruler.font = `${font} ${getComputedStyle(document.body).fontFamily}`;
  const room = CARD.width - 29;
  if (ruler.measureText(text).width <= room) return text;
  let kept = text.length;
  const cut = () => (end ? `…${text.slice(text.length - kept)}` : `${text.slice(0, kept)}…`);
  while (kept > 1 && ruler.measureText(cut()).width > room) kept -= 1;
  return cut();
}

// -- drawing -----------------------------------------------------------------------------------------------------
function draw(view, folded) {
  const scene = laidOut(view === "kernels" ? kernelScene(folded) : operatorScene(folded));
  drawn = { ...scene, view };
  drawInto(world, scene);
  fit();
}

function drawInto(layer, scene) {
  layer.selectAll("*").remove();
  const frames = layer.append("g").selectAll("g").data(scene.frames).join("g").attr("class", (f) => `frame ${f.className}`);
  frames
    .append("rect")
    .attr("rx", 12)
    .attr("x", (f) => f.x - f.width / 2 + (f.kernel === undefined ? 0 : 6))
    .attr("y", (f) => f.y - f.height / 2 + (f.kernel === undefined ? 0 : 6))
    .attr("width", (f) => Math.max(0, f.width - (f.kernel === undefined ? 0 : 12)))
    .attr("height", (f) => Math.max(0, f.height - (f.kernel === undefined ? 0 : 12)));
  frames.filter((f) => f.kernel !== undefined).on("click", (event, f) => select({ kernel: f.kernel }));

  const links = layer.append("g").selectAll("g").data(scene.links).join("g").attr("class", linkClass);
  links.append("path").attr("class", "line").attr("d", (e) => curve(e.points)).attr("stroke-width", thickness);
  const hit = links.filter((e) => e.edges.length).append("path").attr("class", "hit").attr("d", (e) => curve(e.points));
  hit.append("title").text(edgeTitle);
  pressable(hit, edgeLabel, (e) => ({ edges: e.edges }));
  links.append("path").attr("class", "tip").attr("d", (e) => arrow(e.points));

  const tags = layer.append("g").selectAll("g").data(scene.frames.filter((f) => f.text)).join("g").attr("class", "tag");
  tags.attr("transform", (f) => `translate(${f.x - f.width / 2 + 14},${f.y - f.height / 2 - 13})`);
  tags.append("rect").attr("width", (f) => f.text.length * 7.4 + 22).attr("height", 26).attr("rx", 13);
  tags.append("text").attr("x", 12).attr("y", 17.5).text((f) => f.text);

  const nodes = layer.append("g").selectAll("g").data(scene.nodes).join("g");
  nodes.attr("class", nodeClass).attr("transform", (n) => `translate(${n.x - n.width / 2},${n.y - n.height / 2})`);
  nodes.append("rect").attr("class", "body").attr("width", (n) => n.width).attr("height", (n) => n.height);
  const cards = nodes.filter((n) => n.kernel !== undefined);
  cards.append("rect").attr("class", "strip").attr("width", 6).attr("height", (n) => n.height).attr("rx", 3);
  const texts = [
    ["name", 22, (n) => fitted(computes(kernels[n.kernel]), "600 13px")],
    ["from", 38, (n) => fitted(origin(kernels[n.kernel]), "11.5px", true)],
    ["size", 52, (n) => fitted(cardFacts(kernels[n.kernel]), "11.5px")],
  ];
  texts.forEach(([name, y, text]) => cards.append("text").attr("class", name).attr("x", 17).attr("y", y).text(text));
  cards.append("title").text((n) => `${computes(kernels[n.kernel])}\n${kernels[n.kernel].function}`);
  // The name is the text on the card, so that speech control finds it.
  pressable(cards, null, (n) => ({ kernel: n.kernel }));
  cards.attr("aria-roledescription", "kernel");
  const pills = nodes.filter((n) => n.operator !== undefined);
  pills.select(".body").attr("rx", PILL.height / 2);
  pills.append("text").attr("x", (n) => n.width / 2).attr("y", 18.5).text((n) => short(simple(operators[n.operator].operator), 24));
  pills.append("title").text((n) => `${labelOf(operators[n.operator])}\n${operators[n.operator].shape}`);
  pressable(pills, null, (n) => ({ operator: n.operator }));
  pills.attr("aria-roledescription", "operator");
}

// Nodes and edges are buttons, for a keyboard too.
function pressable(nodes, label, what) {
  nodes.attr("tabindex", 0).attr("role", "button").attr("aria-label", label);
  nodes.on("click", (event, n) => select(what(n)));
  nodes.on("keydown", (event, n) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault(); // a space would scroll the page
    select(what(n));
  });
}

const cardFacts = (k) => {
  const count = k.operators.length === 1 ? "1 operator" : `${k.operators.length} operators`;
  return k.operators.length ? `${count} · ${bytes(moved(k))}` : bytes(moved(k));
};

const sizeOf = (e) => Math.max(0, ...e.edges.flatMap((i) => edges[i].values.map((v) => (typeof v.bytes === "number" ? v.bytes : 0))));
const thickness = (e) => (1 + Math.max(0, Math.log10(sizeOf(e) + 1) - 3) * 0.55).toFixed(2);
const edgeTitle = (e) => [...new Set(e.edges.flatMap((i) => edges[i].reasons.map((r) => r.text)))].join("\n");

// The kernels of a boundary, and why there is one.
function edgeLabel(e) {
  const { producer, consumer } = edges[e.edges[0]];
  return `Boundary: ${computes(kernels[producer])} to ${computes(kernels[consumer])}. ${edgeTitle(e)}`;
}

function linkClass(e) {
  if (!e.edges.length) return "link inner";
  return e.edges.some((i) => isActionable(edges[i])) ? "link actionable" : "link";
}

function nodeClass(n) {
  if (n.kernel !== undefined) return `card ${colourClass(kernels[n.kernel])}`;
  const o = operators[n.operator];
  return `pill ${o.kernels.length ? colourClass(kernels[o.kernels[0]]) : "kind-view"}`;
}

function arrow(points) {
  const { x, y } = points[points.length - 1];
  return `M${x.toFixed(1)},${y.toFixed(1)}l-4.5,-9h9Z`;
}

// -- moving ------------------------------------------------------------------------------------------------------
function show(transform) {
  svg.call(zoom.transform, transform);
}

// All of a small graph; of a large one its beginning, at a size that can be read.
function fit(whole = false) {
  if (!drawn) return;
  const box = svg.node().getBoundingClientRect();
  const [width, height] = [box.width, box.height - LEGEND_HEIGHT];
  const all = Math.min(width / drawn.width, height / drawn.height, 1.15);
  const readable = Math.max(LEAST_SCALE, Math.min(width / drawn.width, 0.95));
  const scale = whole || all > 0.75 ? all : Math.max(all, readable);
  const free = width - drawn.width * scale;
  const left = free >= 0 ? free / 2 : Math.max(free, Math.min(0, width / 2 - crowd(width / scale, height / scale) * scale));
  const top = scale === all ? Math.max(0, (height - drawn.height * scale) / 2) : 0;
  show(d3.zoomIdentity.translate(left, top).scale(scale));
}

// Where most of what stands at the top is: the x around which a window of some width has most nodes.
function crowd(width, height) {
  const xs = drawn.nodes.filter((n) => n.y < height).map((n) => n.x);
  const seen = (x) => xs.filter((other) => Math.abs(other - x) < width / 2 - CARD.width / 2).length;
  return xs.reduce((best, x) => (seen(x) > seen(best) ? x : best), xs[0]);
}

function centre(x, y) {
  const { width, height } = svg.node().getBoundingClientRect();
  const scale = Math.max(0.7, d3.zoomTransform(svg.node()).k);
  show(d3.zoomIdentity.translate(width / 2 - x * scale, height / 2 - y * scale).scale(scale));
}
