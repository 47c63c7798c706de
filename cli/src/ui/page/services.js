// The table of Services, and the endpoints of one Service.

import { ask, at, byId, fillHead, fillRows, h, percent, s, setText, short } from "./dom.js";

/** How many rates are kept, one for each reading. */
const MOST_RATES = 60;
/** How many Services the page lists at once. */
const MOST_ROWS = 300;
/** How long a change marks its Service, in milliseconds. */
const MARKED = 10000;

const nothing = { connectionsPerSecond: 0, bytesPerSecond: null, refusedPerSecond: null, flows: 0, unanswered: 0, stale: 0, draining: 0, endpoints: {} };
const rates = new Map();
const changed = new Map();
let sort = "connections";

const eligible = (endpoint) => Boolean(endpoint.scopes.internal || endpoint.scopes.external || endpoint.scopes.shortCircuit);
const count = (service) => (service.endpoints || []).filter(eligible).length;
const addresses = (service) => [
  ...service.clusterIPs, ...(service.loadBalancerIPs || []), ...(service.externalIPs || []),
];

const COLUMNS = [
  { id: "name", title: "Service", by: null },
  { id: "connections", title: "Connections/s", by: (of) => of.measure.connectionsPerSecond },
  { id: "trend", title: "Last minutes" },
  { id: "bytes", title: "Bytes/s", by: (of) => of.measure.bytesPerSecond || 0 },
  { id: "flows", title: "Flows", by: (of) => of.measure.flows },
  { id: "unanswered", title: "Unanswered", by: (of) => of.measure.unanswered },
  { id: "refused", title: "Refused packets/s", by: (of) => of.measure.refusedPerSecond || 0 },
  { id: "endpoints", title: "Endpoints", by: (of) => -count(of.service) },
  { id: "address", title: "Addresses" },
  { id: "ports", title: "Ports" },
];
const NUMBERS = new Set(["connections", "bytes", "flows", "unanswered", "refused", "endpoints"]);

/** Makes the headings, which sort the table. */
export function prepare(redraw) {
  const heads = COLUMNS.map(({ id, title, by }) => {
    const pressed = () => { sort = id; redraw(); };
    const inner = by === undefined ? title : h("button", { type: "button", onclick: pressed }, title);
    return h("th", { scope: "col", "data-column": id, class: NUMBERS.has(id) ? "number" : null }, inner);
  });
  byId("services-table").tHead.rows[0].replaceChildren(...heads);
  fillHead(byId("endpoints-table"), ["Endpoint", "Weight", "Share", "Share by weight", "Both as a bar", "Connections/s", "Bytes/s", "Flows", "Port",
    "Serves"]);
}

/** Remembers a reading of the traffic. */
export function remember(traffic) {
  for (const [name, of] of Object.entries(traffic.services)) {
    if (of.connectionsPerSecond > 0 && !rates.has(name)) rates.set(name, []);
  }
  for (const [name, list] of rates) {
    list.push((traffic.services[name] || nothing).connectionsPerSecond);
    if (list.length > MOST_RATES) list.shift();
    if (list.every((rate) => rate === 0)) rates.delete(name);
  }
}

/** Marks Services that have just changed. */
export const mark = (name) => changed.set(name, Date.now());

function trend(name) {
  const list = rates.get(name) || [];
  const most = Math.max(...list, 1e-9);
  const now = list.length ? list[list.length - 1] : 0;
  const label = list.length ? `now ${now.toFixed(1)}, at most ${most.toFixed(1)} connections per second` : "no traffic";
  const points = list.map((rate, index) => `${(2 * (index + MOST_RATES - list.length)).toFixed(0)},${(22 - 20 * (rate / most)).toFixed(1)}`);
  return s("svg", { width: 120, height: 24, viewBox: "0 0 120 24", role: "img", "aria-label": label },
    s("polyline", { class: "spark", points: points.join(" ") }));
}

