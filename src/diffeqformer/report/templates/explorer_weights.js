// The weights of a model as functions of depth and of the length of the step: the formulas of `ode/weights/`.
const weightsOf = (run, arrays) => {
  const { model } = run;
  const { weights } = model;

  const edgesOf = (steps) => {
    if (steps === run.steps && model.edges.length) return model.edges;
    if (model.odd.length) {
      // Steps of the two usual numbers of equal steps beside this one: of equal parts, some have one step more.
      const usual = model.odd.flatMap((factor) => Array.from({ length: 16 }, (_, j) => factor * 2 ** j)).sort((a, b) => a - b);
      const [few, many] = [usual.findLast((n) => n <= steps), usual.find((n) => n > steps)];
      const parts = many - few;
      const counts = Array.from({ length: parts }, (_, part) => few / parts + Number(part >= many - steps));
      return [...counts.flatMap((count, part) => Array.from({ length: count }, (_, i) => (part * count + i) / (parts * count))), 1];
    }
    if (weights.kind === "levels" && steps >= weights.levels[0]) {
      // Of the equal steps of a level, those between the first and last ones are divided as evenly as possible.
      const n = weights.levels.findLast((level) => level <= steps);
      const whole = n > 2 ? Math.max(1, Math.floor(n / 4)) : 0;
      const [between, pieces] = [n - 2 * whole, steps - 2 * whole];
      const first = whole + Math.floor((between - (pieces % between)) / 2);
      const count = (step) => (step < whole || step >= n - whole ? 1
        : Math.floor(pieces / between) + Number(step >= first && step < first + (pieces % between)));
      const counts = Array.from({ length: n }, (_, step) => count(step));
      return [...counts.flatMap((parts, step) => Array.from({ length: parts }, (_, part) => (step + part / parts) / n)), 1];
    }
    const first = steps > 1 ? model.firstStep ?? 1 / steps : 1;
    const rest = (i) => (model.firstStep === null ? i / steps : first + ((1 - first) * (i - 1)) / (steps - 1));
    return Array.from({ length: steps + 1 }, (_, i) => (i === 0 ? 0 : i === steps ? 1 : rest(i)));
  };

  // W(t) = sum_k c_k(t) B_k: the coefficients of a unit's rows at a time, `node` of step `index` of `steps`.
  const dense = (x, name) => linear(x, { weight: arrays[`${name}.weight`].values, bias: arrays[`${name}.bias`].values }, x.length);
  const network = (name, t) => {
    const angles = weights.frequencies.map((w) => w * t);
    const inner = dense(Float32Array.from([t, ...angles.map(Math.sin), ...angles.map(Math.cos)]), `${name}.first`);
    return [1, ...dense(inner.map((v) => v / (1 + Math.exp(-v))), `${name}.second`)];
  };
  const basis = (t, { knots, place, bends, box }) => {
    const at = Math.round(1e9 * Math.min(Math.max(t * knots - place, 0), knots - 1)) / 1e9;
    const left = Math.min(Math.max(Math.floor(at), 0), Math.max(knots - 2, 0));
    const right = Math.min(left + 1, knots - 1);
    const b = box ? (Math.sign(at - left - 0.5) + 1) / 2 : at - left;
    const a = 1 - b;
    return Array.from({ length: knots }, (_, k) => a * (k === left) + b * (k === right)
      + (bends.length ? ((a ** 3 - a) * bends[left][k] + (b ** 3 - b) * bends[right][k]) / 6 : 0));
  };
  // The mean over a step, by Gauss and Legendre's rule of two points, exact between edges and halves of knots.
  const mean = ({ t, node, length }, about) => {
    const [from, to] = [t - node * length, t + (1 - node) * length];
    const breaks = Array.from({ length: 2 * about.knots - 1 }, (_, k) => (k + 1) / (2 * about.knots));
    const ends = [from, ...breaks.filter((at) => from < at && at < to), to];
    const sum = new Array(about.knots).fill(0);
    ends.slice(1).forEach((end, i) => [-1, 1].forEach((side) => {
      const half = (end - ends[i]) / 2;
      const at = ends[i] + half + (side * half) / Math.sqrt(3);
      basis(at, about).forEach((value, k) => { sum[k] += (value * half) / length; });
    }));
    return sum;
  };
  const coefficients = (unit, when) => {
    const { t, index, node } = when;
    if (weights.kind === "time") return network(weights.shared ? "shared" : unit, t);
    if (weights.kind === "knots") return weights.average && when.length ? mean(when, weights) : basis(t, weights);
    if (weights.kind === "shared") return [1];
    if (weights.kind === "levels") return ofLevel(when);
    const row = weights.kept ? layerOf(when) : rowOf(unit, when);
    return Array.from({ length: row + 1 }, (_, k) => Number(k === row));
  };
  // The mean over the step of the table that a reading of so many steps takes; between steps, the longest table.
  const ofLevel = (when) => {
    const level = when.length ? weights.levels.findLast((n) => n <= when.steps) ?? weights.levels[0] : weights.levels.at(-1);
    const about = { knots: level, place: 0.5, bends: [], box: true };
    const own = when.length ? mean(when, about) : basis(when.t + 1e-9, about);
    return weights.levels.flatMap((knots) => (knots === level ? own : new Array(knots).fill(0)));
  };
  const layerOf = ({ t, index, steps }) => {
    const layers = weights.kept.length;
    const at = steps ? index : Math.min(Math.floor(Math.round(1e9 * t * layers) / 1e9), layers - 1);
    return weights.kept[(steps || layers) - 1][at];
  };
  const rowOf = (unit, { index, node }) => {
    const nodes = weights.nodes[unit.split(".")[0]];
    const near = nodes.map((c) => Math.round(1e6 * Math.abs(c - node)));
    return index * nodes.length + near.indexOf(Math.min(...near));
  };
  // Hat functions over log2(1 / length), with knots at 1, 1/2, 1/4 ...
  const overLength = (length, knots) => {
    const halvings = Math.min(Math.max(-Math.log2(length), 0), knots - 1);
    return Array.from({ length: knots }, (_, j) => Math.max(0, 1 - Math.abs(halvings - j)));
  };
  // Low-rank corrections of a linear map by the length of the step, of all rows as they are mixed.
  const correct = (weight, name, c, { length }) => {
    const [a, b] = [arrays[`${name}.corrections.a`], arrays[`${name}.corrections.b`]];
    const [lengths, rows, inputs, rank] = a.shape;
    const outputs = b.shape[3];
    overLength(length || (weights.kept ? 1 / weights.kept.length : 0), lengths).forEach((share, j) => c.forEach((value, k) => {
      if (share * value) for (let i = 0; i < inputs; i += 1) for (let r = 0; r < rank; r += 1) {
        const by = share * value * a.values[((j * rows + k) * inputs + i) * rank + r];
        const from = ((j * rows + k) * rank + r) * outputs;
        for (let o = 0; o < outputs; o += 1) weight[i * outputs + o] += by * b.values[from + o];
      }
    }));
  };
  // Norms and gains by depth and by the length of the step.
  const hats = { place: 0.5, bends: [] };
  const modulated = (name, made, { t, length }) => {
    const [half, part] = name.split(".");
    const mixed = (which) => {
      const found = arrays[`modulated.${half}.${which}`];
      if (!found) return null;
      const { values, shape: [knots, lengths, size] } = found;
      const mix = new Float32Array(size);
      basis(t, { knots, ...hats }).forEach((a, m) => overLength(length, lengths).forEach((share, j) => {
        if (a * share) for (let i = 0; i < size; i += 1) mix[i] += a * share * values[(m * lengths + j) * size + i];
      }));
      return mix;
    };
    const scaled = (values, by) => values && values.map((v, i) => v * (1 + by[i % by.length]));
    if (part === "norm") {
      const [s, b] = [mixed("scale"), mixed("shift")];
      return { ...made, scale: made.scale ? scaled(made.scale, s) : s.map((v) => 1 + v), shift: b ? b.map((v, i) => v + (made.shift ? made.shift[i] : 0)) : made.shift };
    }
    if (part !== "output" && part !== "down") return made;
    const gain = mixed("gain");
    return { ...made, weight: scaled(made.weight, gain), bias: scaled(made.bias, gain) };
  };
  const kept = new Map();
  const unit = (name, when) => {
    const { t, length, index, node, steps } = when;
    const key = `${name} ${t} ${length} ${["layer", "levels"].includes(weights.kind) || weights.average ? `${index} ${node} ${steps}` : ""}`;
    if (!kept.has(key)) {
      if (kept.size > 400) kept.clear();
      const c = coefficients(name, when);
      const leaf = (which) => {
        const rows = arrays[`${name}.${which}`];
        if (!rows) return null;
        const size = rows.values.length / rows.shape[0];
        const made = new Float32Array(size);
        c.forEach((value, k) => {
          const row = rows.values.subarray(k * size, (k + 1) * size);
          if (value) for (let i = 0; i < size; i += 1) made[i] += value * row[i];
        });
        return made;
      };
      const made = Object.fromEntries(["weight", "bias", "scale", "shift"].map((which) => [which, leaf(which)]));
      if (arrays[`${name}.corrections.a`]) correct(made.weight, name, c, when);
      kept.set(key, weights.modulated ? modulated(name, made, when) : made);
    }
    return kept.get(key);
  };
  // The final norm of a reading at a number of steps.
  const finals = new Map();
  const finalOf = (steps) => {
    if (!finals.has(steps)) finals.set(steps, finalAt(steps));
    return finals.get(steps);
  };
  const finalAt = (steps) => {
    const [scale, shift] = ["scale", "shift"].map((name) => arrays[`final.${name}`]?.values);
    const changed = (values, which, add) => {
      const changes = arrays[`final.changes.${which}`];
      if (!changes) return values;
      const [lengths, size] = changes.shape;
      const shares = overLength(1 / steps, lengths);
      return values.map((value, i) => add(value, shares.reduce((sum, share, j) => sum + share * changes.values[j * size + i], 0)));
    };
    return { scale: changed(scale, "scale", (n, s) => n * (1 + s)), shift: changed(shift, "shift", (n, b) => n + b) };
  };

  return { edgesOf, unit, finalOf };
};
