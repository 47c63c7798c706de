// The history of the state, and the differences from kube-proxy.

import { ask, byId, fillHead, fillRows, h, s, table } from "./dom.js";

/** The greatest number of lanes of the time line, and of rows of the table. */
const MOST_LANES = 8;
const MOST_ROWS = 300;
const LEFT = 230;
const WIDTH = 1000;

const clock = (time) => time.slice(11, 19);

function lanes(rows) {
  const counts = new Map();
  for (const row of rows) counts.set(row.lane, (counts.get(row.lane) || 0) + 1);
  const most = [...counts].sort((one, other) => other[1] - one[1]).slice(0, MOST_LANES).map(([name]) => name);
  return { names: most, of: (row) => (most.includes(row.lane) ? most.indexOf(row.lane) : most.length), more: counts.size > most.length };
}

/** The picture: a lane for each Service that changed most, and a dot for each change. */
function timeLine(rows) {
  if (!rows.length) return h("p", {}, "There is no change.");
  const { names, of, more } = lanes(rows);
  const labels = more ? [...names, "others"] : names;
  const [first, last] = [Date.parse(rows[0].time), Date.parse(rows[rows.length - 1].time)];
  const x = (time) => LEFT + 20 + ((Date.parse(time) - first) / Math.max(last - first, 1)) * (WIDTH - LEFT - 40);
  const y = (lane) => 18 + 24 * lane;
  const height = 24 * labels.length + 34;
  const choose = (row) => {
    document.querySelectorAll("#history-table tr.chosen").forEach((line) => line.classList.remove("chosen"));
    const line = [...byId("history-table").tBodies[0].rows].find((of) => of.dataset.key === row.key);
    if (line) {
      line.classList.add("chosen");
      line.scrollIntoView({ block: "center" });
    }
  };
  const label = `${rows.length} changes from ${clock(rows[0].time)} to ${clock(rows[rows.length - 1].time)}; the table below lists them`;
  return s("svg", { class: "picture", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label },
    labels.map((name, lane) => [
      s("text", { x: 0, y: y(lane) + 4 }, name.length > 32 ? `${name.slice(0, 31)}…` : name),
      s("line", { class: "axis", x1: LEFT, x2: WIDTH - 10, y1: y(lane), y2: y(lane) }),
    ]),
    rows.map((row) => s("circle", { class: row.isEvent ? "dot odd" : "dot", cx: x(row.time).toFixed(1), cy: y(of(row)), r: 5,
      onclick: () => choose(row) }, s("title", {}, `${clock(row.time)} ${row.text}`))),
    s("text", { class: "small", x: LEFT + 20, y: height - 6 }, clock(rows[0].time)),
    s("text", { class: "small", x: WIDTH - 20, y: height - 6, "text-anchor": "end" }, clock(rows[rows.length - 1].time)));
}

/** Shows the history, or only that of one Service. */
export async function showHistory() {
  const list = byId("history-table");
  if (!list.tHead.rows[0].cells.length) fillHead(list, ["Time", "Revision", "Change", "Applied", "Objects"]);
  const only = byId("of-service").value.trim();
  const { history } = await ask("history");
  const rows = history.flatMap((row, number) => {
    const applied = row.applied.map((of) => `${of.backend} ${of.millis === null ? "not yet" : `${of.millis} ms`}`).join(", ");
    const late = row.applied.some((of) => of.millis === null);
    const change = (of, index) => ({
      key: `${number} ${index}`, time: row.time, revision: row.revision, lane: of.service || "node and brain", service: of.service,
      text: of.service ? `${of.service}: ${of.change}` : of.change, applied, late, objects: row.objects.slice(0, 3).join(", "),
    });
    const event = row.event ? [{ key: `${number} event`, time: row.time, lane: "node and brain", text: row.event, isEvent: true, applied: "",
      objects: "" }] : [];
    return [...event, ...row.changes.map(change)];
  }).filter((row) => !only || row.service === only);
  byId("time-line").replaceChildren(timeLine(rows));
  fillRows(list.tBodies[0], rows.slice(-MOST_ROWS).reverse().map((row) => ({
    key: row.key,
    cells: [clock(row.time), row.revision ?? "–", { text: row.text, kind: row.isEvent ? "odd" : "" },
      { text: row.applied || "–", kind: row.late ? "bad" : "" }, row.objects || "–"],
  })));
}

/** Verdicts in words. */
function told(verdicts) {
  const word = (one) => (one.endpoint ? `${one.endpoint.to}${one.endpoint.masquerade ? " masqueraded" : ""}` : one);
  const more = verdicts.length > 3 ? [`${verdicts.length - 3} more`] : [];
  return [...verdicts.slice(0, 3).map(word), ...more].join(", ") || "–";
}

/** Compares with kube-proxy's rules, and shows the result. */
export async function compare() {
  const [button, place] = [byId("compare"), byId("shadow-answer")];
  button.disabled = true;
  place.replaceChildren(h("p", {}, "Comparing …"));
  try {
    const of = await ask("shadow");
    const unexplained = of.differences.length - of.deliberate;
    const summary = `${of.compared} packets compared with kube-proxy's rules (mode ${of.mode}): ${of.equal} equal, `
      + `${of.deliberate} differ deliberately, ${unexplained} differ.`;
    const heads = ["Packet", "Service", "localnet", "kube-proxy", "Entry of docs/differences.md"];
    const cells = (one) => [`${one.origin} ${one.from} to ${one.to}/${one.protocol}`, one.service || "–", told(one.localnet),
      one.unknown || told(one.kubeProxy), one.entry ?? "none"];
    const rows = of.differences.slice(0, MOST_ROWS).map((one) => cells(one).map(String));
    place.replaceChildren(h("p", { class: unexplained ? "bad" : "good" }, summary),
      rows.length ? table("Packets with another outcome", heads, rows) : "");
  } catch (error) {
    place.replaceChildren(h("p", { class: "bad" }, error.message));
  }
  button.disabled = false;
}

/** Fills the list of names to choose from. */
export function nameServices(names) {
  const list = byId("service-names");
  if (list.children.length !== names.length) list.replaceChildren(...names.map((name) => h("option", { value: name })));
}
