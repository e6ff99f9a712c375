"use strict";
// The program of the page: pan, zoom, choose a subgraph, search nodes. Names become text nodes, never markup.
(function () {
  const ROWS = 400; // nodes listed at once; more on demand
  const RESULTS = 100;
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
  const size = { width: Number(drawing.dataset.width), height: Number(drawing.dataset.height) };

  function show() {
    scene.setAttribute("transform", "translate(" + view.x + " " + view.y + ") scale(" + view.scale + ")");
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

  function reveal(index) {
    // Moves a subgraph to the middle, and nearer where its text could not be read.
    const frame = drawing.getBoundingClientRect();
    const box = boxes.get(index).getBBox();
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

  // Choice

  drawing.addEventListener("click", function (event) {
    if (isDragged) return;
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
    panel.replaceChildren();
    if (index === null) describePlan();
    else describeSubgraph(index, name);
  }

  function describePlan() {
    panel.append(make("p", "fact", "Devices by priority: " + plan.priorities.join(", ")));
    panel.append(make("p", "quiet", "Click a subgraph for its nodes and its values. Drag to move, turn the wheel to zoom."));
    if (plan.note) panel.append(make("p", "quiet", plan.note));
    if (refused.size) panel.append(make("p", "reason", say(refused.size, "node") + " no device takes"));
  }

  function describeSubgraph(index, name) {
    const subgraph = plan.subgraphs[index];
    panel.append(make("h2", "", "subgraph " + index + " on " + subgraph.device));
    const time = subgraph.seconds === null ? "" : ", " + (subgraph.seconds * 1000).toFixed(3) + " ms";
    panel.append(make("p", "fact", say(subgraph.nodes.length, "node") + time));
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
  fit();
  let isMoved = false;
  drawing.addEventListener("pointerdown", function () { isMoved = true; });
  drawing.addEventListener("wheel", function () { isMoved = true; });
  window.addEventListener("resize", function () { if (!isMoved) fit(); });
})();
