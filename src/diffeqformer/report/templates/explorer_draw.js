// What the explorer draws with.
const $ = (id) => document.getElementById(id);
const about = JSON.parse($("about").textContent);
const MARK = "#b3261e";
const written = (value, digits = 3) => (value === null ? "–" : digits > 2 && value && Math.abs(value) < 0.001 ? value.toExponential(1) : value.toFixed(digits));
const make = (tag, properties = {}, ...children) => {
  const { dataset, ...rest } = properties;
  const element = Object.assign(document.createElement(tag), rest);
  Object.assign(element.dataset, dataset);
  element.append(...children);
  return element;
};
const draw = (tag, attributes = {}, ...children) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};

const curve = ({ moved }, position, step) => {
  const parts = [moved.attention, moved.feed_forward].map((rows) => rows.map((row) => row[position]));
  const [width, height, left, bottom] = [420, 150, 44, 24];
  const most = Math.max(...parts.flat(), 1e-12);
  const count = parts[0].length;
  if (!count) return make("p", { className: "note", textContent: "The solver chose its own steps, whose movements are not kept." });
  const x = (i) => left + (count === 1 ? 0.5 : i / (count - 1)) * (width - left - 10);
  const y = (value) => height - bottom - (value / most) * (height - bottom - 10);
  const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Movement by step" });
  picture.append(draw("path", { d: `M${left} 8V${height - bottom}H${width - 8}`, fill: "none", stroke: "var(--line)" }));
  parts.forEach((values, k) => {
    const colour = `var(--series-${k})`;
    picture.append(draw("polyline", { points: values.map((v, i) => `${x(i)},${y(v)}`).join(" "), fill: "none", stroke: colour, "stroke-width": 1.5 }));
    values.forEach((v, i) => picture.append(draw("circle", { cx: x(i), cy: y(v), r: i + 1 === step ? 5 : 2.5, fill: colour })));
  });
  for (const i of new Set([0, count - 1])) picture.append(draw("text", { x: x(i), y: height - 6, "text-anchor": "middle" }, `step ${i + 1}`));
  picture.append(draw("text", { x: left - 6, y: 16, "text-anchor": "end" }, written(most)), draw("text", { x: left - 6, y: height - bottom, "text-anchor": "end" }, "0"));
  return picture;
};

const strips = (attention) => {
  const [w, h] = [Math.min(22, 900 / attention[0].length), 14];
  const most = Math.max(...attention.flat());
  const picture = draw("svg", { viewBox: `0 0 ${60 + w * attention[0].length} ${h * attention.length}`, role: "img", "aria-label": "Attention of every head to every token" });
  picture.style.maxWidth = `${60 + w * attention[0].length}px`;
  attention.forEach((row, head) => {
    picture.append(draw("text", { x: 52, y: head * h + 11, "text-anchor": "end" }, `head ${head}`));
    row.forEach((value, i) => picture.append(draw("rect", { x: 60 + i * w, y: head * h, width: w, height: h - 1, fill: css(colour(RISING, value / most)) })));
  });
  return picture;
};

// Eigenvalues by head, one of them in colour (-1 for all); `past` are those at times that were seen before.
const plane = (heads, name, own, past = []) => {
  const size = 240;
  const reach = Math.max(...[heads, ...past].flat(3).map(Math.abs), 1e-12) * 1.08;
  const at = (value) => (size / 2) * (1 + value / reach);
  const picture = draw("svg", { viewBox: `0 0 ${size} ${size + 16}`, role: "img", "aria-label": `Eigenvalues of ${name} in the complex plane` });
  picture.style.maxWidth = "17rem";
  picture.append(draw("path", { d: `M0 ${size / 2}H${size}M${size / 2} 0V${size}`, stroke: "var(--line)", fill: "none" }));
  const dots = (of, r, look) => of.forEach((values, head) => {
    for (const [re, im] of values) picture.append(draw("circle", { cx: at(re), cy: size - at(im), r, ...look(own < 0 || !of[own] || head === own) }));
  });
  for (const one of past) dots(one.map((values, head) => (own < 0 || !one[own] || head === own ? values : [])), 1, () => ({ fill: "var(--series-0)", opacity: 0.35, class: "past" }));
  dots(heads, 2.5, (chosen) => (chosen ? { fill: "var(--series-0)", opacity: 0.9 } : { fill: "var(--quiet)", opacity: 0.3 }));
  picture.append(draw("text", { x: size, y: size / 2 - 4, "text-anchor": "end" }, written(reach, 2)), draw("text", { x: 0, y: size + 12 }, "real part across, imaginary part up"));
  return picture;
};
