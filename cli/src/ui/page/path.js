// The path of a packet through the node: a picture, and the same as text.

import { ask, byId, h, percent, s, table } from "./dom.js";

const HELD = { yes: ["✓", "held", "good"], no: ["✗", "MISSING", "bad"], other: ["✗", "DIFFERS", "bad"], unknown: ["?", "not read", "dim"] };
const VERDICT = {
  reject: "rejected: connection refused",
  drop: "dropped: no answer",
  notOurs: "no Service: to its original destination",
};
/** The greatest number of endpoints and of steps in the picture. The text has all. */
const MOST = 8;

const cut = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);
const lower = (protocol) => protocol.toLowerCase();

function box(x, y, width, height, lines, kind = "") {
  const texts = lines.map(([text, className], index) =>
    s("text", { x: x + 10, y: y + 21 + 18 * index, class: className }, cut(text, Math.floor((width - 14) / 7))));
  return [s("rect", { class: `box ${kind}`.trim(), x, y, width, height, rx: 6 }), ...texts];
}

function arrow(x1, y1, x2, y2, width = 2) {
  const middle = (x1 + x2) / 2;
  return [
    s("path", { class: "way", d: `M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2 - 8} ${y2}`, "stroke-width": width }),
    s("path", { class: "tip", d: `M${x2} ${y2} l-10 -5 v10 z` }),
  ];
}

/** The endpoints with the probability of each. */
function choices(of) {
  const weights = of.weights || {};
  const all = of.endpoints.map((name) => ({ name, weight: weights[name] || 1 }));
  const sum = all.reduce((total, one) => total + one.weight, 0);
  return all.map(({ name, weight }) => ({ name, share: weight / sum }));
}

function inWords(of) {
  const sender = of.from ? `${of.from} (${of.origin})` : of.origin;
  const ends = choices(of).map(({ name, share }) => `${name} with ${percent(share)}`).join(", ");
  return `A packet from ${sender} to ${of.to}/${lower(of.protocol)}: ${of.outcome === "endpoints" ? `goes to ${ends}` : VERDICT[of.outcome]}.`;
}

/** The picture: sender, destination, rules in the kernel, endpoints. */
export function picture(of) {
  const ends = choices(of);
  const shown = ends.slice(0, MOST);
  const steps = of.path.slice(0, MOST);
  const height = Math.max(150, 46 + 56 * Math.max(shown.length, 1), 90 + 18 * (steps.length + 1));
  const middle = height / 2;
  const parts = [];
  const arrives = of.outcome === "endpoints";
  parts.push(box(10, middle - 32, 170, 64, [["From", "small"], [of.from || of.origin, "strong"], [of.from ? of.origin : "", "small"]]));
  parts.push(arrow(180, middle, 230, middle));
  const service = of.service ? [[`${of.service}`, "strong"], [`port ${of.port}`, "small"]] : [["no Service", "strong"]];
  parts.push(box(230, middle - 45, 240, 90, [[of.destination === "none" ? "To" : of.destination, "small"], ...service,
    [`${of.to}/${lower(of.protocol)}`, ""]]));
  parts.push(arrow(470, middle, 520, middle));
  const lines = steps.map((row) => [`${HELD[row.held][0]} ${row.place}`, HELD[row.held][2]]);
  if (of.path.length > steps.length) lines.push([`and ${of.path.length - steps.length} more`, "small"]);
  if (!lines.length) lines.push([of.kernelUnknown ? "not read" : "no rule", "small"]);
  const kernel = 40 + 18 * lines.length;
  const missing = of.path.some((row) => row.held === "no" || row.held === "other");
  parts.push(box(520, middle - kernel / 2, 220, kernel, [["Kernel", "small"], ...lines], missing ? "bad" : ""));
  if (arrives) {
    const step = (height - 20) / shown.length;
    shown.forEach(({ name, share }, index) => {
      const y = 10 + step * (index + 0.5);
      parts.push(arrow(740, middle, 800, y, 1 + 7 * share));
      parts.push(box(800, y - 24, 190, 48, [[name, "strong"], [percent(share), "small"]]));
    });
    if (ends.length > shown.length) {
      parts.push(s("text", { x: 800, y: height - 2, class: "small" }, `and ${ends.length - shown.length} more endpoints`));
    }
  } else {
    parts.push(arrow(740, middle, 800, middle));
    parts.push(box(800, middle - 30, 190, 60, [["Outcome", "small"], [VERDICT[of.outcome], "bad"]], "bad"));
  }
  return s("svg", { class: "picture", viewBox: `0 0 1000 ${height}`, role: "img", "aria-labelledby": "picture-title picture-text" },
    s("title", { id: "picture-title" }, "The packet's path through the node"), s("desc", { id: "picture-text" }, inWords(of)), parts);
}

