// The model itself, in plain JavaScript: the formulas of `ode/` and `nn/`, on arrays that stand in the page and its
// weights over depth, in explorer_weights.js.
const backend = (() => {
  const { runs } = JSON.parse(document.getElementById("about").textContent);

  const open = (run, number) => {
    const { model, tokenizer, pieces } = run;
    const arrays = decode(document.getElementById(`arrays-${number}`).textContent, model.arrays);
    const { width, heads, kvHeads, gated, head_width: head } = model;
    const across = heads * head;
    const encode = encoder(tokenizer);

    const { edgesOf, unit, finalOf } = weightsOf(run, arrays);

    const normed = (x, name, when) => {
      const { scale, shift } = unit(name, when);
      return normalise(x, width, model.norm_epsilon, !gated, scale, shift);
    };

    // Attention weights of one head at one query, over the positions up to it.
    const projections = (x, when) => {
      const all = linear(normed(x, "attention.norm", when), unit("attention.query_key_value", when), width);
      const stride = across + 2 * kvHeads * head;
      if (model.rope_theta !== null) for (let r = 0; r * stride < all.length; r += 1) for (let h = 0; h < heads + kvHeads; h += 1) for (let i = 0; i < head / 2; i += 1) {
        const [at, angle] = [r * stride + h * head + i, r * model.rope_theta ** ((-2 * i) / head)];
        const [a, b, cos, sin] = [all[at], all[at + head / 2], Math.cos(angle), Math.sin(angle)];
        [all[at], all[at + head / 2]] = [a * cos - b * sin, b * cos + a * sin];
      }
      return { all, stride };
    };
    const row = ({ all, stride }, h, query) => {
      const key = across + Math.floor((h * kvHeads) / heads) * head;
      const scores = new Float64Array(query + 1);
      for (let k = 0; k <= query; k += 1) {
        let dot = 0;
        for (let i = 0; i < head; i += 1) dot += all[query * stride + h * head + i] * all[k * stride + key + i];
        scores[k] = dot / Math.sqrt(head);
      }
      const most = Math.max(...scores);
      const powers = scores.map((s) => Math.exp(s - most));
      const total = powers.reduce((a, b) => a + b, 0);
      return powers.map((p) => p / total);
    };
    const attention = (x, when) => {
      const found = projections(x, when);
      const mixed = new Float32Array((x.length / width) * across);
      for (let query = 0; query * width < x.length; query += 1) for (let h = 0; h < heads; h += 1) {
        const value = across + (kvHeads + Math.floor((h * kvHeads) / heads)) * head;
        row(found, h, query).forEach((share, k) => {
          for (let i = 0; i < head; i += 1) mixed[query * across + h * head + i] += share * found.all[k * found.stride + value + i];
        });
      }
      return linear(mixed, unit("attention.output", when), across);
    };
    const feedForward = (x, when, attends) => {
      const y = normed(model.nested_norm ? normed(x, "attention.norm", attends) : x, "feed_forward.norm", when);
      const up = linear(y, unit("feed_forward.up", when), width);
      const gate = gated ? linear(y, unit("feed_forward.gate", when), width) : null;
      const gelu = (v) => 0.5 * v * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (v + 0.044715 * v ** 3)));
      const inner = up.map((v, i) => (gate ? (gate[i] / (1 + Math.exp(-gate[i]))) * v : gelu(v)));
      return linear(inner, unit("feed_forward.down", when), model.hidden);
    };

    // One step of a scheme; `A` and `M` are the halves at a node of the step.
    const advance = (scheme, A, M, x, dt) => {
      if (scheme.kind === "runge-kutta") {
        const slopes = [];
        const combine = (by) => by.reduce((y, w, j) => (w ? sum(y, dt * w, slopes[j]) : y), x);
        scheme.c.forEach((c, i) => {
          const at = combine(scheme.a[i]);
          slopes.push(sum(A(c, at), 1, M(c, at)));
        });
        return combine(scheme.b);
      }
      if (scheme.kind === "lie-trotter") {
        const by = scheme.layers ? 1 : dt;
        const y = sum(x, by, A(scheme.node, x));
        return sum(y, by, M(scheme.node, y));
      }
      const [euler, midpoint] = [(half, c, y, by) => sum(y, by, half(c, y)), (half, c, y, by) => sum(y, by, half(c, sum(y, by / 2, half(c, y))))];
      const [flow, c] = scheme.kind === "strang" ? [midpoint, [0.5, 0.5, 0.5]] : [euler, [0.25, 0.5, 0.75]];
      return flow(M, c[2], flow(A, c[1], flow(M, c[0], x, dt / 2), dt), dt / 2);
    };

    const final = (rows, steps) => {
      const { scale, shift } = finalOf(steps);
      return normalise(rows, width, model.finalEpsilon, Boolean(shift), scale, shift);
    };
    // A token whose straight line ends where it ended a step before, to within the threshold, goes on straight.
    const earlyExit = (start, threshold, steps) => {
      const count = start.length / width;
      const [slope, settled, taken] = [new Float32Array(start.length), Array(count).fill(false), Array(count).fill(0)];
      const exit = { end: start, taken };
      let left = model.interval;
      exit.step = (x, next, dt) => {
        left -= dt;
        const end = exit.end.slice();
        const y = x.map((value, i) => {
          if (settled[Math.floor(i / width)]) return value + dt * slope[i];
          slope[i] = (next[i] - value) / dt;
          end[i] = next[i] + left * slope[i];
          return next[i];
        });
        const [now, before] = [final(end, steps), final(exit.end, steps)];
        for (let r = 0; r < count; r += 1) if (!settled[r]) {
          let square = 0;
          for (let i = r * width; i < (r + 1) * width; i += 1) square += (now[i] - before[i]) ** 2 / width;
          settled[r] = taken[r] > 0 && Math.sqrt(square) < threshold;
          taken[r] += 1;
        }
        exit.end = end;
        return y;
      };
      return exit;
    };

    const pause = () => new Promise((done) => { setTimeout(done); });
    const passes = new Map();
    const walk = async ({ text, steps, scheme, added = [], threshold = null }) => {
      const key = JSON.stringify([text, steps, scheme, added, threshold]);
      if (passes.has(key)) return passes.get(key);
      const ids = [...encode(text), ...added];
      if (!ids.length) throw new Error("The text has no tokens; give some text.");
      if (ids.length > model.context) throw new Error(`The text has ${ids.length} tokens, but the model's context is ${model.context}; give a shorter text.`);
      let x = new Float32Array(ids.length * width);
      ids.forEach((id, r) => {
        for (let i = 0; i < width; i += 1) x[r * width + i] = arrays.embedding.values[id * width + i] + (arrays.positions ? arrays.positions.values[r * width + i] : 0);
      });
      if (model.embeddingNorm) x = normalise(x, width, model.norm_epsilon, false);
      const [edges, states, moved, looked] = [edgesOf(steps), [x], { attention: [], feed_forward: [] }, []];
      const exit = threshold === null ? null : earlyExit(x, threshold, steps);
      for (let index = 0; index < steps; index += 1) {
        const length = edges[index + 1] - edges[index];
        const dt = model.interval * length;
        const when = (node) => ({ t: edges[index] + node * length, length, index, node, steps });
        const seen = { attention: [], feed_forward: [], states: [] };
        const span = model.schemes[scheme].layers ? 1 : dt;
        const half = (name, of) => (node, y) => {
          const out = of(y, when(node), when(model.schemes[scheme].attends ?? node));
          seen[name].push(ids.map((_, r) => out.subarray(r * width, (r + 1) * width).reduce((s, v) => s + (span * v) ** 2 / width, 0)));
          if (name === "attention") seen.states.push([y, when(node)]);
          return out;
        };
        const next = advance(model.schemes[scheme], half("attention", attention), half("feed_forward", feedForward), x, dt);
        x = exit ? exit.step(x, next, dt) : next;
        for (const name of ["attention", "feed_forward"]) moved[name].push(ids.map((_, r) => Math.sqrt(seen[name].reduce((s, one) => s + one[r], 0) / seen[name].length)));
        states.push(x);
        looked.push(seen.states);
        await pause();
      }
      const found = { ids, edges, states, moved, looked, end: exit ? exit.end : x, taken: exit ? exit.taken : ids.map(() => steps) };
      if (passes.size > 6) passes.clear();
      passes.set(key, found);
      return found;
    };

    // log p of every token after the position `r` of a state.
    const table = (arrays.head ?? arrays.embedding).values;
    const predictions = (state, r, steps) => {
      const y = final(state.subarray(r * width, (r + 1) * width), steps);
      const logits = new Float64Array(table.length / width);
      for (let v = 0; v < logits.length; v += 1) {
        let dot = 0;
        for (let i = 0; i < width; i += 1) dot += y[i] * table[v * width + i];
        logits[v] = dot;
      }
      const most = logits.reduce((a, b) => Math.max(a, b));
      const total = Math.log(logits.reduce((s, v) => s + Math.exp(v - most), 0)) + most;
      return logits.map((v) => v - total);
    };

    const read = async (question) => {
      const { ids, edges, states, moved } = await walk(question);
      const found = { tokens: ids.map((id) => pieces[id]), ids, times: edges, top: [], top_ids: [], p: [], kl: [], next: [], moved };
      const end = ids.map((_, r) => predictions(states.at(-1), r, question.steps));
      for (const state of states) {
        const here = state === states.at(-1) ? end : ids.map((_, r) => predictions(state, r, question.steps));
        const top = here.map((log) => log.indexOf(log.reduce((a, b) => Math.max(a, b))));
        found.top.push(top.map((id) => pieces[id]));
        found.top_ids.push(top);
        found.p.push(top.map((id, r) => Math.exp(here[r][id])));
        found.kl.push(here.map((log, r) => Math.max(0, end[r].reduce((s, e, v) => s + Math.exp(e) * (e - log[v]), 0))));
        found.next.push(ids.slice(1).map((id, r) => Math.exp(here[r][id])));
        await pause();
      }
      found.loss = ids.length > 1 ? found.next.map((row) => -row.reduce((s, p) => s + Math.log(p), 0) / row.length) : null;
      return found;
    };

    // Eigenvalues of a product L R, from the smaller of L R and R L; factors are functions of row and column.
    const ofProduct = (left, right, n, r) => {
      const [size, inner, a, b] = r < n ? [r, n, right, left] : [n, r, left, right];
      const product = new Float64Array(size * size);
      for (let i = 0; i < size; i += 1) for (let k = 0; k < inner; k += 1) {
        const value = a(i, k);
        for (let j = 0; j < size; j += 1) product[i * size + j] += value * b(k, j);
      }
      return eigenvalues(product, size);
    };
    const spectraOfHeads = (when) => {
      const [all, out, stride] = [unit("attention.query_key_value", when).weight, unit("attention.output", when).weight, across + 2 * kvHeads * head];
      const of = (start) => (i, j) => all[i * stride + start + j];
      const each = (find) => Array.from({ length: heads }, (_, h) => find(h, across + Math.floor((h * kvHeads) / heads) * head));
      return {
        QK: each((h, key) => ofProduct(of(h * head), (i, j) => of(key)(j, i), width, head)),
        OV: each((h, key) => ofProduct(of(key + kvHeads * head), (i, j) => out[(h * head + i) * width + j], width, head)),
      };
    };
    // Where a step takes weights that are shown at a time, if one does: at a node, which may be drawn elsewhere.
    const whenAt = (time, half) => {
      const [edges, drawn, taken] = [edgesOf(run.steps), model.nodes.drawn[half], model.nodes.taken[half]];
      for (let index = 0; run.stops.length && index < run.steps; index += 1) {
        const length = edges[index + 1] - edges[index];
        const place = drawn.findIndex((node) => Math.abs(edges[index] + node * length - time) < 1e-8);
        const node = drawn.length === taken.length ? taken[place] : drawn[place];
        if (place >= 0) return { t: edges[index] + node * length, index, node, length, steps: run.steps };
      }
      const index = Math.max(0, edges.findIndex((edge) => edge >= time - 1e-9) - 1);
      return { t: time, index, node: (time - edges[index]) / (edges[index + 1] - edges[index]), length: 0, steps: 0 };
    };
    const weightsAt = async ({ time }) => {
      const when = whenAt(time, "feed_forward");
      const [up, down] = [unit("feed_forward.up", when).weight, unit("feed_forward.down", when).weight];
      return { ...spectraOfHeads(whenAt(time, "attention")), FF: [ofProduct((i, j) => up[i * model.hidden + j], (i, j) => down[i * width + j], width, model.hidden)] };
    };

    const predict = async ({ since, ...question }) => {
      const { ids, end, taken } = await walk(question);
      const found = { ids: [], pieces: [], p: [], taken: taken.slice(since) };
      for (let r = since; r < ids.length; r += 1) {
        const log = predictions(end, r, question.steps);
        const id = log.indexOf(log.reduce((a, b) => Math.max(a, b)));
        found.ids.push(id);
        found.pieces.push(pieces[id]);
        found.p.push(Math.exp(log[id]));
      }
      return found;
    };

    const cell = async ({ step, position, ...question }) => {
      const { edges, states, looked } = await walk(question);
      const log = predictions(states[step], position, question.steps);
      const best = Array.from(log.keys()).sort((a, b) => log[b] - log[a]).slice(0, 10);
      const evaluations = step ? looked[step - 1].map(([y, when]) => projections(y, when)) : [];
      const mean = (h) => evaluations.map((one) => Array.from(row(one, h, position))).reduce((a, b) => a.map((v, i) => v + b[i])).map((v) => v / evaluations.length);
      return {
        top: best.map((id) => [pieces[id], Math.exp(log[id])]),
        time: edges[step],
        attention: step ? Array.from({ length: heads }, (_, h) => mean(h)) : null,
        eigenvalues: step ? spectraOfHeads(looked[step - 1].at(-1)[1]) : null,
      };
    };
    // The largest real or imaginary part over all steps.
    const reach = async (question) => {
      const found = (await walk(question)).looked.map((evaluations) => spectraOfHeads(evaluations.at(-1)[1]));
      return Object.fromEntries(["QK", "OV"].map((name) => [name, largest(found.map((one) => one[name]), 0)]));
    };
    return { read, cell, predict, reach, weights: weightsAt };
  };

  const opened = [];
  const of = (run) => (opened[run] ??= open(runs[run], run));
  return Object.fromEntries(["read", "cell", "predict", "reach", "weights"].map((name) => [name, async (question) => of(question.run)[name](question)]));
})();
