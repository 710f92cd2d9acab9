"""The authors' Llama as formulas in float64 NumPy, which share no code with the library; a golden file is of them.

Its RMSNorms have a shift, scale and shift depend on time, the feed-forward normalises what attention's norm gives, and
epsilon is 1e-6 in blocks and 1e-5 at the end. Every linear map and every norm has a time network of its own.
"""

import numpy as np

SIZES = {"steps": 3, "width": 8, "heads": 4, "kv_heads": 2, "hidden": 12, "context": 10, "vocabulary": 24}
D_EMB, FREQUENCIES, HIGHEST, LOWEST, ROPE_THETA = 3, 2, 1000.0, 0.1, 100.0
BLOCK_EPSILON, FINAL_EPSILON = 1e-6, 1e-5
KV_WIDTH = SIZES["width"] // SIZES["heads"] * SIZES["kv_heads"]
MATRICES = {
    "attention.query_key_value": (SIZES["width"], SIZES["width"] + 2 * KV_WIDTH),
    "attention.output": (SIZES["width"], SIZES["width"]),
    "feed_forward.up": (SIZES["width"], SIZES["hidden"]),
    "feed_forward.gate": (SIZES["width"], SIZES["hidden"]),
    "feed_forward.down": (SIZES["hidden"], SIZES["width"]),
}
NORMS = ("attention.norm", "feed_forward.norm")
SMALL = 2.0**-9
"""Of the embedding and of what is added to it: so that the state is of the size of the roots of the epsilons."""


def random_parameters(seed: int) -> dict[str, np.ndarray]:
    """Every parameter random, a multiple of a power of two: exact in float16, and quick to compress."""
    draw = np.random.default_rng(seed).normal

    def rounded(*shape: int, std: float = 0.3, scale: float = 1.0) -> np.ndarray:
        return np.round(32 * std * draw(size=shape)) / 32 * scale

    found = {"tokens": rounded(SIZES["vocabulary"], SIZES["width"], scale=SMALL)}
    found["head"] = rounded(SIZES["vocabulary"], SIZES["width"])
    found["final_norm"] = 1 + rounded(SIZES["width"])
    for unit in (*MATRICES, *NORMS):
        found[f"{unit}.L1"], found[f"{unit}.b1"] = rounded(2 * FREQUENCIES + 1, D_EMB, std=1.0), rounded(D_EMB)
        found[f"{unit}.L2"], found[f"{unit}.b2"] = rounded(D_EMB, D_EMB, std=1.0), rounded(D_EMB, std=1.0)
    for unit, shape in MATRICES.items():
        scale = SMALL if unit.endswith(("output", "down")) else 1.0
        found[f"{unit}.P"] = rounded(*shape, D_EMB, scale=scale)
        found[f"{unit}.C"] = rounded(*shape, scale=scale)
    for unit in NORMS:
        found[f"{unit}.G"], found[f"{unit}.S"] = rounded(SIZES["width"], D_EMB), rounded(SIZES["width"], D_EMB)
    return found


def hidden(p: dict[str, np.ndarray], unit: str, t: float) -> np.ndarray:
    """`h(t) = L2 silu(L1 e(t) + b1) + b2`."""
    f = [HIGHEST * (LOWEST / HIGHEST) ** (k / FREQUENCIES) for k in range(FREQUENCIES)]
    e = np.array([t] + [np.sin(f_k * t) for f_k in f] + [np.cos(f_k * t) for f_k in f])
    return silu(e @ p[f"{unit}.L1"] + p[f"{unit}.b1"]) @ p[f"{unit}.L2"] + p[f"{unit}.b2"]


def silu(z: np.ndarray) -> np.ndarray:
    return z / (1 + np.exp(-z))


def rotated(x: np.ndarray) -> np.ndarray:
    """Turn the pairs `(x_i, x_(i + d/2))` of the vector at position p by `p theta^(-2i/d)`; `x` is (position, d)."""
    y, half = x.copy(), x.shape[1] // 2
    for p in range(x.shape[0]):
        for i in range(half):
            angle = p * ROPE_THETA ** (-i / half)
            y[p, i] = x[p, i] * np.cos(angle) - x[p, i + half] * np.sin(angle)
            y[p, i + half] = x[p, i + half] * np.cos(angle) + x[p, i] * np.sin(angle)
    return y


def logits_of(p: dict[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
    """Logits (position, vocabulary) of tokens (position,): Euler steps, each with the weights at its end."""
    x, steps = p["tokens"][ids], SIZES["steps"]
    for step in range(steps):
        t = (step + 1) / steps

        def matrix(unit: str, t: float = t) -> np.ndarray:
            return p[f"{unit}.P"] @ hidden(p, unit, t) + p[f"{unit}.C"]

        def norm(unit: str, x: np.ndarray, t: float = t) -> np.ndarray:
            h = hidden(p, unit, t)
            y = x / np.sqrt((x**2).mean(-1, keepdims=True) + BLOCK_EPSILON)
            return (1 + p[f"{unit}.G"] @ h) * y + p[f"{unit}.S"] @ h

        normed = norm("attention.norm", x)
        mixed = attended(normed @ matrix("attention.query_key_value")) @ matrix("attention.output")
        y = norm("feed_forward.norm", normed)
        y = (silu(y @ matrix("feed_forward.gate")) * (y @ matrix("feed_forward.up"))) @ matrix("feed_forward.down")
        x = x + (mixed + y) / steps
    x = p["final_norm"] * x / np.sqrt((x**2).mean(-1, keepdims=True) + FINAL_EPSILON)
    return x @ p["head"].T


def attended(query_key_value: np.ndarray) -> np.ndarray:
    """Causal attention, one query head after another; a head of keys and values serves two neighbouring ones."""
    width, heads, groups = SIZES["width"], SIZES["heads"], SIZES["heads"] // SIZES["kv_heads"]
    d, result = width // heads, []
    for head in range(heads):
        own, kv = head * d, head // groups * d
        query = rotated(query_key_value[:, own : own + d])
        keys = rotated(query_key_value[:, width + kv : width + kv + d])
        values = query_key_value[:, width + KV_WIDTH + kv : width + KV_WIDTH + kv + d]
        scores = query @ keys.T / np.sqrt(d)
        weights = np.tril(np.exp(scores - scores.max(-1, keepdims=True)))
        result.append(weights / weights.sum(-1, keepdims=True) @ values)
    return np.concatenate(result, axis=1)
