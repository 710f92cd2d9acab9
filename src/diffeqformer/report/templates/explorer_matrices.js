// Products, norms and eigenvalues, in plain loops.
// x (rows, inputs) times W (inputs, outputs), and the bias.
const linear = (x, { weight, bias }, inputs) => {
  const [rows, outputs] = [x.length / inputs, weight.length / inputs];
  const y = new Float32Array(rows * outputs);
  for (let r = 0; r < rows; r += 1) {
    const out = y.subarray(r * outputs, (r + 1) * outputs);
    if (bias) out.set(bias);
    for (let i = 0; i < inputs; i += 1) {
      const [value, from] = [x[r * inputs + i], i * outputs];
      for (let o = 0; o < outputs; o += 1) out[o] += value * weight[from + o];
    }
  }
  return y;
};
const normalise = (x, width, epsilon, centred, scale, shift) => {
  const y = new Float32Array(x.length);
  for (let from = 0; from < x.length; from += width) {
    let [mean, square] = [0, 0];
    if (centred) for (let i = 0; i < width; i += 1) mean += x[from + i] / width;
    for (let i = 0; i < width; i += 1) square += (x[from + i] - mean) ** 2 / width;
    const length = Math.sqrt(square + epsilon);
    for (let i = 0; i < width; i += 1) y[from + i] = ((x[from + i] - mean) / length) * (scale ? scale[i] : 1) + (shift ? shift[i] : 0);
  }
  return y;
};
const sum = (x, dt, y) => x.map((value, i) => value + dt * y[i]);

// Eigenvalues of a real matrix (n rows, one after the other), each as its real and imaginary part:
// Householder to Hessenberg form, then shifted QR steps in complex numbers (Golub & Van
// Loan, chapter 7).
const eigenvalues = (matrix, n) => {
  const [re, im] = [Float64Array.from(matrix), new Float64Array(n * n)];
  for (let k = 0; k < n - 2; k += 1) {
    const below = Array.from({ length: n - k - 1 }, (_, i) => re[(k + 1 + i) * n + k]);
    const length = Math.hypot(...below);
    if (!length) continue;
    const v = below.map((one) => one / length); // of rounding alone, they may be so small that their squares are zero
    v[0] += v[0] < 0 ? -1 : 1;
    const scale = 2 / v.reduce((s, one) => s + one * one, 0);
    for (let j = 0; j < n; j += 1) {
      const by = scale * v.reduce((s, one, i) => s + one * re[(k + 1 + i) * n + j], 0);
      v.forEach((one, i) => { re[(k + 1 + i) * n + j] -= by * one; });
    }
    for (let j = 0; j < n; j += 1) {
      const by = scale * v.reduce((s, one, i) => s + one * re[j * n + k + 1 + i], 0);
      v.forEach((one, i) => { re[j * n + k + 1 + i] -= by * one; });
    }
  }
  const size = (i, j) => Math.hypot(re[i * n + j], im[i * n + j]);
  const root = (x, y) => { const r = Math.hypot(x, y); return [Math.sqrt(Math.max(0, (r + x) / 2)), Math.sign(y || 1) * Math.sqrt(Math.max(0, (r - x) / 2))]; };
  // Rotate two rows (or, turned, two columns) p and q = p + 1 by [c, s; -s*, c] with c real, over some places.
  const rotate = (p, turned, c, sr, si, from, to) => {
    const [i, next, step] = [turned ? -si : si, turned ? 1 : n, turned ? n : 1];
    for (let j = from, a = turned ? from * n + p : p * n + from; j < to; j += 1, a += step) {
      const b = a + next;
      const ar = re[a], ai = im[a], br = re[b], bi = im[b];
      re[a] = c * ar + sr * br - i * bi;
      im[a] = c * ai + sr * bi + i * br;
      re[b] = c * br - sr * ar - i * ai;
      im[b] = c * bi - sr * ai + i * ar;
    }
  };
  const found = [];
  for (let [top, tries] = [n - 1, 0]; top >= 0;) {
    let low = top;
    while (low && size(low, low - 1) > 1e-15 * (size(low, low) + size(low - 1, low - 1))) low -= 1;
    if (low === top || tries > 60) {
      found.push([re[top * n + top], im[top * n + top]]);
      [top, tries] = [top - 1, 0];
      continue;
    }
    tries += 1;
    // Wilkinson's shift: the eigenvalue of the last two rows that is nearer to the last entry.
    const at = (i, j) => [re[i * n + j], im[i * n + j]];
    const [[ar, ai], [br, bi], [cr, ci], [dr, di]] = [at(top - 1, top - 1), at(top - 1, top), at(top, top - 1), at(top, top)];
    const [hr, hi, pr, pi] = [(ar - dr) / 2, (ai - di) / 2, br * cr - bi * ci, br * ci + bi * cr];
    let [wr, wi] = root(hr * hr - hi * hi + pr, 2 * hr * hi + pi);
    if (hr * wr + hi * wi < 0) [wr, wi] = [-wr, -wi];
    const [ur, ui] = [hr + wr, hi + wi];
    const square = ur * ur + ui * ui || 1e-300;
    const shift = tries % 20 ? [dr - (pr * ur + pi * ui) / square, di - (pi * ur - pr * ui) / square] : [dr + size(top, top - 1), di];
    for (let i = low; i <= top; i += 1) [re[i * n + i], im[i * n + i]] = [re[i * n + i] - shift[0], im[i * n + i] - shift[1]];
    const turns = [];
    for (let k = low; k < top; k += 1) {
      const [[xr, xi], [yr, yi]] = [at(k, k), at(k + 1, k)];
      const [x, whole] = [Math.hypot(xr, xi), Math.hypot(xr, xi, yr, yi)];
      const [er, ei] = x ? [xr / x, xi / x] : [1, 0];
      const [c, sr, si] = whole ? [x / whole, (er * yr + ei * yi) / whole, (ei * yr - er * yi) / whole] : [1, 0, 0];
      turns.push([k, c, sr, si]);
      rotate(k, false, c, sr, si, k, top + 1);
    }
    for (const [k, c, sr, si] of turns) rotate(k, true, c, sr, si, low, Math.min(k + 2, top) + 1);
    for (let i = low; i <= top; i += 1) [re[i * n + i], im[i * n + i]] = [re[i * n + i] + shift[0], im[i * n + i] + shift[1]];
  }
  return found;
};