/** Draws the table. */
export function showServices(state, traffic) {
  const filter = byId("filter").value.trim();
  const fits = (service) => !filter || [service.service, ...addresses(service), ...(service.endpoints || []).map((of) => of.address)]
    .some((text) => text.includes(filter));
  const all = state.services.map((service) => ({ service, measure: traffic.services[service.service] || nothing }));
  const listed = all.filter((of) => fits(of.service));
  const by = COLUMNS.find((column) => column.id === sort).by;
  if (by) listed.sort((one, other) => by(other) - by(one));
  for (const head of byId("services-table").tHead.rows[0].cells) {
    if (head.dataset.column === sort) head.setAttribute("aria-sort", sort === "name" ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  }
  const known = traffic.ratesFrom !== "nothing";
  const number = (text, kind = "") => ({ text, kind: `number ${kind}`.trim() });
  const rows = listed.slice(0, MOST_ROWS).map(({ service, measure }) => {
    const name = service.service;
    const [serve, endpoints] = [count(service), (service.endpoints || []).length];
    const ports = service.ports.map((port) => `${port.port}${port.nodePort ? `:${port.nodePort}` : ""}/${port.protocol}`);
    return {
      key: name,
      className: Date.now() - (changed.get(name) || 0) < MARKED ? "changed" : "",
      cells: [
        h("a", { href: `#service=${name}` }, name),
        number(known ? measure.connectionsPerSecond.toFixed(1) : "–"),
        trend(name),
        number(measure.bytesPerSecond === null ? (traffic.ratesFrom === "counted" ? "0" : "–") : short(measure.bytesPerSecond)),
        number(measure.flows),
        number(measure.unanswered, measure.unanswered ? "odd" : ""),
        number(traffic.countsRefused ? (measure.refusedPerSecond || 0).toFixed(1) : "–", measure.refusedPerSecond ? "bad" : ""),
        number(serve === endpoints ? serve : `${serve} of ${endpoints}`, serve ? "" : "bad"),
        addresses(service).join(", "),
        ports.join(", "),
      ],
    };
  });
  fillRows(byId("services-table").tBodies[0], rows);
  const more = listed.length > MOST_ROWS ? `, of which ${MOST_ROWS} are shown` : "";
  setText(byId("shown"), filter || more ? `${listed.length} of ${all.length} Services${more}` : "");
}

/** The endpoints of a Service with their expected and measured shares. */
export function shares(service, of, hasRates) {
  const amount = (measure) => (hasRates ? measure.connectionsPerSecond : measure.flows);
  const lines = [];
  const sums = new Map();
  for (const endpoint of service.endpoints || []) {
    for (const port of endpoint.ports) {
      const name = at(endpoint.address, port.port);
      const measure = of.endpoints[name] || nothing;
      const weight = eligible(endpoint) ? endpoint.weight || 1 : 0;
      const group = `${port.name} ${endpoint.address.includes(":")}`;
      const sum = sums.get(group) || { weights: 0, amounts: 0 };
      sums.set(group, { weights: sum.weights + weight, amounts: sum.amounts + amount(measure) });
      lines.push({ name, port: port.name || String(port.port), weight, group, measure, endpoint });
    }
  }
  const known = new Set(lines.map((line) => line.name));
  for (const [name, measure] of Object.entries(of.endpoints)) {
    if (!known.has(name)) lines.push({ name, port: "", weight: 0, group: "", measure, endpoint: null });
  }
  for (const line of lines) {
    const { weights, amounts } = sums.get(line.group) || { weights: 0, amounts: 0 };
    line.expected = weights ? line.weight / weights : 0;
    line.measured = amounts ? amount(line.measure) / amounts : null;
  }
  return lines;
}

function bar({ measured, expected }) {
  const place = (part) => (200 * part).toFixed(1);
  return s("svg", { width: 204, height: 16, viewBox: "-2 0 204 16", "aria-hidden": "true" },
    s("rect", { class: "track", width: 200, height: 14, y: 1 }),
    s("rect", { class: "fill", width: place(measured || 0), height: 14, y: 1 }),
    s("line", { class: "mark", x1: place(expected), x2: place(expected), y1: 0, y2: 16 }));
}

function serves(endpoint) {
  if (!endpoint) return "removed";
  const names = ["internal", "external", "shortCircuit", "established"].filter((scope) => endpoint.scopes[scope]);
  return names.join(", ") + (endpoint.local ? " (on this node)" : "");
}

/** All addresses and ports of a Service, each with the sender that usually uses it. */
export function destinations(state, service) {
  const list = [];
  const tail = (port) => (port.protocol === "TCP" ? "" : `/${port.protocol.toLowerCase()}`);
  const add = (kind, from, ips) => {
    for (const port of service.ports) for (const ip of ips || []) list.push({ kind, from, to: at(ip, port.port) + tail(port) });
  };
  add("ClusterIP", "pod", service.clusterIPs);
  for (const port of service.ports.filter((port) => port.nodePort)) {
    for (const six of [false, true]) {
      const ip = (state.node.addresses || []).find((address) => address.includes(":") === six);
      const has = service.clusterIPs.some((address) => address.includes(":") === six);
      if (ip && has) list.push({ kind: "NodePort", from: "outside", to: at(ip, port.nodePort) + tail(port) });
    }
  }
  add("load balancer", "outside", service.loadBalancerIPs);
  add("external IP", "outside", service.externalIPs);
  return list;
}

/** Draws the page of one Service. */
export function showService(state, traffic, name) {
  const service = state.services.find((of) => of.service === name);
  setText(byId("service-title"), `Service ${name}`);
  const body = byId("endpoints-table").tBodies[0];
  if (!service) {
    setText(byId("service-facts"), "The state of this node has no such Service.");
    fillRows(body, []);
    byId("service-paths").replaceChildren();
    return;
  }
  const of = traffic.services[name] || nothing;
  setText(byId("service-facts"), `${service.type}. ${of.connectionsPerSecond.toFixed(1)} connections per second, ${of.flows} flows, of which `
    + `${of.unanswered} are unanswered and ${of.draining} drain.`
    + (traffic.countsRefused ? ` ${(of.refusedPerSecond || 0).toFixed(1)} refused packets per second.` : ""));
  const number = (text, kind = "") => ({ text, kind: `number ${kind}`.trim() });
  const rows = shares(service, of, traffic.ratesFrom !== "nothing").map((line) => {
    const off = line.measured !== null && Math.abs(line.measured - line.expected) > 0.1;
    const bytes = line.measure.bytesPerSecond;
    return {
      key: `${line.name} ${line.port}`,
      className: line.weight ? "" : "off",
      cells: [line.name, number(line.weight), number(line.measured === null ? "–" : percent(line.measured), off ? "odd" : ""),
        number(percent(line.expected)), bar(line), number(line.measure.connectionsPerSecond.toFixed(1)),
        number(bytes === null ? "–" : short(bytes)), number(line.measure.flows), line.port, serves(line.endpoint)],
    };
  });
  fillRows(body, rows);
  const paths = destinations(state, service).map(({ kind, from, to }) =>
    h("li", {}, h("a", { href: `#path?${new URLSearchParams({ from, to })}` }, `${kind} ${to}, from ${from}`)));
  const list = byId("service-paths");
  if (list.textContent !== paths.map((path) => path.textContent).join("")) list.replaceChildren(...paths);
}

/** Draws the list of the last changes. Returns the texts of those after a revision. */
export async function showChanges(after) {
  const { history } = await ask("history");
  const lines = history.flatMap((row) => {
    const changes = row.changes.map((of) => ({ name: of.service, text: of.service ? `${of.service}: ${of.change}` : of.change }));
    const texts = row.event ? [{ name: null, text: row.event }, ...changes] : changes;
    return texts.map((of) => ({ ...of, time: row.time, revision: row.revision }));
  });
  const items = lines.slice(-6).reverse().map((line) =>
    h("li", {}, h("time", { datetime: line.time }, line.time.slice(11, 19)), line.text));
  byId("changes").replaceChildren(...items);
  return lines.filter((line) => line.revision > after);
}
