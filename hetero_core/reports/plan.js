"use strict";
// The program of the page: pan, zoom, choose a subgraph, search nodes. Names become text nodes, never markup.
(function () {
  const ROWS = 400; // nodes listed at once; more on demand
  const RESULTS = 100;
  const LARGEST = 5;
  const DRAWN = 3000; // a browser is slow with more boxes
  const plan = JSON.parse(document.getElementById("plan").textContent);
  const drawing = document.getElementById("drawing");
  const scene = document.getElementById("scene");
  const panel = document.getElementById("panel");
  const search = document.getElementById("search");
  const found = document.getElementById("found");
  const results = document.getElementById("results");
  const boxes = new Map();
  for (const box of scene.querySelectorAll(".subgraph")) boxes.set(Number(box.dataset.subgraph), box);
  const links = Array.from(scene.querySelectorAll(".link"));
  const refusals = new Map(Object.entries(plan.refusals));
  const pins = new Map(Object.entries(plan.pins));
  const refused = new Set(plan.refused);
  const conflicts = new Map();
  for (const [name, text] of plan.conflicts) conflicts.set(name, (conflicts.get(name) || []).concat([text]));
  const nodes = [];
  plan.subgraphs.forEach(function (subgraph, index) {
    for (const [name, operator] of subgraph.nodes) {
      nodes.push({ name: name, operator: operator, subgraph: index, text: (name + " " + operator).toLowerCase() });
    }
  });

  function make(tag, className, text) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  }

  function say(number, noun) {
    return number + " " + noun + (number === 1 ? "" : "s");
  }

  // View

  const view = { x: 0, y: 0, scale: 1 };
  const whole = { width: Number(drawing.dataset.width), height: Number(drawing.dataset.height) };
  let size = whole;
  let shown = scene; // or the drawing of the nodes of a subgraph

  function show() {
    shown.setAttribute("transform", "translate(" + view.x + " " + view.y + ") scale(" + view.scale + ")");
  }

  function zoom(factor, x, y) {
    const scale = Math.min(Math.max(view.scale * factor, 0.02), 8);
    view.x = x - (x - view.x) * (scale / view.scale);
    view.y = y - (y - view.y) * (scale / view.scale);
    view.scale = scale;
    show();
  }

  function fit() {
    const frame = drawing.getBoundingClientRect();
    view.scale = Math.min(frame.width / size.width, frame.height / size.height, 1.25) || 1;
    view.x = (frame.width - size.width * view.scale) / 2;
    view.y = Math.max((frame.height - size.height * view.scale) / 2, 0);
    show();
  }

  function begin() {
    // All of the drawing. If it is too large to be read whole: the top of the subgraphs, the first columns of nodes.
    fit();
    const frame = drawing.getBoundingClientRect();
    const readable = shown === scene ? Math.min(frame.width / size.width, 0.7) : 0.7;
    if (view.scale < readable / 2) {
      view.scale = readable;
      view.x = Math.max((frame.width - size.width * view.scale) / 2, 0);
      view.y = 0;
      show();
    }
  }

  function reveal(index) {
    if (shown === scene) center(boxes.get(index).getBBox());
  }

  function center(box) {
    // Moves a box to the middle, and nearer if its text could not be read.
    const frame = drawing.getBoundingClientRect();
    view.scale = Math.max(view.scale, 0.7);
    view.x = frame.width / 2 - (box.x + box.width / 2) * view.scale;
    view.y = frame.height / 2 - (box.y + box.height / 2) * view.scale;
    show();
  }

  function zoomAtMiddle(factor) {
    const frame = drawing.getBoundingClientRect();
    zoom(factor, frame.width / 2, frame.height / 2);
  }

  drawing.addEventListener("wheel", function (event) {
    event.preventDefault();
    const frame = drawing.getBoundingClientRect();
    const lines = event.deltaMode === 1 ? 16 : 1;
    zoom(Math.exp(-event.deltaY * lines * 0.0015), event.clientX - frame.left, event.clientY - frame.top);
  }, { passive: false });
  document.getElementById("zoom-in").addEventListener("click", function () { zoomAtMiddle(1.3); });
  document.getElementById("zoom-out").addEventListener("click", function () { zoomAtMiddle(1 / 1.3); });
  document.getElementById("zoom-fit").addEventListener("click", fit);

  let drag = null;
  let isDragged = false;
  drawing.addEventListener("pointerdown", function (event) {
    if (event.button !== 0) return;
    drag = { x: event.clientX, y: event.clientY, left: view.x, top: view.y };
    isDragged = false;
  });
  window.addEventListener("pointermove", function (event) {
    if (!drag) return;
    const dx = event.clientX - drag.x;
    const dy = event.clientY - drag.y;
    if (!isDragged && Math.hypot(dx, dy) < 4) return;
    isDragged = true;
    drawing.classList.add("dragging");
    view.x = drag.left + dx;
    view.y = drag.top + dy;
    show();
  });
  for (const name of ["pointerup", "pointercancel"]) {
    window.addEventListener(name, function () {
      drag = null;
      drawing.classList.remove("dragging");
    });
  }

  // The nodes of a subgraph: rows by the longest way from its inputs, folded into columns

  const back = document.getElementById("zoom-back");
  const SVG = "http://www.w3.org/2000/svg";

  function draw(tag, parent, attributes, text) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  }

  function canDraw(subgraph) {
    return subgraph.links !== null && subgraph.nodes.length <= DRAWN;
  }

  function placeNodes(subgraph) {
    const depths = subgraph.nodes.map(function () { return 0; });
    for (const [from, to] of subgraph.links) depths[to] = Math.max(depths[to], depths[from] + 1);
    // A node without a maker stands above its first reader, not in the first row.
    const made = new Set(subgraph.links.map(function (link) { return link[1]; }));
    const first = subgraph.nodes.map(function () { return Infinity; });
    for (const [from, to] of subgraph.links) first[from] = Math.min(first[from], depths[to]);
    depths.forEach(function (_, index) { if (!made.has(index) && first[index] < Infinity) depths[index] = first[index] - 1; });
    const rows = [];
    depths.forEach(function (depth, index) { (rows[depth] = rows[depth] || []).push(index); });
    const height = Math.max(Math.ceil(Math.sqrt(rows.length * 3)), 8);
    const places = [];
    let left = 0;
    for (let top = 0; top < rows.length; top += height) {
      const column = rows.slice(top, top + height);
      const width = Math.max(...column.map(function (row) { return row.length; })) * 150 + 40;
      column.forEach(function (row, line) {
        row.forEach(function (index, number) { places[index] = { x: left + (width - row.length * 150) / 2 + number * 150, y: line * 64 + 20 }; });
      });
      left += width;
    }
    return { places: places, size: { width: left, height: Math.min(rows.length, height) * 64 + 20 } };
  }

  function drawNodes(index, name) {
    leaveNodes();
    const subgraph = plan.subgraphs[index];
    const placed = placeNodes(subgraph);
    const color = Array.from(boxes.get(index).classList).find(function (name) { return name.startsWith("device-"); });
    const group = draw("g", drawing, { id: "inner", class: color });
    for (const [from, to] of subgraph.links) {
      const [a, b] = [placed.places[from], placed.places[to]];
      const down = ["M", a.x + 65, a.y + 40, "C", a.x + 65, a.y + 64, b.x + 65, b.y - 24, b.x + 65, b.y];
      const aside = ["M", a.x + 130, a.y + 20, "C", a.x + 190, a.y + 20, b.x - 60, b.y + 20, b.x, b.y + 20];
      draw("path", draw("g", group, { class: "link" }), { d: (b.y > a.y ? down : aside).join(" ") });
    }
    subgraph.nodes.forEach(function (node, number) {
      const at = placed.places[number];
      const box = draw("g", group, { class: "inner", "data-node": node[0], transform: "translate(" + at.x + " " + at.y + ")" });
      draw("title", box, {}, node[0] + " (" + node[1] + ")");
      draw("rect", box, { class: "box", width: 130, height: 40, rx: 6 });
      const narrow = node[1].length > 16 ? { textLength: 120, lengthAdjust: "spacingAndGlyphs" } : {};
      draw("text", box, { class: "name", x: 65, y: 17, ...narrow }, node[1]);
      draw("text", box, { class: "detail", x: 65, y: 32 }, node[0].length > 20 ? node[0].slice(0, 19) + "\u2026" : node[0]);
      box.classList.toggle("refused", refused.has(node[0]));
      box.classList.toggle("chosen", node[0] === name);
      box.addEventListener("click", function () { if (!isDragged) choose(index, node[0]); });
    });
    scene.style.display = "none";
    back.hidden = false;
    shown = group;
    size = placed.size;
    begin();
    const chosen = subgraph.nodes.findIndex(function (node) { return node[0] === name; });
    if (chosen >= 0) center({ width: 130, height: 40, ...placed.places[chosen] });
  }

  function leaveNodes() {
    if (shown !== scene) shown.remove();
    scene.style.display = "";
    back.hidden = true;
    shown = scene;
    size = whole;
  }

  back.addEventListener("click", function () { leaveNodes(); begin(); });

  // Choice

  drawing.addEventListener("click", function (event) {
    if (isDragged || shown !== scene) return;
    const box = event.target.closest(".subgraph");
    if (box) choose(Number(box.dataset.subgraph));
    else choose(null);
  });
  drawing.addEventListener("keydown", function (event) {
    const box = event.target.closest(".subgraph");
    if (!box || (event.key !== "Enter" && event.key !== " ")) return;
    event.preventDefault();
    choose(Number(box.dataset.subgraph));
  });

  function choose(index, name) {
    for (const [number, box] of boxes) box.classList.toggle("chosen", number === index);
    for (const link of links) {
      link.classList.toggle("chosen", index !== null && (Number(link.dataset.source) === index || Number(link.dataset.target) === index));
    }
    for (const box of shown.querySelectorAll(".inner")) box.classList.toggle("chosen", box.dataset.node === name);
    panel.replaceChildren();
    if (index === null) describePlan();
    else describeSubgraph(index, name);
  }

  function describePlan() {
    panel.append(make("p", "fact", "Devices by priority: " + plan.priorities.join(", ")));
    panel.append(make("p", "quiet", "Click a subgraph for its nodes and its values. Drag to move, turn the wheel to zoom."));
    if (plan.note) panel.append(make("p", "quiet", plan.note));
    const timed = plan.subgraphs.map(function (one, index) { return [one.seconds, index]; }).filter(function (one) { return one[0] !== null; });
    listLargest("slowest subgraphs", timed, function (index, seconds) {
      return "subgraph " + index + " on " + plan.subgraphs[index].device + ": " + (seconds * 1000).toFixed(3) + " ms";
    });
    const moved = plan.moved.map(function (one) { return [one[1], one[0], one[2]]; });
    listLargest("slowest transfers", moved, function (index, seconds, bytes) {
      return "of subgraph " + index + ": " + (seconds * 1000).toFixed(3) + " ms, " + bytes + " bytes";
    });
    listLines("bytes moved", plan.bytes);
    listLines("memory, estimated", plan.memory);
    if (plan.trace) {
      const link = make("a", "", plan.trace);
      link.href = plan.trace;
      panel.append(make("h3", "", "trace, for ui.perfetto.dev"), link);
    }
    if (refused.size) panel.append(make("p", "reason", say(refused.size, "node") + " no device takes"));
  }

  function listLines(title, lines) {
    if (!lines.length) return;
    panel.append(make("h3", "", title));
    for (const line of lines) panel.append(make("p", "fact", line));
  }

  function listLargest(title, rows, say) {
    rows.sort(function (a, b) { return b[0] - a[0]; });
    if (rows.length) panel.append(make("h3", "", title));
    for (const [amount, index, ...more] of rows.slice(0, LARGEST)) {
      const button = make("button", "row", say(index, amount, ...more));
      button.type = "button";
      button.addEventListener("click", function () { choose(index); reveal(index); });
      panel.append(button);
    }
  }

  function describeSubgraph(index, name) {
    const subgraph = plan.subgraphs[index];
    panel.append(make("h2", "", "subgraph " + index + " on " + subgraph.device));
    const time = subgraph.seconds === null ? "" : ", " + (subgraph.seconds * 1000).toFixed(3) + " ms";
    panel.append(make("p", "fact", say(subgraph.nodes.length, "node") + time));
    const button = make("button", "", "draw its nodes");
    button.type = "button";
    button.id = "draw-nodes";
    button.addEventListener("click", function () { drawNodes(index, name); });
    if (canDraw(subgraph)) panel.append(button);
    listValues("reads", plan.boundaries.filter(function (one) { return one[4].includes(index); }));
    listValues("makes for others", plan.boundaries.filter(function (one) { return one[3] === index; }));
    const inner = new Set(plan.boundaries.map(function (one) { return one[0]; }));
    const returned = subgraph.outputs.filter(function (value) { return !inner.has(value); });
    if (returned.length) {
      panel.append(make("h3", "", "outputs of the network"));
      panel.append(make("p", "fact", returned.join(", ")));
    }
    panel.append(make("h3", "", "nodes"));
    listNodes(subgraph, name);
  }

  function listValues(title, boundaries) {
    if (!boundaries.length) return;
    panel.append(make("h3", "", title));
    const list = make("ul");
    for (const [value, type, bytes, producer, consumers] of boundaries) {
      const row = make("li", "node", value);
      const from = producer === null ? "input" : "subgraph " + producer;
      const to = consumers.map(function (one) { return "subgraph " + one; }).join(", ");
      row.append(make("div", "quiet", type + ", " + bytes + ", " + from + " \u2192 " + to));
      list.append(row);
    }
    panel.append(list);
  }

  function listNodes(subgraph, name) {
    const list = make("ul");
    list.id = "nodes";
    panel.append(list);
    let listed = 0;
    const more = make("button", "", "");
    more.type = "button";
    function addRows(end) {
      for (; listed < Math.min(end, subgraph.nodes.length); listed++) list.append(describeNode(subgraph.nodes[listed], name));
      more.textContent = "show " + (subgraph.nodes.length - listed) + " more";
      more.hidden = listed >= subgraph.nodes.length;
    }
    const wanted = subgraph.nodes.findIndex(function (node) { return node[0] === name; });
    addRows(Math.max(ROWS, wanted + 1));
    more.addEventListener("click", function () { addRows(subgraph.nodes.length); });
    panel.append(more);
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
    const hits = text ? nodes.filter(function (node) { return node.text.includes(text); }) : [];
    const exact = hits.findIndex(function (node) { return node.name.toLowerCase() === text; });
    if (exact > 0) hits.unshift(hits.splice(exact, 1)[0]);
    const subgraphs = new Set(hits.map(function (node) { return node.subgraph; }));
    for (const [index, box] of boxes) box.classList.toggle("found", subgraphs.has(index));
    drawing.classList.toggle("searching", hits.length > 0);
    results.replaceChildren();
    for (const node of hits.slice(0, RESULTS)) results.append(describeHit(node));
    if (!text) found.textContent = "";
    else found.textContent = hits.length ? say(hits.length, "node") + " in " + say(subgraphs.size, "subgraph") : "no such node";
    return hits;
  }

  function describeHit(node) {
    const row = make("li");
    const button = make("button", "", node.name + " ");
    button.type = "button";
    button.append(make("span", "quiet", node.operator + ", subgraph " + node.subgraph));
    button.addEventListener("click", function () { open(node); });
    row.append(button);
    return row;
  }

  function open(node) {
    leaveNodes();
    choose(node.subgraph, node.name);
    reveal(node.subgraph);
  }

  search.addEventListener("input", find);
  search.addEventListener("keydown", function (event) {
    if (event.key === "Escape") {
      search.value = "";
      find();
    } else if (event.key === "Enter") {
      const hits = find();
      if (hits.length) open(hits[0]);
    }
  });

  choose(null);
  begin();
  if (plan.subgraphs.length === 1 && canDraw(plan.subgraphs[0])) {
    choose(0);
    drawNodes(0);
  }
  let isMoved = false;
  drawing.addEventListener("pointerdown", function () { isMoved = true; });
  drawing.addEventListener("wheel", function () { isMoved = true; });
  window.addEventListener("resize", function () { if (!isMoved) begin(); });
})();
