// The scales of colours: RISING and BOTH are those of all figures.
const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const colour = (stops, share) => {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const left = Math.min(Math.floor(place), stops.length - 2);
  const [a, b] = [channels(stops[left]), channels(stops[left + 1])];
  return a.map((value, i) => Math.round(value + (place - left) * (b[i] - value)));
};
const css = (rgb) => `rgb(${rgb.join(" ")})`;
const ink = ([r, g, b]) => (0.3 * r + 0.59 * g + 0.11 * b > 140 ? "#1c2128" : "#ffffff");

const minus = (text) => text.replaceAll("-", "−");
const known = (value) => typeof value === "number";
const extent = (values) => [Math.min(...values), Math.max(...values)];
// The range of some rows of scores: both signs are drawn about zero, one sign from the least to the most. An output's
// score of itself, which may be many times the others', is left out, if there are others; it is cut to the scale.
const scaleOf = (rows, owns, signed) => {
  let [low, high] = [Infinity, -Infinity];
  const others = rows.map((row, i) => row.filter((value, place) => known(value) && place !== owns[i]));
  for (const values of others.some((row) => row.length) ? others : rows.map((row) => row.filter(known))) {
    if (values.length) {
      const [least, most] = extent(values);
      [low, high] = [Math.min(low, least), Math.max(high, most)];
    }
  }
  if (low > high) [low, high] = [0, 0];
  if (signed) [low, high] = [-Math.max(-low, high), Math.max(-low, high)];
  const share = (value) => (value - low) / (high - low || Number.MIN_VALUE);
  const paint = (value) => colour(signed ? BOTH : RISING, high > low || value > high ? share(value) : signed ? 0.5 : 0);
  return { low, high, paint, beyond: (value) => known(value) && (value < low || value > high) };
};
