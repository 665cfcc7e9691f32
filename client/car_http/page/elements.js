// Elements of the page. Text enters the document as text alone: labels, names and answers are strangers' words.

export const element = (id) => document.getElementById(id);

export function make(name, text = "", more = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  return Object.assign(made, more);
}

export function show(id, text, bad = false) {
  const shown = element(id);
  // A reader of the screen repeats what is set, so equal text is left alone.
  if (shown.textContent !== text) shown.textContent = text;
  shown.classList.toggle("bad", bad);
}

// Fill the body of a table; rows stay where they are, so that a selection and a place in it survive.
export function fill(id, rows, nothing) {
  const body = element(id);
  const wanted = rows.length ? rows : [[nothing]];
  while (body.rows.length > wanted.length) body.deleteRow(-1);
  wanted.forEach((cells, place) => {
    const row = body.rows[place] ?? body.insertRow();
    while (row.cells.length > cells.length) row.deleteCell(-1);
    cells.forEach((text, number) => {
      const cell = row.cells[number] ?? row.insertCell();
      if (cell.textContent !== String(text)) cell.textContent = text;
      cell.colSpan = rows.length ? 1 : 6;
    });
  });
}

export function duration(ms) {
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  return seconds < 3600 ? `${Math.floor(seconds / 60)} min ${seconds % 60} s` : `${(seconds / 3600).toFixed(1)} h`;
}

export function size(bytes) {
  if (bytes == null) return "unknown";
  return bytes < 2 ** 30 ? `${Math.round(bytes / 2 ** 20)} MiB` : `${(bytes / 2 ** 30).toFixed(1)} GiB`;
}
