"""Logits of tests/data/oracle/ds41.gguf with equal index scores resolved to the lower row.

The oracle's own logits come from a top-k that leaves the order of equal scores open, and with two index heads exact zeros
are common. This is the same model in numpy, one token at a time, with a stable order. It also prints how far it is from
the oracle where no tie was met, which must be rounding only.

usage: ds41_ties.py ORACLE_FOLDER OUT.bin      (f32 little-endian, [tokens, vocabulary])
"""

import math
import sys

import gguf
import numpy as np

F = np.float32
EPS, HYPER_EPS, ROUNDS = F(1e-20), F(1e-6), 20


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def rms(x, weight=None):
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
    return y if weight is None else y * weight


def best(scores, n):
    """Places of the n largest, the lower place first among equals."""
    return np.argsort(-scores, kind="stable")[:n]


class Model:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.w = {t.name.removesuffix(".weight"): t.data.astype(F) for t in reader.tensors}
        self.k = {n.removeprefix("deepseek41."): f.contents() for n, f in reader.fields.items()}
        k = self.k
        self.heads, self.latent = k["attention.head_count"], k["attention.key_length"]
        self.ratios = k["attention.compress_ratios"]
        self.layers = k["block_count"]
        self.rings = [[] for _ in range(self.layers)]
        self.compressed, self.index = {}, {}
        self.partial = {}
        self.ids = []
        self.met_tie = False

    def rope(self, x, position, compressed, inverse=False):
        k = self.k
        dims = k["rope.dimension_count"]
        i = np.arange(dims // 2, dtype=np.float64)
        theta = k["attention.compress_rope_freq_base"] if compressed else k["rope.freq_base"]
        f = theta ** (-2 * i / dims)
        if compressed:
            context = k["rope.scaling.original_context_length"]
            pair = lambda beta: dims * math.log(context / (beta * 2 * math.pi)) / (2 * math.log(theta))
            low = max(math.floor(pair(k["rope.scaling.yarn_beta_fast"])), 0)
            high = min(math.ceil(pair(k["rope.scaling.yarn_beta_slow"])), dims - 1)
            ramp = np.clip((i - low) / max(high - low, 0.001), 0, 1)
            f = f / k["rope.scaling.factor"] * ramp + f * (1 - ramp)
        angle = f * position
        c, s = np.cos(angle).astype(F), np.sin(angle).astype(F)
        s = -s if inverse else s
        y = x.copy()
        even, odd = x[..., -dims::2], x[..., x.shape[-1] - dims + 1 :: 2]
        y[..., -dims::2] = even * c - odd * s
        y[..., x.shape[-1] - dims + 1 :: 2] = even * s + odd * c
        return y

    def engram(self, h, layer):
        k, w = self.k, self.w
        place = k["engram.layer_ids"].index(layer)
        n, heads = k["engram.max_ngram_size"], k["engram.head_count"]
        count = (n - 1) * heads
        multipliers = k["engram.multipliers"][place * n : (place + 1) * n]
        primes = k["engram.primes"][place * count : (place + 1) * count]
        offsets = k["engram.offsets"][place * count : (place + 1) * count]
        token_map = k["engram.token_map"]
        history = [
            int(token_map[self.ids[-1 - b] if b < len(self.ids) else k["engram.pad_id"]]) for b in range(n)
        ]
        mixed, rows = (history[0] * int(multipliers[0])) % 2**64, []
        for b in range(1, n):
            mixed ^= (history[b] * int(multipliers[b])) % 2**64
            for head in range(heads):
                i = (b - 1) * heads + head
                rows.append(mixed % int(primes[i]) + int(offsets[i]))
        name = f"blk.{layer}.engram_"
        kv = w[name + "wkv"] @ w[name + "embd"][rows].reshape(-1)
        width = h.shape[1]
        key, value = kv[:-width].reshape(h.shape), kv[-width:]
        d = (rms(h) * w[name + "q"] * w[name + "k"] * rms(key)).sum(-1) / F(math.sqrt(width))
        gate = sigmoid(np.copysign(np.sqrt(np.maximum(abs(d), F(1e-6))), d))
        return h + gate[:, None] * value

    def mix(self, h, name):
        w = self.w
        m = w[name + "_fn"] @ rms(h.reshape(-1))
        scale, base = w[name + "_scale"], w[name + "_base"]
        pre = sigmoid(m[:4] * scale[0] + base[:4]) + HYPER_EPS
        post = 2 * sigmoid(m[4:8] * scale[1] + base[4:8])
        comb = softmax((m[8:] * scale[2] + base[8:]).reshape(4, 4)) + HYPER_EPS
        comb = comb / (comb.sum(0, keepdims=True) + HYPER_EPS)
        for _ in range(ROUNDS - 1):
            comb = comb / (comb.sum(1, keepdims=True) + HYPER_EPS)
            comb = comb / (comb.sum(0, keepdims=True) + HYPER_EPS)
        return pre, post, comb

    def act(self, gate, up):
        gate, up = np.minimum(gate, F(10)), np.clip(up, F(-10), F(10))
        return gate * sigmoid(gate) * up

    def experts(self, x, layer):
        w, k, name = self.w, self.k, f"blk.{layer}."
        scores = np.sqrt(np.log1p(np.exp(w[name + "ffn_gate_inp"] @ x)))
        chosen = best(scores + w[name + "exp_probs_b.bias"], k["expert_used_count"])
        weights = scores[chosen] / (scores[chosen].sum() + F(1e-20)) * F(k["expert_weights_scale"])
        y = w[name + "ffn_down_shexp"] @ self.act(
            w[name + "ffn_gate_shexp"] @ x, w[name + "ffn_up_shexp"] @ x
        )
        for weight, e in zip(weights, chosen):
            inner = self.act(w[name + "ffn_gate_exps"][e] @ x, w[name + "ffn_up_exps"][e] @ x)
            y = y + weight * (w[name + "ffn_down_exps"][e] @ inner)
        return y

    def attention(self, x, layer, position, shared):
        w, k, name = self.w, self.k, f"blk.{layer}."
        ratio = self.ratios[layer]
        squeezed = ratio > 0
        qr = rms(w[name + "attn_q_a"] @ x, w[name + "attn_q_a_norm"])
        q = self.rope((w[name + "attn_q_b"] @ qr).reshape(self.heads, -1), position, squeezed)
        kv = self.rope(rms(w[name + "attn_kv"] @ x, w[name + "attn_kv_a_norm"]), position, squeezed)
        self.rings[layer] = (self.rings[layer] + [kv])[-k["attention.sliding_window"] :]
        rows = list(self.rings[layer])
        if name + "attn_compressor_kv" in w:
            self.compress(x, layer, position, ratio)
            shared["source"] = layer
        if squeezed:
            source = shared["source"]
            if name + "indexer.proj" in w:
                shared["rows"] = self.select(x, qr, layer, position, (position + 1) // ratio, source, shared)
            rows += [self.compressed[source][r] for r in shared["rows"]]
        rows = np.stack(rows)
        scores = q @ rows.T * F(self.latent**-0.5)
        sink = w[name + "attn_sinks"][:, None]
        most = np.maximum(scores.max(-1, keepdims=True), sink)
        e = np.exp(scores - most)
        o = e @ rows / (e.sum(-1, keepdims=True) + np.exp(sink - most))
        groups = k["attention.output_group_count"]
        o = self.rope(o, position, squeezed, True).reshape(groups, -1)
        a = w[name + "attn_output_a"].reshape(groups, -1, o.shape[1])
        return w[name + "attn_output_b"] @ np.einsum("gd,grd->gr", o, a).reshape(-1)

    def compress(self, x, layer, position, ratio):
        w, name = self.w, f"blk.{layer}."
        keys, rows = self.index.setdefault(layer, []), self.compressed.setdefault(layer, [])
        row = w[name + "attn_compressor_kv"] @ x
        if ratio > 1:
            part = self.partial.setdefault(layer, [])
            part.append((row, w[name + "attn_compressor_gate"] @ x))
            if len(part) < ratio:
                return
            values, gates = np.stack([p[0] for p in part]), np.stack([p[1] for p in part])
            row = (values * softmax(gates, 0)).sum(0)
            part.clear()
        row = rms(row, w[name + "attn_compressor_norm"])
        first = position + 1 - ratio
        key = rms(w[name + "indexer.attn_k"] @ row, w[name + "indexer.k_norm"])
        keys.append(self.rope(key, first, True))
        rows.append(self.rope(row, first, True))

    def select(self, x, qr, layer, position, n, source, shared):
        w, k, name = self.w, self.k, f"blk.{layer}."
        if n == 0:
            return []
        heads, width = k["attention.indexer.head_count"], k["attention.indexer.key_length"]
        q = self.rope((w[name + "indexer.attn_q_b"] @ qr).reshape(heads, width), position, True)
        weight = w[name + "indexer.proj"] @ x * F((heads * width) ** -0.5)
        scores = (np.maximum(q @ np.stack(self.index[source][:n]).T, 0) * weight[:, None]).sum(0) + F(0)
        allowed = np.ones(n, bool)
        candidate_layer = k["attention.candidate_source_layer_id"]
        if layer == candidate_layer:
            size, keep = k["attention.candidate_block_size"], k["attention.candidate_topk_blocks"]
            blocks = -(-n // size)
            most = np.array([scores[b * size : (b + 1) * size].max() for b in range(blocks)])
            most[-1] = np.inf
            kept = set(best(most, keep))
            shared["candidates"] = np.array([r // size in kept for r in range(n)])
        elif layer > candidate_layer:
            allowed = shared["candidates"]
        places = np.flatnonzero(allowed)
        count = k["attention.indexer.top_k"]
        order = np.sort(scores[places])[::-1]
        self.met_tie |= len(order) > count and order[count - 1] == order[count]
        return sorted(places[best(scores[places], count)])

    def step(self, token):
        w = self.w
        self.ids.append(token)
        position = len(self.ids) - 1
        h = np.tile(w["token_embd"][token], (4, 1))
        pre, shared = np.array([1, 0, 0, 0], F), {}
        for layer in range(self.layers):
            if f"blk.{layer}.engram_embd" in w:
                h = self.engram(h, layer)
            for part in ("attn", "ffn"):
                following, post, comb = self.mix(h, f"blk.{layer}.hc_{part}")
                x = rms((pre[:, None] * h).sum(0), w[f"blk.{layer}.{part}_norm"])
                y = self.attention(x, layer, position, shared) if part == "attn" else self.experts(x, layer)
                h = post[:, None] * y + comb.T @ h
                pre = following
        return w["output"] @ rms((pre[:, None] * h).sum(0), w["output_norm"])


folder, out = sys.argv[1:]
model = Model(f"{folder}/ds41.gguf")
oracle = np.load(f"{folder}/ds41.npz")
logits, before_tie = [], 0
for token in oracle["ids"]:
    logits.append(model.step(int(token)))
    before_tie += not model.met_tie
logits = np.stack(logits).astype("<f4")
difference = abs(logits[:before_tie] - oracle["logits"][:before_tie]).max()
print(f"{before_tie} tokens before the first tie, largest difference {difference:.2e}")
logits.tofile(out)
