"use strict";
// Tables are sorted by the buttons in their headers. A sorted view can be shared: #sort=accuracy, or #sort=-accuracy
// for the highest first, sorts every table that has such a column.
// Figures tell the values that are nearest to the pointer. Without this script, browsers show them one by one.

function valueOf(row, index) {
  const cell = row.cells[index];
  const text = cell.dataset.value;
  if (text === undefined || text === "") return null;
  return cell.dataset.kind === "number" ? Number(text) : text;
}

function compare(a, b, sign) {
  if (a === null || b === null) return (a === null) - (b === null); // nothing comes last, either way
  return sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
}

function sortBy(header, direction) {
  const table = header.closest("table");
  const body = table.tBodies[0];
  const sign = direction === "descending" ? -1 : 1;
  const rows = Array.from(body.rows, (row, place) => ({ row, place, value: valueOf(row, header.cellIndex) }));
  rows.sort((a, b) => compare(a.value, b.value, sign) || a.place - b.place);
  body.append(...rows.map((entry) => entry.row));
  for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", other === header ? direction : "none");
}

function onClick(event) {
  const button = event.target.closest("th button");
  if (!button) return;
  const header = button.closest("th");
  const first = header.dataset.first;
  const second = first === "descending" ? "ascending" : "descending";
  const direction = header.getAttribute("aria-sort") === first ? second : first;
  sortBy(header, direction);
  history.replaceState(null, "", "#sort=" + (direction === "descending" ? "-" : "") + header.dataset.key);
}

function sortAsAsked() {
  const asked = /^#sort=(-?)([\w.]+)$/.exec(location.hash);
  if (!asked) return;
  const direction = asked[1] ? "descending" : "ascending";
  for (const header of document.querySelectorAll("th[data-key='" + asked[2] + "']")) sortBy(header, direction);
}

const REACH = 16; // in units of figures: how near is near enough
const TOGETHER = 5; // and what is so near the nearest that nobody can point at one alone
const MOST = 12;
const bubble = document.createElement("div");
bubble.className = "bubble";
bubble.setAttribute("aria-hidden", "true"); // tables say the same
bubble.hidden = true;
document.body.append(bubble);

function discsOf(svg) {
  const discs = svg.querySelectorAll(".values circle");
  for (const title of svg.querySelectorAll(".values title")) {
    title.parentNode.dataset.said = title.textContent;
    title.remove(); // or the browser would say it, too
  }
  return Array.from(discs, (disc) => ({ disc, x: disc.cx.baseVal.value, y: disc.cy.baseVal.value }));
}

function nearest(svg, event) {
  const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  const from = (to) => (disc) => Math.hypot(disc.x - to.x, disc.y - to.y);
  const found = discsOf(svg).sort((a, b) => from(point)(a) - from(point)(b));
  if (!found.length || from(point)(found[0]) > REACH) return [];
  return found.filter((disc) => from(found[0])(disc) <= TOGETHER).slice(0, MOST).sort((a, b) => a.y - b.y);
}

function tell(event) {
  for (const disc of document.querySelectorAll(".values .near")) disc.classList.remove("near");
  const svg = event.target.closest("figure svg");
  const found = svg ? nearest(svg, event) : [];
  bubble.hidden = !found.length;
  if (bubble.hidden) return;
  for (const { disc } of found) disc.classList.add("near");
  bubble.textContent = found.map(({ disc }) => disc.dataset.said).join("\n");
  const left = Math.min(event.clientX + 12, innerWidth - bubble.offsetWidth - 8);
  const isLow = event.clientY + 16 + bubble.offsetHeight > innerHeight;
  bubble.style.left = Math.max(8, left) + "px";
  bubble.style.top = (isLow ? event.clientY - bubble.offsetHeight - 12 : event.clientY + 16) + "px";
}

document.addEventListener("pointermove", tell);
document.addEventListener("pointerdown", tell);
document.addEventListener("click", onClick);
window.addEventListener("hashchange", sortAsAsked);
sortAsAsked();
