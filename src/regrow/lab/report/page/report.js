"use strict";
// Tables are sorted by the buttons in their headers. A sorted view can be shared: #sort=accuracy, or #sort=-accuracy
// for the highest first, sorts every table that has such a column.

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
  const asked = /^#sort=(-?)([a-z_]+)$/.exec(location.hash);
  if (!asked) return;
  const direction = asked[1] ? "descending" : "ascending";
  for (const header of document.querySelectorAll("th[data-key='" + asked[2] + "']")) sortBy(header, direction);
}

document.addEventListener("click", onClick);
window.addEventListener("hashchange", sortAsAsked);
sortAsAsked();
