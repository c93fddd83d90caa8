// SPDX-License-Identifier: Apache-2.0
// The report's data, and what the views need of it: colours, names, and which kernels a fold hides.

const data = JSON.parse(document.getElementById("data").textContent);
const { kernels, edges, operators, repeats } = data;
const stockKernels = data.stock_kernels;

const KINDS = {
  stitched: "Stitched kernel",
  compute: "Matrix product, convolution or attention",
  library: "Function outside the module",
  tvm: "Left to TVM",
};
const HUES = 12;

// One colour for each different stitched kernel; the other kinds have one colour each.
const stitchedNames = [...new Set(kernels.filter((k) => k.kind === "stitched").map((k) => k.function))];
const hueOf = new Map(stitchedNames.map((name, i) => [name, i % HUES]));
const colourClass = (k) => (k.kind === "stitched" ? `hue${hueOf.get(k.function)}` : `kind-${k.kind}`);

const callsOf = new Map();
kernels.forEach((k, i) => callsOf.set(k.function, [...(callsOf.get(k.function) || []), i]));

// -- names -----------------------------------------------------------------------------------------------------
const short = (text, length) => (text.length <= length ? text : `${text.slice(0, length - 1)}…`);
const simple = (operator) => operator.replace(/^nn\./, "").replace(/^image\./, "");
const labelOf = (o) => o.source || `${simple(o.operator)} ${o.name}`;

// Operators that say most about a kernel that has many.
const MAIN = /^(matmul|einsum|linear|conv\d.*|attention.*|.*norm.*|.*softmax|sum|mean|max|min|prod|variance|std|argm.*|.*pool.*|take|gather.*|sort|topk|cumsum|cross_entropy.*|nll_loss|concat|split|interpolate|resize.*|pad)$/;

// What a kernel computes, in the model's words: "add, layer_norm", "softmax + 3 more".
function computes(k) {
  const names = k.operators.map((o) => simple(operators[o].operator));
  if (!names.length) return k.function;
  const counted = (found) => {
    const numbers = new Map();
    found.forEach((name) => numbers.set(name, (numbers.get(name) || 0) + 1));
    return [...numbers].map(([name, n]) => (n > 1 ? `${n}× ${name}` : name));
  };
  if (k.kind !== "stitched" && /^attention\d*$/.test(k.function)) return "attention";
  const all = counted([...names].sort((a, b) => Number(MAIN.test(b)) - Number(MAIN.test(a))));
  if (all.length <= 3) return all.join(", ");
  const main = names.filter((name) => MAIN.test(name));
  const shown = main.length ? main : [names[0], names[names.length - 1]];
  const told = counted(shown).slice(-3);
  const covered = told.reduce((sum, t) => sum + (parseInt(t, 10) || 1), 0);
  return `${told.join(", ")} + ${names.length - covered} more`;
}

// Where a kernel comes from: its last operator, whose result it hands on.
function origin(k) {
  const last = operators[k.operators[k.operators.length - 1]];
  return last ? last.source || last.name : "";
}

function bytes(size) {
  if (size === null || size === undefined) return "?";
  if (typeof size !== "number") return size.length > 60 ? "of a symbolic size" : `${size} B`;
  let number = size;
  let unit = "B";
  for (const bigger of ["kB", "MB", "GB", "TB"]) {
    if (number < 1000) break;
    number /= 1000;
    unit = bigger;
  }
  return `${unit === "B" || number >= 100 ? number.toFixed(0) : Number(number.toPrecision(3))} ${unit}`;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "?";
  if (seconds > 0 && seconds < 1e-7) return "< 0.1 µs";
  const [number, unit] = seconds >= 1 ? [seconds, "s"] : seconds >= 1e-3 ? [seconds * 1e3, "ms"] : [seconds * 1e6, "µs"];
  return `${number >= 100 ? number.toFixed(0) : Number(number.toPrecision(3))} ${unit}`;
}

// A median, and the range of the middle half of the calls.
const spread = (s) => `${duration(s.median)}, half of the calls between ${duration(s.low)} and ${duration(s.high)}`;

const timeOf = (k) => (k.measured ? k.measured.median : data.measured_on ? null : k.seconds);

// What kernels take together, and those around compute-intensive operators: null where one of them is not known.
function timesOf(found) {
  const sum = (some) => some.reduce((total, k) => (total === null || timeOf(k) === null ? null : total + timeOf(k)), 0);
  return { whole: sum(found), compute: sum(found.filter((k) => k.kind === "compute" || k.kind === "library")) };
}

const equalOnes = (found) => found.reduce((all, k) => all.set(k.function, [...(all.get(k.function) || []), k]), new Map());

// The longest time that equal kernels of a pipeline take together; 0 where no time is known.
const longestOf = (side) => Math.max(0, ...[...equalOnes(side).values()].map((k) => timesOf(k).whole || 0));
const longest = longestOf(kernels);

const moved = (k) => (typeof k.bytes_read === "number" ? k.bytes_read + k.bytes_written : k.bytes_least);

// What can be done about an edge, where something can.
const isActionable = (edge) => edge.reasons.some((r) => r.advice && !r.advice.startsWith("Nothing"));

// -- folding ---------------------------------------------------------------------------------------------------
// What is shown in a kernel's place, and the repeat that it stands in.
function folding(folded) {
  const shownAs = kernels.map((_, i) => i);
  const repeatOf = kernels.map(() => -1);
  repeats.forEach((r, number) => {
    for (let i = 0; i < r.length * r.count; i += 1) {
      const at = r.first + i;
      if (folded) shownAs[at] = r.first + (i % r.length);
      repeatOf[at] = number;
    }
  });
  const round = (k) => (repeatOf[k] < 0 ? -1 : Math.floor((k - repeats[repeatOf[k]].first) / repeats[repeatOf[k]].length));
  return { shownAs, repeatOf, round };
}

// The edges between what is shown, each with all edges that it stands for. Those to the next round of a folded layer
// would lead backwards: they are left out.
function shownEdges({ shownAs, repeatOf, round }, folded) {
  const found = new Map();
  edges.forEach((edge, i) => {
    const [a, b] = [edge.producer, edge.consumer];
    if (folded && repeatOf[a] >= 0 && repeatOf[a] === repeatOf[b] && round(a) !== round(b)) return;
    const key = `${shownAs[a]} ${shownAs[b]}`;
    if (!found.has(key)) found.set(key, { from: shownAs[a], to: shownAs[b], edges: [] });
    found.get(key).edges.push(i);
  });
  return [...found.values()].filter((e) => e.from !== e.to);
}

// Where an operator stands: in its first kernel, or with what it is a view of.
const homes = [];
operators.forEach((o) => {
  const before = o.operands.map((p) => homes[p]).filter((h) => h !== undefined);
  homes.push(o.kernels.length ? o.kernels[0] : before.length ? before[before.length - 1] : undefined);
});
