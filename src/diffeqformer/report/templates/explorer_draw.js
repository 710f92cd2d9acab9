// What the explorer draws with.
const $ = (id) => document.getElementById(id);
const about = JSON.parse($("about").textContent);
const MARK = "#b3261e";
const written = (value, digits = 3) => (value === null ? "–" : minus(digits > 2 && value && Math.abs(value) < 0.001 ? value.toExponential(1) : value.toFixed(digits)));
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

// A row of colours for every head, and its name beside it, which no width makes smaller.
const strips = (attention) => {
  const count = attention[0].length;
  const most = largest(attention, 0);
  return attention.flatMap((row, head) => {
    const picture = draw("svg", { viewBox: `0 0 ${count} 1`, preserveAspectRatio: "none", role: "img", "aria-label": `Attention of head ${head} to every token` });
    picture.style.maxWidth = `${22 * count}px`;
    row.forEach((value, i) => picture.append(draw("rect", { x: i, y: 0, width: 1, height: 1, fill: css(colour(RISING, value / most)) })));
    return [make("span", { textContent: `head ${head}` }), picture];
  });
};
const swatch = (shade) => { const sample = make("i"); sample.style.background = css(shade); return sample; };
const range = (low, high, shades = [0, 0.5, 1].map((share) => colour(RISING, share))) => [`${low} `, ...shades.map(swatch), ` ${high}`];

// The next number above that is easy to read.
const easy = (value) => {
  const unit = 10 ** Math.floor(Math.log10(value));
  return unit * [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((one) => one >= (value / unit) * (1 - 1e-9));
};
// Of any number of values: Math.max takes some hundred thousand arguments at most.
const largest = (values, least) => values.flat(Infinity).reduce((most, value) => Math.max(most, Math.abs(value)), least);
// Eigenvalues by head, one of them in colour (-1 for all); `past` are those at times that were seen before; both axes
// end at `reach`, or further if a value is there.
const plane = (heads, name, own, past = [], reach = 0) => {
  const [size, half] = [240, 104];
  const end = easy(largest([heads, ...past], Math.max(reach, 1e-12)));
  const at = (value) => size / 2 + (half * value) / end;
  const picture = draw("svg", { viewBox: `0 0 ${size} ${size + 16}`, class: "plane", role: "img", "aria-label": `Eigenvalues of ${name} in the complex plane, both axes from ${minus(String(-end))} to ${end}` });
  const [low, high, tick] = [size / 2 - half, size / 2 + half, 4];
  const marks = [low, high].map((x) => `M${x} ${size / 2 - tick}v${2 * tick}M${size / 2 - tick} ${x}h${2 * tick}`).join("");
  picture.append(draw("path", { d: `M0 ${size / 2}H${size}M${size / 2} 0V${size}`, stroke: "var(--line)", fill: "none" }), draw("path", { d: marks, stroke: "var(--quiet)", fill: "none" }));
  const dots = (of, r, look) => of.forEach((values, head) => {
    for (const [re, im] of values) picture.append(draw("circle", { cx: at(re), cy: size - at(im), r, ...look(own < 0 || !of[own] || head === own) }));
  });
  for (const one of past) dots(one.map((values, head) => (own < 0 || !one[own] || head === own ? values : [])), 1, () => ({ fill: "var(--series-0)", opacity: 0.35, class: "past" }));
  dots(heads, 2.5, (chosen) => (chosen ? { fill: "var(--series-0)", opacity: 0.9 } : { fill: "var(--quiet)", opacity: 0.3 }));
  const number = String(Number(end.toPrecision(2)));
  const label = (x, y, anchor, text) => draw("text", { x, y, "text-anchor": anchor }, text);
  picture.append(label(low, size / 2 + 17, "middle", `−${number}`), label(high, size / 2 + 17, "middle", number),
    label(size / 2 + 8, low + 4, "start", `${number} i`), label(size / 2 + 8, high + 4, "start", `−${number} i`),
    label(0, size + 12, "start", "real part across, imaginary part up"));
  return picture;
};

// The grid as a picture of its own.
const gridPicture = ({ tokens, top, p }, values, paint, said) => {
  const [w, h, left] = [84, 30, 64];
  const [width, height] = [left + w * tokens.length, h * (top.length + 1) + 24];
  const short = (piece) => (piece.length > 11 ? `${piece.slice(0, 10)}…` : piece);
  const image = draw("svg", { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${width} ${height}`, width, height, "font-family": "monospace", "font-size": 11 });
  image.append(draw("rect", { width, height, fill: "#ffffff" }));
  tokens.forEach((token, i) => image.append(draw("text", { x: left + w * i + 4, y: 18, fill: "#1c2128", "font-weight": "bold" }, short(token))));
  top.forEach((row, step) => {
    const y = h * (step + 1);
    image.append(draw("text", { x: 4, y: y + 18, fill: "#5b6470" }, step ? `step ${step}` : "depth 0"));
    row.forEach((piece, i) => {
      const value = values[step]?.[i] ?? null;
      const shade = value === null ? [255, 255, 255] : paint(value);
      image.append(draw("rect", { x: left + w * i, y, width: w - 1, height: h - 1, fill: css(shade) }),
        draw("text", { x: left + w * i + 4, y: y + 13, fill: ink(shade) }, short(piece)),
        draw("text", { x: left + w * i + 4, y: y + 24, fill: ink(shade), "font-size": 9 }, `p ${written(p[step][i], 2)}`));
    });
  });
  image.append(draw("text", { x: 4, y: height - 8, fill: MARK }, said));
  return new XMLSerializer().serializeToString(image);
};
