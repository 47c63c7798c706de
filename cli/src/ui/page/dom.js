// Builds elements, and reads the answers of the command. Text from the cluster only ever becomes text nodes and attributes.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** An HTML element. Attributes that start with "on" are listeners. */
export const h = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children);

/** An SVG element. */
export const s = (name, attributes = {}, ...children) => filled(document.createElementNS(SVG, name), attributes, children);

export const byId = (id) => document.getElementById(id);

/** Sets the text of an element, but does not touch the page if it is the same: a screen reader would read it again. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** The answer to a question; throws an error in words. */
export async function ask(name, parameters = {}) {
  const query = new URLSearchParams(parameters).toString();
  let answer;
  try {
    answer = await fetch(`api/${name}${query ? `?${query}` : ""}`);
  } catch {
    throw new Error("localnet ui does not answer: is it still running?");
  }
  const json = await answer.json().catch(() => ({ error: answer.statusText }));
  if (!answer.ok) throw new Error(json.error);
  return json;
}

/** A number with a unit and at most three digits. */
export function short(number) {
  for (const unit of ["", "K", "M", "G", "T"]) {
    if (number < 999.5) return number.toFixed(unit === "" || number >= 99.95 ? 0 : 1) + unit;
    number /= 1000;
  }
  return `${number.toFixed(0)}P`;
}

export const percent = (part) => `${(part * 100).toFixed(0)} %`;

/** An address and a port as one text. */
export const at = (address, port) => (address.includes(":") ? `[${address}]:${port}` : `${address}:${port}`);

/** Replaces the rows of a table's body. Each row is an object with a key and cells. Rows with the same key keep their elements. */
export function fillRows(body, rows) {
  const known = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  const focused = document.activeElement;
  let before = null;
  for (const { key, cells, className = "" } of rows) {
    let row = known.get(key);
    known.delete(key);
    if (!row) {
      row = h("tr", { "data-key": key });
      row.append(...cells.map((cell, index) => h(index === 0 ? "th" : "td", index === 0 ? { scope: "row" } : {})));
    }
    if (row.className !== className) row.className = className;
    cells.forEach((cell, index) => {
      const place = row.cells[index];
      if (cell instanceof Node) {
        // An equal element stays, so that it keeps the focus.
        if (!place.firstChild || !place.firstChild.isEqualNode(cell)) place.replaceChildren(cell);
      } else {
        const { text, kind = "" } = typeof cell === "object" ? cell : { text: cell };
        if (place.className !== kind) place.className = kind;
        setText(place, String(text));
      }
    });
    const expected = before ? before.nextSibling : body.firstChild;
    if (row !== expected) body.insertBefore(row, expected);
    before = row;
  }
  known.forEach((row) => row.remove());
  // A moved element has lost the focus.
  if (focused !== document.activeElement && document.contains(focused)) focused.focus({ preventScroll: true });
}

/** The headings of a table. */
export function fillHead(table, headings) {
  table.tHead.rows[0].replaceChildren(...headings.map((of) => h("th", { scope: "col" }, of)));
}

/** A table with a caption, which scrolls on its own if it is too wide. */
export function table(caption, headings, rows) {
  return h("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: 0 }, h("table", {}, h("caption", {}, caption),
    h("thead", {}, h("tr", {}, headings.map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell)))))));
}