function facts(of) {
  const source = !of.masquerade ? (of.hairpin.length ? "kept, but replaced if the endpoint is the sender itself" : "kept")
    : "replaced by the node's address";
  const pairs = [["Outcome", inWords(of)], ["Because", of.why]];
  if (of.outcome === "endpoints") pairs.push(["Source address", source]);
  if (of.affinitySeconds) pairs.push(["Affinity", `the sender keeps its endpoint for ${of.affinitySeconds} s`]);
  if (of.translatedOnConnect) pairs.push(["Connection", "localnet-ebpf replaces the destination before the first packet"]);
  if (of.kernelUnknown) pairs.push(["Kernel", `not read: ${of.kernelUnknown}`]);
  if (of.reasonsUnknown) pairs.push(["Ineligible endpoints", `unknown: ${of.reasonsUnknown}`]);
  if (of.configuration) pairs.push(["Configuration", of.configuration.text]);
  return h("dl", {}, pairs.flatMap(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]));
}

function answer(of) {
  const held = ({ held, handle }) => {
    const [sign, word, kind] = HELD[held];
    return h("span", { class: kind }, `${sign} ${word}${handle ? ` #${handle}` : ""}`);
  };
  const rule = (row) => h("code", {}, row.found ? `${row.text} (found: ${row.found})` : row.text);
  const parts = [h("div", { class: "scroll", role: "region", "aria-label": "Picture of the path", tabindex: 0 }, picture(of)), facts(of)];
  if (of.path.length) {
    parts.push(table("The rules that the packet meets, and whether the kernel holds them", ["Kernel", "Chain, set or map", "Rule or element"],
      of.path.map((row) => [held(row), row.place, rule(row)])));
  }
  if (of.ineligible.length) {
    parts.push(table("Endpoints that get no such packet", ["Endpoint", "Rule", "Why"],
      of.ineligible.map((one) => [one.number ? `${one.address} port ${one.number}` : one.address, one.rule, one.problem])));
  }
  if (of.flows.length) {
    parts.push(table(`Flows in connection tracking (${of.flowsCount})`, ["From", "Endpoint", "State"],
      of.flows.map((flow) => [flow.from, flow.endpoint, `${flow.answered ? "answered" : "unanswered"}${flow.stale ? ", stale" : ""}`])));
  }
  return parts;
}

let newest = 0;

/** Explains a packet, and shows the answer. */
export async function showPath(from, to) {
  const number = ++newest;
  if (from) byId("from").value = from;
  if (to) byId("to").value = to;
  if (!from || !to) return;
  const place = byId("path-answer");
  place.setAttribute("aria-busy", "true");
  let parts;
  try {
    parts = answer(await ask("explain", { from, to }));
  } catch (error) {
    parts = [h("p", { class: "bad" }, error.message)];
  }
  // Another packet may have been asked about in the meantime.
  if (number !== newest) return;
  place.replaceChildren(...parts);
  place.removeAttribute("aria-busy");
}
