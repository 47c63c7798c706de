// Selects the view that the address names, and keeps it up to date.

import { ask, byId, h, setText } from "./dom.js";
import { compare, nameServices, showHistory } from "./past.js";
import { showPath } from "./path.js";
import { destinations, mark, prepare, remember, showChanges, showService, showServices } from "./services.js";

/** How often the traffic is read, in milliseconds. */
const PERIOD = 2000;
const VIEWS = ["services", "service", "path", "history", "shadow"];
const FROM = { counted: "rates counted by the backend", flows: "rates from connection tracking", nothing: "no rates yet" };

let state = null;
let traffic = null;
let revision = 0;

/** The view and its parameters: #services, #service=NAME, #path?from=…&to=…, #history, #shadow. */
function place() {
  const [, view = "services", , rest = ""] = location.hash.match(/^#([a-z]*)([=?](.*))?$/) || [];
  return { view: VIEWS.includes(view) ? view : "services", rest };
}

function draw() {
  if (!state || !traffic) return;
  const { view, rest } = place();
  if (view === "services") showServices(state, traffic);
  if (view === "service") showService(state, traffic, decodeURIComponent(rest));
  setText(byId("node"), traffic.node);
  const unknown = traffic.ratesFrom === "nothing" && traffic.flowsUnknown ? ` (${traffic.flowsUnknown})` : "";
  setText(byId("summary"), `Revision ${traffic.revision} · ${state.services.length} Services · ${FROM[traffic.ratesFrom]}${unknown}`);
}

function complain(problem) {
  byId("problem").hidden = !problem;
  setText(byId("problem"), problem || "");
}

/** Reads the traffic; if there is a new revision, also the state and what has changed. */
async function refresh() {
  try {
    traffic = await ask("traffic");
    remember(traffic);
    if (traffic.revision !== revision) {
      const [first, before] = [state === null, revision];
      state = await ask("state");
      revision = traffic.revision;
      const news = await showChanges(first ? Infinity : before);
      news.filter((change) => change.name).forEach((change) => mark(change.name));
      if (news.length) setText(byId("news"), `Changed: ${news.slice(-3).map((change) => change.text).join("; ")}`);
      const names = state.services.map((service) => service.service);
      nameServices(names);
      const all = state.services.slice(0, 300).flatMap((service) => [
        ...service.ports.map((port) => `${service.service}:${port.name || port.port}`),
        ...destinations(state, service).map((one) => one.to),
      ]);
      byId("destinations").replaceChildren(...[...new Set(all)].map((value) => h("option", { value })));
      if (place().view === "history") await showHistory();
    }
    complain(traffic.problem);
    draw();
  } catch (error) {
    complain(error.message);
  }
}

async function watch() {
  for (;;) {
    if (!document.hidden) await refresh();
    await new Promise((done) => setTimeout(done, PERIOD));
  }
}

/** Shows the view that the address names. */
async function show(isFirst) {
  if (location.hash === "#main") return;
  const { view, rest } = place();
  for (const name of VIEWS) byId(name).hidden = name !== view;
  for (const link of document.querySelectorAll("nav a")) {
    const own = link.hash.slice(1) === (view === "service" ? "services" : view);
    if (own) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  setText(document.querySelector("title"), `${byId(view).querySelector("h2").textContent} – localnet`);
  // A screen reader then reads the new view.
  if (!isFirst) byId("main").focus({ preventScroll: true });
  draw();
  if (view === "path") {
    const parameters = new URLSearchParams(rest);
    await showPath(parameters.get("from"), parameters.get("to"));
  }
  if (view === "history") await showHistory().catch((error) => complain(error.message));
}

prepare(draw);
byId("filter").addEventListener("input", draw);
byId("of-service").addEventListener("input", () => showHistory().catch((error) => complain(error.message)));
byId("compare").addEventListener("click", compare);
byId("path-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const parameters = new URLSearchParams({ from: byId("from").value.trim(), to: byId("to").value.trim() });
  if (location.hash === `#path?${parameters}`) show(true);
  else location.hash = `path?${parameters}`;
});
addEventListener("hashchange", () => show(false));
show(true);
watch();
