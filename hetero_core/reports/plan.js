"use strict";
// The program of the page: draws the plan, and the nodes of a subgraph; pan, zoom, search. Names become text nodes, never markup.
(function () {
  const RESULTS = 100;
  const LARGEST = 5;
  const DRAWN = 3000; // a browser is slow with more boxes
  const COLORS = 8; // classes device-0 to device-7
  const BOX = { width: 130, height: 40, right: 150, down: 64 }; // the last two: from box to box
  const SVG = "http://www.w3.org/2000/svg";
  const plan = JSON.parse(document.getElementById("plan").textContent);
  const [drawing, scene, back, panel, search, found, results] =
    ["drawing", "scene", "zoom-back", "panel", "search", "found", "results"].map((id) => document.getElementById(id));
  const refusals = new Map(Object.entries(plan.refusals));
  const pins = new Map(Object.entries(plan.pins));
  const refused = new Set(plan.refused);
  const conflicts = new Map();
  for (const [name, text] of plan.conflicts) conflicts.set(name, (conflicts.get(name) || []).concat([text]));
  const devices = Array.from(new Set(plan.priorities.concat(plan.subgraphs.map((one) => one.device))));
  const nodes = plan.subgraphs.flatMap((subgraph, index) => subgraph.nodes.map(function ([name, operator]) {
    return { name: name, operator: operator, subgraph: index, text: (name + " " + operator).toLowerCase() };
  }));

  function make(tag, className, text) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  }

  function makeButton(className, text, act) {
    return Object.assign(make("button", className, text), { type: "button", onclick: act });
  }

  function draw(tag, parent, attributes, text) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  }

  const say = (number, noun) => number + " " + noun + (number === 1 ? "" : "s");
  const sayTime = (seconds) => (seconds * 1000).toFixed(3) + " ms";
  const findColor = (device) => "device-" + devices.indexOf(device) % COLORS;
  const shorten = (text) => text.length > 20 ? text.slice(0, 19) + "\u2026" : text;

  for (const device of devices) {
    const own = plan.subgraphs.filter((one) => one.device === device);
    const names = own.flatMap((one) => one.nodes).filter((node) => !refused.has(node[0]));
    const timed = own.filter((one) => one.seconds !== null);
    const total = timed.reduce((sum, one) => sum + one.seconds, 0);
    const text = device + ": " + say(names.length, "node") + " in " + say(own.length, "subgraph");
    const row = make("li", findColor(device), text + (timed.length ? ", " + sayTime(total) : ""));
    row.prepend(make("span", "swatch"));
    document.getElementById("legend").append(row);
  }

  // Boxes and links: rows by the longest way from the inputs, folded into columns

  let boxes = new Map(); // subgraph or name of a node -> box
  let inside = null; // the subgraph whose nodes are drawn; null for the plan
  let size = { width: 1, height: 1 };
  let places = [];

  function placeBoxes(count, links) {
    const makers = Array.from({ length: count }, () => []);
    const depths = Array(count).fill(0);
    links.sort((a, b) => a[1] - b[1]);
    for (const [from, to] of links) {
      depths[to] = Math.max(depths[to], depths[from] + 1);
      makers[to].push(from);
    }
    // A box without a maker stands above its first reader, not in the first row.
    const first = Array(count).fill(Infinity);
    for (const [from, to] of links) first[from] = Math.min(first[from], depths[to]);
    depths.forEach(function (_, index) { if (!makers[index].length && first[index] < Infinity) depths[index] = first[index] - 1; });
    const rows = [];
    depths.forEach((depth, index) => (rows[depth] = rows[depth] || []).push(index));
    const middle = Array(count).fill(0);
    const findMean = (index) => makers[index].reduce((sum, one) => sum + middle[one], 0) / (makers[index].length || 1);
    for (const row of rows) {
      row.sort((a, b) => findMean(a) - findMean(b));
      row.forEach(function (index, number) { middle[index] = (number - (row.length - 1) / 2) * BOX.right; });
    }
    const height = Math.max(Math.ceil(Math.sqrt(rows.length * 3)), 8);
    let left = 0;
    places = [];
    for (let top = 0; top < rows.length; top += height) {
      const column = rows.slice(top, top + height);
      const width = Math.max(...column.map((row) => row.length)) * BOX.right + 40;
      column.forEach(function (row, line) {
        for (const index of row) places[index] = { x: left + width / 2 + middle[index] - BOX.width / 2, y: line * BOX.down + 20 };
      });
      left += width;
    }
    size = { width: left || 1, height: Math.min(rows.length, height) * BOX.down + 20 };
  }

  function drawBoxes(rows, links) {
    // A row: key, name, detail, title, class, and the subgraph and the node that a click chooses.
    placeBoxes(rows.length, links);
    boxes = new Map();
    scene.replaceChildren();
    for (const [from, to, title] of links) {
      const [a, b] = [places[from], places[to]];
      const down = ["M", a.x + 65, a.y + 40, "C", a.x + 65, a.y + 64, b.x + 65, b.y - 24, b.x + 65, b.y];
      const aside = ["M", a.x + 130, a.y + 20, "C", a.x + 190, a.y + 20, b.x - 60, b.y + 20, b.x, b.y + 20];
      const link = draw("g", scene, { class: "link", "data-source": from, "data-target": to });
      draw("title", link, {}, title);
      draw("path", link, { d: (b.y > a.y ? down : aside).join(" "), "marker-end": "url(#arrow)" });
    }
    rows.forEach(function (row, number) {
      const at = places[number];
      const box = draw("g", scene, { class: row.class, transform: "translate(" + at.x + " " + at.y + ")", tabindex: 0, role: "button" });
      box.dataset.key = row.key;
      draw("title", box, {}, row.title);
      draw("rect", box, { class: "box", width: BOX.width, height: BOX.height, rx: 6 });
      const narrow = row.name.length > 16 ? { textLength: 120, lengthAdjust: "spacingAndGlyphs" } : {};
      draw("text", box, { class: "name", x: 65, y: 17, ...narrow }, shorten(row.name));
      draw("text", box, { class: "detail", x: 65, y: 32 }, shorten(row.detail));
      box.addEventListener("click", function (event) {
        event.stopPropagation();
        if (!isDragged) choose(row.subgraph, row.node);
      });
      box.addEventListener("keydown", function (event) {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        choose(row.subgraph, row.node);
      });
      boxes.set(row.key, box);
    });
    back.hidden = inside === null;
    // All of the drawing; its first columns if it is too large to be read whole.
    fit();
    if (view.scale < 0.35) show(0, 0, 0.7);
  }

  function drawPlan() {
    inside = null;
    const titles = new Map();
    for (const [text, producer, consumers] of plan.boundaries) {
      for (const consumer of producer === null ? [] : consumers) {
        const key = producer + " " + consumer;
        titles.set(key, (titles.get(key) || []).concat([text]));
      }
    }
    const links = Array.from(titles, ([key, lines]) => key.split(" ").map(Number).concat([lines.join("\n")]));
    drawBoxes(plan.subgraphs.map(function (subgraph, index) {
      const lost = subgraph.nodes.filter((node) => refused.has(node[0])).length;
      const time = subgraph.seconds === null ? "" : " \u00b7 " + sayTime(subgraph.seconds);
      const detail = say(subgraph.nodes.length, "node") + (lost ? ", " + lost + " refused" : "") + time;
      const name = index + " \u00b7 " + subgraph.device;
      const title = "subgraph " + index + " on " + subgraph.device + ", " + detail;
      return { key: index, name: name, detail: detail, title: title, class: "subgraph " + findColor(subgraph.device), subgraph: index };
    }), links);
  }

  function drawNodes(index, name) {
    inside = index;
    const subgraph = plan.subgraphs[index];
    drawBoxes(subgraph.nodes.map(function ([node, operator]) {
      const look = "inner " + findColor(subgraph.device) + (refused.has(node) ? " refused" : "");
      return { key: node, name: operator, detail: node, title: node + " (" + operator + ")", class: look, subgraph: index, node: node };
    }), subgraph.links);
    if (boxes.has(name)) {
      boxes.get(name).classList.add("chosen");
      reveal(subgraph.nodes.findIndex((node) => node[0] === name));
    }
  }

  const canDraw = (subgraph) => subgraph.links !== null && subgraph.nodes.length <= DRAWN;
  back.addEventListener("click", drawPlan);

  // View

  const view = { x: 0, y: 0, scale: 1 };
  let drag = null;
  let isDragged = false;

  function show(x, y, scale) {
    Object.assign(view, { x: x, y: y, scale: scale });
    scene.setAttribute("transform", "translate(" + x + " " + y + ") scale(" + scale + ")");
  }

  function fit() {
    const frame = drawing.getBoundingClientRect();
    const scale = Math.min(frame.width / size.width, frame.height / size.height, 1.25) || 1;
    show((frame.width - size.width * scale) / 2, Math.max((frame.height - size.height * scale) / 2, 0), scale);
  }

  function reveal(number) {
    // Moves a box to the middle, and nearer if its text could not be read.
    const frame = drawing.getBoundingClientRect();
    const scale = Math.max(view.scale, 0.7);
    const [x, y] = [places[number].x + BOX.width / 2, places[number].y + BOX.height / 2];
    show(frame.width / 2 - x * scale, frame.height / 2 - y * scale, scale);
  }

  drawing.addEventListener("wheel", function (event) {
    event.preventDefault();
    const frame = drawing.getBoundingClientRect();
    const [x, y, lines] = [event.clientX - frame.left, event.clientY - frame.top, event.deltaMode === 1 ? 16 : 1];
    const scale = Math.min(Math.max(view.scale * Math.exp(-event.deltaY * lines * 0.0015), 0.02), 8);
    show(x - (x - view.x) * (scale / view.scale), y - (y - view.y) * (scale / view.scale), scale);
  }, { passive: false });
  document.getElementById("zoom-fit").addEventListener("click", fit);

  drawing.addEventListener("pointerdown", function (event) {
    if (event.button !== 0) return;
    drag = { x: event.clientX, y: event.clientY, left: view.x, top: view.y };
    isDragged = false;
  });
  window.addEventListener("pointermove", function (event) {
    if (!drag) return;
    const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
    if (!isDragged && Math.hypot(dx, dy) < 4) return;
    isDragged = true;
    show(drag.left + dx, drag.top + dy, view.scale);
  });
  for (const name of ["pointerup", "pointercancel"]) window.addEventListener(name, function () { drag = null; });
  drawing.addEventListener("click", function () { if (!isDragged && inside === null) choose(null); });

  // Choice

  function choose(index, name) {
    const chosen = inside === null ? index : name;
    for (const [key, box] of boxes) box.classList.toggle("chosen", key === chosen);
    for (const link of scene.querySelectorAll(".link")) {
      link.classList.toggle("chosen", inside === null && [link.dataset.source, link.dataset.target].includes(String(index)));
    }
    panel.replaceChildren();
    if (index === null) describePlan();
    else describeSubgraph(index, name);
  }

  function describePlan() {
    panel.append(make("p", "fact", "Devices by priority: " + plan.priorities.join(", ")),
      make("p", "quiet", "Click a subgraph for its nodes and its values. Drag to move, turn the wheel to zoom."));
    if (plan.note) panel.append(make("p", "quiet", plan.note));
    const timed = plan.subgraphs.map((one, index) => [one.seconds, index]).filter((one) => one[0] !== null);
    listLargest("slowest subgraphs", timed,
      (index, seconds) => "subgraph " + index + " on " + plan.subgraphs[index].device + ": " + sayTime(seconds));
    const moved = plan.moved.map(([index, seconds, bytes]) => [seconds, index, bytes]);
    listLargest("slowest transfers", moved,
      (index, seconds, bytes) => "of subgraph " + index + ": " + sayTime(seconds) + ", " + bytes + " bytes");
    listLines("bytes moved", plan.bytes);
    listLines("memory, estimated", plan.memory);
    if (plan.trace) {
      panel.append(make("h3", "", "trace, for ui.perfetto.dev"), Object.assign(make("a", "", plan.trace), { href: plan.trace }));
    }
    if (refused.size) panel.append(make("p", "reason", say(refused.size, "node") + " no device takes"));
  }

  function listLines(title, lines) {
    if (!lines.length) return;
    panel.append(make("h3", "", title));
    for (const line of lines) panel.append(make("p", "fact", line));
  }

  function listLargest(title, rows, say) {
    rows.sort((a, b) => b[0] - a[0]);
    if (rows.length) panel.append(make("h3", "", title));
    for (const [amount, index, ...more] of rows.slice(0, LARGEST)) {
      panel.append(makeButton("row", say(index, amount, ...more), () => open({ subgraph: index })));
    }
  }

  function describeSubgraph(index, name) {
    const subgraph = plan.subgraphs[index];
    panel.append(make("h2", "", "subgraph " + index + " on " + subgraph.device));
    const time = subgraph.seconds === null ? "" : ", " + sayTime(subgraph.seconds);
    panel.append(make("p", "fact", say(subgraph.nodes.length, "node") + time));
    const button = Object.assign(makeButton("", "draw its nodes", () => drawNodes(index, name)), { id: "draw-nodes" });
    if (canDraw(subgraph)) panel.append(button);
    const lines = (isShown) => plan.boundaries.filter(isShown).map((one) => one[0]);
    listLines("reads", lines((one) => one[2].includes(index)));
    listLines("makes for others", lines((one) => one[1] === index));
    listLines("outputs of the network", subgraph.returned);
    const list = Object.assign(make("ul"), { id: "nodes" });
    panel.append(make("h3", "", "nodes"), list);
    for (const node of subgraph.nodes) list.append(describeNode(node, name));
    const row = list.querySelector(".chosen");
    if (row) row.scrollIntoView({ block: "nearest" });
  }

  function describeNode(node, wanted) {
    const row = make("li", node[0] === wanted ? "node chosen" : "node", node[0] + " ");
    row.append(make("span", "quiet", node[1]));
    if (pins.has(node[0])) row.append(make("div", "quiet", "pinned to " + pins.get(node[0])));
    if (refused.has(node[0])) row.append(make("div", "reason", "no device takes it"));
    for (const [device, reason] of Object.entries(refusals.get(node[0]) || {})) {
      row.append(make("div", "reason", device + ": " + reason));
    }
    for (const text of conflicts.get(node[0]) || []) row.append(make("div", "kept", "kept out: " + text));
    return row;
  }

  // Search

  function find() {
    const text = search.value.trim().toLowerCase();
    const hits = text ? nodes.filter((node) => node.text.includes(text)) : [];
    const exact = hits.findIndex((node) => node.name.toLowerCase() === text);
    if (exact > 0) hits.unshift(hits.splice(exact, 1)[0]);
    const subgraphs = new Set(hits.map((node) => node.subgraph));
    const keys = inside === null ? subgraphs : new Set(hits.map((node) => node.name));
    for (const [key, box] of boxes) box.classList.toggle("found", keys.has(key));
    drawing.classList.toggle("searching", hits.length > 0);
    results.replaceChildren();
    for (const node of hits.slice(0, RESULTS)) {
      const button = makeButton("", node.name + " ", () => open(node));
      button.append(make("span", "quiet", node.operator + ", subgraph " + node.subgraph));
      const row = make("li");
      row.append(button);
      results.append(row);
    }
    const count = hits.length ? say(hits.length, "node") + " in " + say(subgraphs.size, "subgraph") : "no such node";
    found.textContent = text ? count : "";
    return hits;
  }

  function open(node) {
    if (inside !== null) drawPlan();
    choose(node.subgraph, node.name);
    reveal(node.subgraph);
  }

  search.addEventListener("input", find);
  search.addEventListener("keydown", function (event) {
    if (event.key === "Escape") {
      search.value = "";
      find();
    } else if (event.key === "Enter") {
      for (const node of find().slice(0, 1)) open(node);
    }
  });

  drawPlan();
  choose(null);
  if (plan.subgraphs.length === 1 && canDraw(plan.subgraphs[0])) {
    choose(0);
    drawNodes(0);
  }
})();
